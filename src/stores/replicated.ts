import { type Clock, systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { Store } from '../store.ts'
import { assertBound } from '../store-combination.ts'
import { Eventual, type ReplicationConflict } from './replicated/eventual.ts'
import { Strict } from './replicated/strict.ts'

export type { ReplicationConflict } from './replicated/eventual.ts'

export interface ReplicatedOptions {
  /** The ledger of this data centre. */
  readonly local: Store
  /** The ledger that all data centres share: NATS or PostgreSQL, wherever it is. */
  readonly global: Store
  /** What weighs more when the global ledger cannot be reached: `strict` the guarantee, `eventual` the answer. */
  readonly mode: 'strict' | 'eventual'
  /** Eventual: how long the global ledger may take before the local one decides alone. Default 200. */
  readonly globalMsMax?: number
  /** Eventual: how often a global ledger that is away is tried again. Default 1,000. */
  readonly retryEveryMs?: number
  /**
   * Eventual: how many answers this process may owe to the global ledger. At this many it claims nothing more until the
   * global ledger is back. Default 10,000.
   */
  readonly untoldMax?: number
  /** Eventual: hears of every operation that is found to have run in two data centres. */
  readonly onConflict?: (conflict: ReplicationConflict) => void
  /** Hears of failures that changed no answer. */
  readonly onError?: (error: unknown) => void
  readonly clock?: Clock
}

/**
 * One ledger in each data centre, and a global one that makes them agree.
 *
 * `strict`: an operation runs in one data centre only, whatever happens to the network: the global ledger holds every
 * claim. Without it nothing new runs (`store-unavailable`); answers that the local ledger has are replayed all the same.
 *
 * `eventual`: the same as long as the global ledger can be reached. While it cannot, each data centre decides for itself,
 * so an operation that is sent to two of them runs TWICE. Afterwards the global ledger is told what ran, and each
 * operation that ran twice is reported to `onConflict`. What a process still owes is lost when it dies: its own data
 * centre has the answer, the others do not.
 *
 * A duplicate of an operation that another data centre has answered gets that answer; of one that is running there, it
 * waits for it in the global ledger. To make all of them forget a record, forget it in each.
 */
export function replicated(options: ReplicatedOptions): Store {
  const { local, global, mode, globalMsMax = 200, retryEveryMs = 1_000, untoldMax = 10_000 } = options
  const { onConflict = () => {}, onError = () => {}, clock = systemClock } = options
  if (typeof local?.claim !== 'function' || typeof global?.claim !== 'function' || local === global) {
    throw new OncekeyError('config-invalid', 'replicated needs two different stores: local and global.')
  }
  if (mode !== 'strict' && mode !== 'eventual') {
    throw new OncekeyError('config-invalid', `mode is ${mode}; it must be "strict" or "eventual".`)
  }
  const bounds = { globalMsMax, retryEveryMs, untoldMax }
  for (const [field, value] of Object.entries(bounds)) assertBound(field, value)
  return mode === 'strict'
    ? new Strict(local, global, clock, onError)
    : new Eventual(local, global, clock, bounds, onConflict, onError)
}
