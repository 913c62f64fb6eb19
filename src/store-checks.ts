import { OncekeyError } from './error.ts'
import type { ClaimRequest, Settlement } from './store.ts'

/** No operation has this id: to read or claim it only shows whether a store works. */
export const PROBE_ID: string = '0'.repeat(64)

/** What every store refuses in the same words: a time that cannot be meant turns the protection off in silence. */
export function assertClaimTimes({ leaseMs, unknownTtlMs }: ClaimRequest): void {
  if (leaseMs > 0 && leaseMs < Number.POSITIVE_INFINITY) return assertDuration('unknownTtlMs', unknownTtlMs)
  throw new OncekeyError(
    'config-invalid',
    `leaseMs is ${leaseMs}; a claim needs a lease of more than 0 ms, or nothing would protect the running operation.`,
  )
}

export function assertSettlementTimes({ ttlMs, expiredTtlMs }: Settlement): void {
  assertDuration('ttlMs', ttlMs)
  assertDuration('expiredTtlMs', expiredTtlMs)
}

export function assertDuration(field: string, valueMs: number): void {
  if (valueMs >= 0 && valueMs < Number.POSITIVE_INFINITY) return
  throw new OncekeyError('config-invalid', `${field} is ${valueMs}; it must be a finite number of ms, 0 or more.`)
}

export function assertCounts(counts: Readonly<Record<string, number>>): void {
  for (const [field, value] of Object.entries(counts)) {
    if (Number.isSafeInteger(value) && value > 0) continue
    throw new OncekeyError('config-invalid', `${field} is ${value}; it must be a whole number of 1 or more.`)
  }
}

/** What to do about a server that may lose records: refuse to use it, warn once, or say nothing. */
export type Strictness = 'refuse' | 'warn' | 'ignore'

export function assertStrictness(options: Readonly<Record<string, Strictness>>): void {
  for (const [name, value] of Object.entries(options)) {
    if (['refuse', 'warn', 'ignore'].includes(value)) continue
    throw new OncekeyError('config-invalid', `${name} is ${value}; it must be "refuse", "warn" or "ignore".`)
  }
}

/** A limit of rows as every database takes it: a negative one is refused by some, and means none at all to others. */
export function rowCount(limit: number): number {
  return Math.min(Math.max(0, Math.floor(limit)), Number.MAX_SAFE_INTEGER)
}

/** For callers without types: an address where a client belongs is told at once, not by the first request. */
export function assertClient(client: unknown, verb: string, store: string, example: string): void {
  if (typeof (client as Record<string, unknown> | null | undefined)?.[verb] === 'function') return
  throw new OncekeyError(
    'config-invalid',
    `${store} needs a client of yours, such as ${example}, but was given ${client === null ? 'null' : `a ${typeof client}`}.`,
  )
}
