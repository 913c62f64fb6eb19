import { OncekeyError } from '../../error.ts'
import { assertDuration } from '../../store-checks.ts'

import { type Table, tableOf } from './schema.ts'
import type { PostgresClient } from './sessions.ts'
import type { Isolation } from './transaction.ts'

export interface PostgresStoreOptions {
  /** The table, `name` or `schema.name`. Default `oncekey_records`. */
  readonly table?: string
  /** Whether the store may make or migrate its table when it is first used. `false`: run `postgresMigrations` yourself. */
  readonly migrate?: boolean
  /** How often space is freed in the background, in small steps. Default 30 s; 0 turns it off. */
  readonly sweepEveryMs?: number
  /** Most operations in one statement, and so in one commit. Default 256. 1 turns batching off. */
  readonly batchMax?: number
  /** Most statements of claims, and as many of settles, that are under way at once. Default 1. */
  readonly inFlightMax?: number
  /**
   * A connection of its own on which the store hears that a record was settled; `end()` of it is called when it is no
   * longer needed. Without it one of the pool's is kept while somebody waits. `false`: the store polls.
   */
  readonly listen?: false | (() => Promise<PostgresClient & { end(): Promise<void> }>)
  /** How long one statement, and the wait for a connection, may take before `store-unavailable` is thrown. Default 10 s. */
  readonly callMsMax?: number
  /** For `transaction`: how long a duplicate waits for the first one's end before it is told `running`. Default 5 s. */
  readonly transactionWaitMsMax?: number
  /** For `transaction`: its isolation level. Default: the server's own. */
  readonly isolation?: Isolation
  /**
   * What to do when the server or the table is set so that a crash loses acknowledged records: `synchronous_commit`,
   * `fsync` or `full_page_writes` off, or an UNLOGGED table. Default `warn`: a process warning that says what is lost.
   */
  readonly whenVolatile?: 'refuse' | 'warn' | 'ignore'
}

/** The options, checked, with what was left out filled in. */
export type Settings = Omit<PostgresStoreOptions, 'table'> & {
  readonly table: Table
  readonly batchMax: number
  readonly inFlightMax: number
  readonly callMsMax: number
  readonly transactionWaitMsMax: number
  readonly sweepEveryMs: number
  readonly whenVolatile: 'refuse' | 'warn' | 'ignore'
}

export const TABLE_DEFAULT = 'oncekey_records'
const ISOLATIONS: readonly Isolation[] = ['read committed', 'repeatable read', 'serializable']
const BATCH_MAX_DEFAULT = 256
const IN_FLIGHT_MAX_DEFAULT = 1
const CALL_MS_MAX_DEFAULT = 10_000
const TRANSACTION_WAIT_MS_MAX_DEFAULT = 5_000
const SWEEP_EVERY_MS_DEFAULT = 30_000

export function settingsOf(options: PostgresStoreOptions): Settings {
  const { table = TABLE_DEFAULT, isolation, sweepEveryMs = SWEEP_EVERY_MS_DEFAULT } = options
  if (isolation !== undefined && !ISOLATIONS.includes(isolation)) {
    throw new OncekeyError('config-invalid', `isolation is ${isolation}; it must be one of: ${ISOLATIONS.join(', ')}.`)
  }
  const { whenVolatile = 'warn' } = options
  if (!['refuse', 'warn', 'ignore'].includes(whenVolatile)) {
    throw new OncekeyError('config-invalid', `whenVolatile is ${whenVolatile}; it must be refuse, warn or ignore.`)
  }
  const bounds = {
    batchMax: options.batchMax ?? BATCH_MAX_DEFAULT,
    inFlightMax: options.inFlightMax ?? IN_FLIGHT_MAX_DEFAULT,
    callMsMax: options.callMsMax ?? CALL_MS_MAX_DEFAULT,
    transactionWaitMsMax: options.transactionWaitMsMax ?? TRANSACTION_WAIT_MS_MAX_DEFAULT,
  }
  for (const [field, value] of Object.entries(bounds)) {
    if (Number.isSafeInteger(value) && value > 0) continue
    throw new OncekeyError('config-invalid', `${field} is ${value}; it must be a whole number of 1 or more.`)
  }
  assertDuration('sweepEveryMs', sweepEveryMs)
  return { ...options, ...bounds, whenVolatile, sweepEveryMs, table: tableOf(table) }
}
