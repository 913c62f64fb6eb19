import { type Clock, systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import { publish } from '../events.ts'
import type { Run } from '../execution.ts'
import { operationId } from '../operation/scope.ts'
import type { Claim, ClaimRequest, Store } from '../store.ts'
import { StoreAccess } from '../store-access.ts'

export interface NonceGateOptions {
  /** Where nonces are remembered: as durable as the store is. It may be the one that keeps the operations. */
  readonly store: Store
  /** How long a nonce is refused once it was seen. */
  readonly ttlMs: number
  /**
   * How long an operation meets its own nonce as its own. Give the shortest time that the contract keeps an answer: once
   * the key may be used anew, the same request is a replay, too. Default 24 h, as in the default contract.
   */
  readonly keyTtlMs?: number
  /** Whose nonces they are: a service, a protocol. Equal nonces of different scopes never meet. */
  readonly scope: string | readonly string[]
  /** How long one call of the store may take before it counts as failed. Default 5,000. */
  readonly storeMsMax?: number
  readonly clock?: Clock
}

export interface NonceGate {
  /**
   * `true`: the nonce was new, or it is this operation's own. `false`: another operation has had it. Of any number of
   * operations that bring one nonce at the same time, exactly one gets `true`.
   *
   * `within` narrows the scope for this call, to a principal say. A nonce that is not 1 to 255 visible ASCII characters
   * throws `config-invalid`: check it with `isNonce` first. A store that fails throws its own error, and nothing is known:
   * answer 503, which says that nothing was done.
   */
  take(nonce: string, run: Pick<Run, 'id'>, within?: string): Promise<boolean>
}

/**
 * Lets each nonce through for one operation only, with any store and any adapter. To be called inside the handler, where
 * a true retry never comes: that one is replayed before.
 *
 * A nonce is bound to the operation that brought it first, by one atomic claim of the store, and never evicted. So a run
 * after a crash (a takeover) meets its own nonce as its own. An operation that is released (503: nothing was done) keeps
 * it, too: its retry under the same key passes, and the same nonce under another key stays refused. Freed with the
 * release it would be anybody's, while the first attempt may still be on its way somewhere.
 *
 * The binding lasts as long as the key does (`keyTtlMs`), the memory longer (`ttlMs`): whoever recorded a request, and
 * sends it again on the day after its key has expired, is refused.
 */
export function nonceGate(options: NonceGateOptions): NonceGate {
  const {
    store,
    ttlMs,
    keyTtlMs = KEY_TTL_MS_DEFAULT,
    storeMsMax = STORE_MS_MAX_DEFAULT,
    clock = systemClock,
  } = options
  if (typeof store?.claim !== 'function') {
    throw new OncekeyError('config-invalid', 'store is missing; pass the one that is to remember the nonces')
  }
  const scope = scopeOf(options.scope)
  assertTime('ttlMs', ttlMs)
  assertTime('keyTtlMs', keyTtlMs)
  assertTime('storeMsMax', storeMsMax)
  const access = new StoreAccess(store, clock, storeMsMax, (type, subject, status, error) =>
    publish(type, subject, store.name, 'nonce', status, error),
  )
  const ownMs = Math.min(ttlMs, keyTtlMs)
  return {
    async take(nonce, run, within) {
      if (!isNonce(nonce)) throw notANonce(nonce)
      const parts = within === undefined ? scope : [...scope, 'within', within]
      // Never settled, so never evicted. While its lease lasts the nonce knows its operation; after that, nobody.
      const request: ClaimRequest = {
        id: operationId(parts, nonce),
        token: crypto.randomUUID(),
        fingerprint: run.id,
        leaseMs: ownMs,
        unknownTtlMs: ttlMs - ownMs,
        takeover: false,
        labels: LABELS,
      }
      return isOwn(await access.claim(request), run.id)
    },
  }
}

/** 1 to 255 visible ASCII characters: what can be a nonce. */
export function isNonce(value: unknown): value is string {
  return typeof value === 'string' && NONCE.test(value)
}

const NONCE = /^[\x21-\x7e]{1,255}$/

function isOwn(claim: Claim, operation: string): boolean {
  if (claim.state === 'acquired') return true
  return claim.state === 'running' && claim.fingerprint === operation
}

/** For operators who list records: this one is no operation that hangs. */
const LABELS = { guard: 'nonce' } as const

const KEY_TTL_MS_DEFAULT = 86_400_000
const STORE_MS_MAX_DEFAULT = 5_000

function scopeOf(scope: string | readonly string[]): readonly string[] {
  const parts = typeof scope === 'string' ? [scope] : scope
  if (Array.isArray(parts) && parts.length > 0 && parts.every((part) => typeof part === 'string' && part !== '')) {
    // No operation of an adapter or of plain code has an id with such a scope: the store may be the same.
    return ['oncekey nonce', ...parts]
  }
  throw new OncekeyError('config-invalid', 'scope is missing: say whose nonces they are, such as "payments"')
}

function assertTime(field: string, valueMs: unknown): void {
  if (typeof valueMs === 'number' && valueMs > 0 && valueMs < Number.POSITIVE_INFINITY) return
  throw new OncekeyError('config-invalid', `${field} is ${valueMs}; it must be a finite number of ms above 0`)
}

function notANonce(value: unknown): OncekeyError {
  const what =
    typeof value === 'string' ? `${value.length} characters, or some that are not visible ASCII` : typeof value
  return new OncekeyError(
    'config-invalid',
    `The nonce is ${what}, but must be a string of 1 to 255 visible ASCII characters; refuse such a request before it comes to the gate (isNonce).`,
  )
}
