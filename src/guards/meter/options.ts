import { type Clock, systemClock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import type { Labels, Store } from '../../store.ts'
import { assertCounts } from '../../store-checks.ts'

export interface MeterOptions {
  /** Where the counts live; any store. Best one of their own: a collection, a table, a file. */
  readonly store: Store
  /**
   * Whose count it goes to, for example `({ labels }) => labels.principal` where `idempotency()` has `labels: true`. Put
   * the billing period into the name (`org-1/2026-11`) if old counts shall go: an operation is counted once in all, for
   * the tenant that was named first.
   */
  readonly tenant: (executed: Executed) => string | undefined
  /** What is counted. Default: everything that was answered with a status below 400. */
  readonly counts?: (executed: Executed) => boolean
  /** Only what this process runs under the contract of this name. Default: under any. */
  readonly contract?: string
  /** How long a count is kept. Default 100 years. Less only with a period in the tenant's name, and longer than that period. */
  readonly keepMs?: number
  /**
   * How long an operation is known to be counted. Default as `keepMs`: a key that runs again after its record has expired
   * is not counted again. To count such a run as a new one, give twice the contract's `ttl.committedMs`.
   */
  readonly rememberMs?: number
  /** How many operations may wait here while the store is away. Default 100,000. */
  readonly waitingMax?: number
  /** How long one call of the store may take before it counts as failed. Default 10 s. */
  readonly callMsMax?: number
  /** Told of everything that is not as it should be. Default: a warning of the process, once for each kind. */
  readonly onTrouble?: (trouble: MeterTrouble) => void
  readonly clock?: Clock
}

/** An operation that has run, in whatever process. */
export interface Executed {
  readonly id: string
  readonly status: number
  /** Empty without `labels: true`. */
  readonly labels: Labels
}

export type MeterTrouble =
  /** The store failed: what is to be counted waits, and is tried again. Told once for each outage. */
  | { readonly kind: 'store-failed'; readonly error: unknown }
  /** `waitingMax` operations wait already: this one is not counted, unless a later event or `catchUp` brings it again. */
  | { readonly kind: 'overflow'; readonly id: string; readonly tenant: string }
  /** `tenant` or `counts` threw, or gave nothing: this one is not counted. */
  | { readonly kind: 'no-tenant'; readonly id: string; readonly error?: unknown }
  /** The meter was closed while its store was away: these are not counted, unless `catchUp` brings them again. */
  | { readonly kind: 'left-behind'; readonly operations: number }

/** Every option with its default, checked. */
export function meterSettings(options: MeterOptions): MeterSettings {
  const { store, tenant, keepMs = KEEP_MS_DEFAULT, rememberMs = keepMs } = options
  const { callMsMax = CALL_MS_MAX_DEFAULT, waitingMax = WAITING_MAX_DEFAULT } = options
  if (typeof store?.claim !== 'function') {
    throw new OncekeyError('config-invalid', 'store is missing; pass the store that the counts shall live in')
  }
  if (typeof tenant !== 'function') {
    throw new OncekeyError(
      'config-invalid',
      'tenant is missing; pass a function that says whose count it is, such as ({ labels }) => labels.principal',
    )
  }
  assertCounts({ keepMs, rememberMs, callMsMax, waitingMax })
  if (rememberMs > keepMs) {
    throw new OncekeyError(
      'config-invalid',
      `rememberMs is ${rememberMs}, but must not be more than keepMs (${keepMs}): an operation would be remembered as counted in a count that is gone`,
    )
  }
  const { counts = isSuccess, clock = systemClock, contract, onTrouble } = options
  return { store, tenant, counts, contract, keepMs, rememberMs, waitingMax, callMsMax, onTrouble, clock }
}

export type MeterSettings = Required<Omit<MeterOptions, 'contract' | 'onTrouble'>> & {
  readonly contract: string | undefined
  readonly onTrouble: ((trouble: MeterTrouble) => void) | undefined
}

function isSuccess({ status }: Executed): boolean {
  return status < 400
}

const KEEP_MS_DEFAULT = 100 * 365 * 86_400_000
const WAITING_MAX_DEFAULT = 100_000
const CALL_MS_MAX_DEFAULT = 10_000
