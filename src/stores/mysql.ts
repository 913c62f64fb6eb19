import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import { GroupCommit } from '../group-commit.ts'
import type {
  Claim,
  ClaimRequest,
  ListQuery,
  Settlement,
  StoredRecord,
  TransactionalStore,
  TransactionEnd,
} from '../store.ts'
import { assertClient, assertDuration } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import { assertClaim, assertSettlement } from './mysql/checks.ts'
import { errorNumber, NO_SUCH_TABLE, toOncekeyError } from './mysql/faults.ts'
import { Operators } from './mysql/operators.ts'
import type { WriteOp } from './mysql/records.ts'
import { heldByTransaction, Records } from './mysql/records.ts'
import { migrationsOf, prepareTable, type Table, tableOf } from './mysql/schema.ts'
import type { MysqlConnection, MysqlPool, Session } from './mysql/sessions.ts'
import { Sessions } from './mysql/sessions.ts'
import type { Isolation } from './mysql/transaction.ts'
import { transact } from './mysql/transaction.ts'
import { Waiters } from './mysql/waiters.ts'

export type { MysqlConnection, MysqlField, MysqlPool, MysqlQuery } from './mysql/sessions.ts'

export interface MysqlStoreOptions {
  /** The table, `name` or `database.name`. Default `oncekey_records`. */
  readonly table?: string
  /** Whether the store may make or migrate its table when it is first used. `false`: run `mysqlMigrations` yourself. */
  readonly migrate?: boolean
  /** How often space is freed in the background, in small steps. Default 30 s; 0 turns it off. */
  readonly sweepEveryMs?: number
  /** Most operations in one statement, and so in one commit. Default 128. 1 turns batching off. */
  readonly batchMax?: number
  /** Most statements of claims, and as many of settles, that are under way at once. Default 1. */
  readonly inFlightMax?: number
  /** How long one statement, and the wait for a connection, may take before `store-unavailable` is thrown. Default 10 s. */
  readonly callMsMax?: number
  /**
   * For `transaction`: how long a duplicate waits for the first one's end before it is told `running`. Default 5 s. The
   * server counts in whole seconds, so a duplicate in another process waits up to the next one.
   */
  readonly transactionWaitMsMax?: number
  /** For `transaction`: its isolation level. Default: the server's own. */
  readonly isolation?: Isolation
  /** Told in plain words when the server is set so that acknowledged records can be lost. Default: a process warning. */
  readonly onWarning?: (text: string) => void
}

/**
 * Records in a table of MySQL 8 or MariaDB 10.6 or later, in the database that the pool of `mysql2/promise` connects to.
 *
 * An acknowledged claim or settle is committed: with `innodb_flush_log_at_trx_commit` 1, which is the default and which
 * this store never lowers, it survives kill -9 and a loss of power; with a binary log that needs `sync_binlog` 1 as well.
 * After a failover it is there when the replica had it (semi-synchronous, or a cluster); otherwise the last moments are
 * lost. Operations of the same moment share one statement and one commit; one that comes alone is sent at once.
 *
 * A claim of a new key is one round trip; one that meets a record takes a second one to read it. MySQL announces
 * nothing: a waiter is woken at once by the end of an operation in its own process, and within 50 ms by that in another.
 *
 * The caller owns the pool, whose connections must have autocommit on. The store borrows `2 × inFlightMax + 1` of them
 * at most, each for one batch and never two at once for one operation, and one for each `transaction` under way.
 *
 * `transaction(request, work)`: the claim, the rows that `work` writes through `tx`, and the answer commit together or
 * not at all. `tx` is the pool's own connection, inside a transaction that `work` must not end by itself; statements that
 * change tables (CREATE, ALTER, …) end it too. A plain `claim` of an id that a transaction holds is told `running` after
 * 1 s on MariaDB; on MySQL it waits for as long as `callMsMax` and then throws: use one of the two for one kind of key.
 */
export function mysqlStore<Connection extends MysqlConnection>(
  pool: MysqlPool<Connection>,
  options: MysqlStoreOptions = {},
): TransactionalStore<Connection> {
  const { table = TABLE_DEFAULT, isolation } = options
  assertClient(pool, 'getConnection', 'mysqlStore', 'createPool() of mysql2/promise')
  if (isolation !== undefined && !ISOLATIONS.includes(isolation)) {
    throw new OncekeyError('config-invalid', `isolation is ${isolation}; it must be ${ISOLATIONS.join(', ')}.`)
  }
  const bounds = {
    batchMax: options.batchMax ?? BATCH_MAX_DEFAULT,
    inFlightMax: options.inFlightMax ?? 1,
    callMsMax: options.callMsMax ?? CALL_MS_MAX_DEFAULT,
    transactionWaitMsMax: options.transactionWaitMsMax ?? TRANSACTION_WAIT_MS_MAX_DEFAULT,
  }
  for (const [field, value] of Object.entries(bounds)) {
    if (Number.isSafeInteger(value) && value > 0) continue
    throw new OncekeyError('config-invalid', `${field} is ${value}; it must be a whole number of 1 or more.`)
  }
  const sweepEveryMs = options.sweepEveryMs ?? SWEEP_EVERY_MS_DEFAULT
  assertDuration('sweepEveryMs', sweepEveryMs)
  return new MysqlStore(pool, { ...options, ...bounds, sweepEveryMs, table: tableOf(table) })
}

/** The SQL that makes the table, one statement for each version of it, to be run in order. */
export function mysqlMigrations(table: string = TABLE_DEFAULT): readonly string[] {
  return migrationsOf(tableOf(table))
}

const TABLE_DEFAULT = 'oncekey_records'
const ISOLATIONS: readonly Isolation[] = ['read committed', 'repeatable read', 'serializable']
const BATCH_MAX_DEFAULT = 128
const QUEUE_MAX = 10_000
const CALL_MS_MAX_DEFAULT = 10_000
const TRANSACTION_WAIT_MS_MAX_DEFAULT = 5_000
const SWEEP_EVERY_MS_DEFAULT = 30_000
const SWEEP_LIMIT_DEFAULT = 1_000

type Settings = Omit<MysqlStoreOptions, 'table'> & {
  readonly table: Table
  readonly batchMax: number
  readonly inFlightMax: number
  readonly callMsMax: number
  readonly transactionWaitMsMax: number
  readonly sweepEveryMs: number
}

class MysqlStore<Connection extends MysqlConnection> implements TransactionalStore<Connection> {
  readonly name = 'mysql'
  readonly #settings: Settings
  readonly #sessions: Sessions<Connection>
  readonly #records: Records
  readonly #operators: Operators
  readonly #claims: GroupCommit<ClaimRequest, Claim>
  readonly #writes: GroupCommit<WriteOp, boolean>
  readonly #waiters: Waiters
  /** The transactions of this process by id: their duplicates wait here, and hold no connection. */
  readonly #transactions = new Map<string, Promise<unknown>>()
  readonly #underWay = new UnderWay()
  #prepared: Promise<void> | undefined
  #cancelSweep: (() => void) | undefined
  #isClosed = false
  #closed: Promise<void> | undefined

  constructor(pool: MysqlPool<Connection>, settings: Settings) {
    this.#settings = settings
    this.#sessions = new Sessions(pool, settings.callMsMax)
    this.#records = new Records(settings.table.sql)
    const bounds = { batchMax: settings.batchMax, queueMax: QUEUE_MAX, inFlightMax: settings.inFlightMax }
    // Apart, so that no settle ever stands behind claims.
    this.#claims = new GroupCommit((batch) => this.#with((session) => this.#records.claim(session, batch)), bounds)
    this.#writes = new GroupCommit((batch) => this.#with((session) => this.#records.write(session, batch)), bounds)
    this.#operators = new Operators(settings.table.sql, (task) => this.#with(task))
    this.#waiters = new Waiters((ids) => this.#operators.look(ids))
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    this.#assertOpen()
    assertClaim(request)
    this.#planSweep()
    const labels = request.labels && { ...request.labels }
    return this.#claims.submit(labels ? { ...request, labels } : request)
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    this.#assertOpen()
    assertSettlement(settlement)
    return this.#write({ verb: 'settle', id, token, settlement })
  }

  async release(id: string, token: string): Promise<boolean> {
    this.#assertOpen()
    return this.#write({ verb: 'release', id, token })
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    this.#assertOpen()
    assertDuration('leaseMs', leaseMs)
    return this.#write({ verb: 'renew', id, token, leaseMs })
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    this.#assertOpen()
    return this.#operators.read(id)
  }

  async list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    this.#assertOpen()
    return this.#operators.list(query)
  }

  async forget(id: string): Promise<boolean> {
    this.#assertOpen()
    const isForgotten = await this.#operators.forget(id)
    if (isForgotten) this.#waiters.wake(id)
    return isForgotten
  }

  async redact(id: string): Promise<boolean> {
    this.#assertOpen()
    return this.#operators.redact(id)
  }

  async sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    this.#assertOpen()
    return this.#operators.sweep(limit)
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    await this.#waiters.wait(id, signal)
  }

  async transaction(
    request: ClaimRequest,
    work: (tx: Connection, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd> {
    this.#assertOpen()
    assertClaim(request)
    this.#planSweep()
    const { isolation, transactionWaitMsMax: waitMsMax } = this.#settings
    const checked = async (tx: Connection, attempt: number): Promise<Settlement | undefined> => {
      const settlement = await work(tx, attempt)
      if (settlement !== undefined) assertSettlement(settlement)
      return settlement
    }
    const end = this.#inTurn(request, waitMsMax, () =>
      this.#withUnchanged((session) => transact(session, this.#records, request, { isolation, waitMsMax }, checked)),
    )
    try {
      return await this.#underWay.during(end)
    } finally {
      this.#waiters.wake(request.id)
    }
  }

  close(): Promise<void> {
    this.#isClosed = true
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#cancelSweep?.()
    this.#waiters.close()
    await this.#underWay.idle()
    await Promise.all([this.#claims.drain(), this.#writes.drain(), this.#operators.drain()])
  }

  async #write(op: WriteOp): Promise<boolean> {
    const isDone = await this.#writes.submit(op)
    if (isDone && (op.verb !== 'renew' || op.leaseMs === 0)) this.#waiters.wake(op.id)
    return isDone
  }

  async #with<T>(task: (session: Session<Connection>) => Promise<T>): Promise<T> {
    try {
      return await this.#withUnchanged(task)
    } catch (error) {
      throw toOncekeyError(error, true)
    }
  }

  async #withUnchanged<T>(task: (session: Session<Connection>) => Promise<T>): Promise<T> {
    this.#prepared ??= this.#prepare()
    const prepared = this.#prepared
    await prepared
    try {
      return await this.#sessions.use(task)
    } catch (error) {
      if (errorNumber(error) === NO_SUCH_TABLE && this.#prepared === prepared) this.#prepared = undefined
      throw error
    }
  }

  /** When it fails, the next operation tries again. */
  async #prepare(): Promise<void> {
    try {
      const { table, migrate = true, onWarning = warn } = this.#settings
      const prepared = await this.#sessions.use((session) => prepareTable(session, table, migrate))
      this.#records.packetBytesMax = prepared.packetBytesMax
      for (const text of prepared.warnings) onWarning(text)
    } catch (error) {
      this.#prepared = undefined
      throw error
    }
  }

  /** Duplicates in this process wait without a connection, and then look at what the first one left. */
  async #inTurn(request: ClaimRequest, waitMsMax: number, run: () => Promise<TransactionEnd>): Promise<TransactionEnd> {
    const until = performance.now() + waitMsMax
    for (;;) {
      const ahead = this.#transactions.get(request.id)
      if (ahead === undefined) break
      if (!(await endsBefore(ahead, until))) return heldByTransaction(request)
      const record = await this.#operators.read(request.id)
      if (record !== undefined && !(request.takeover && record.state === 'unknown')) return record
    }
    const end = run()
    this.#transactions.set(request.id, end)
    try {
      return await end
    } finally {
      this.#transactions.delete(request.id)
    }
  }

  /** From the first claim on: a process that only reads leaves the sweeping to others. */
  #planSweep(): void {
    const { sweepEveryMs } = this.#settings
    if (this.#cancelSweep !== undefined || sweepEveryMs === 0 || this.#isClosed) return
    // At random, so that many processes do not sweep in step.
    const delayMs = sweepEveryMs * (0.5 + Math.random())
    this.#cancelSweep = systemClock.schedule(delayMs, () => void this.#sweepInSteps())
  }

  async #sweepInSteps(): Promise<void> {
    try {
      while (!this.#isClosed && (await this.sweep(SWEEP_LIMIT_DEFAULT)) >= SWEEP_LIMIT_DEFAULT);
    } catch {
      // Only space is lost: what ails the server is reported to the operations that need it.
    }
    this.#cancelSweep = undefined
    this.#planSweep()
  }

  #assertOpen(): void {
    if (!this.#isClosed) return
    throw new OncekeyError('store-closed', 'This MySQL store was closed. Nothing was recorded; open another.')
  }
}

async function endsBefore(end: Promise<unknown>, untilMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, untilMs - performance.now(), false)
  })
  const ended = end.then(
    () => true,
    () => true,
  )
  return Promise.race([ended, timeout]).finally(() => clearTimeout(timer))
}

function warn(text: string): void {
  process.emitWarning(text, { type: 'OncekeyWarning', code: 'ONCEKEY_MYSQL' })
}
