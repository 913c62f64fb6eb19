import { OncekeyError } from '../error.ts'
import { assertCounts, assertDuration, assertStrictness, type Strictness } from '../store-checks.ts'
import { ISOLATIONS, type Isolation } from './transaction.ts'

/** What every SQL store can be told. */
export interface SqlStoreOptions {
  /** The table, `name` or `schema.name`; of MySQL, `database.name`. Default `oncekey_records`. */
  readonly table?: string
  /** Whether the store may make or migrate its table when it is first used. `false`: run the migrations yourself. */
  readonly migrate?: boolean
  /** How often space is freed in the background, in small steps. Default 30 s; 0 turns it off. */
  readonly sweepEveryMs?: number
  /** Most operations in one statement, and so in one commit. Default 256; of MySQL, 128. 1 turns batching off. */
  readonly batchMax?: number
  /** Most statements of claims, and as many of settles, that are under way at once. Default 1. */
  readonly inFlightMax?: number
  /** How long one statement, and the wait for a connection, may take before `store-unavailable` is thrown. Default 10 s. */
  readonly callMsMax?: number
  /**
   * For `transaction`: how long a duplicate waits for the first one's end before it is told `running`. Default 5 s. MySQL
   * counts in whole seconds, so that a duplicate in another process waits up to the next one.
   */
  readonly transactionWaitMsMax?: number
  /** For `transaction`: its isolation level. Default: the server's own. */
  readonly isolation?: Isolation
  /**
   * What to do when the server or the table is set so that a crash loses acknowledged records. Default `warn`: a process
   * warning that says what is lost, and how to set it right.
   */
  readonly whenVolatile?: Strictness
}

/** The options, checked, with what was left out filled in. */
export type SqlSettings = Required<Omit<SqlStoreOptions, 'isolation'>> & { readonly isolation: Isolation | undefined }

export const TABLE_DEFAULT = 'oncekey_records'
const IN_FLIGHT_MAX_DEFAULT = 1
const CALL_MS_MAX_DEFAULT = 10_000
const TRANSACTION_WAIT_MS_MAX_DEFAULT = 5_000
const SWEEP_EVERY_MS_DEFAULT = 30_000

export function settingsOf(options: SqlStoreOptions, batchMaxDefault: number): SqlSettings {
  const { table = TABLE_DEFAULT, migrate = true, isolation, whenVolatile = 'warn' } = options
  const { sweepEveryMs = SWEEP_EVERY_MS_DEFAULT } = options
  if (isolation !== undefined && !ISOLATIONS.includes(isolation)) {
    throw new OncekeyError('config-invalid', `isolation is ${isolation}; it must be one of: ${ISOLATIONS.join(', ')}.`)
  }
  assertStrictness({ whenVolatile })
  const bounds = {
    batchMax: options.batchMax ?? batchMaxDefault,
    inFlightMax: options.inFlightMax ?? IN_FLIGHT_MAX_DEFAULT,
    callMsMax: options.callMsMax ?? CALL_MS_MAX_DEFAULT,
    transactionWaitMsMax: options.transactionWaitMsMax ?? TRANSACTION_WAIT_MS_MAX_DEFAULT,
  }
  assertCounts(bounds)
  assertDuration('sweepEveryMs', sweepEveryMs)
  return { table, migrate, isolation, whenVolatile, sweepEveryMs, ...bounds }
}
