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
import { assertClaimTimes, assertClient, assertDuration } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import { assertSettlement } from './postgres/checks.ts'
import { sqlState, toOncekeyError, UNDEFINED_TABLE } from './postgres/faults.ts'
import type { ListenConnection } from './postgres/listener.ts'
import { Listener } from './postgres/listener.ts'
import { Operators } from './postgres/operators.ts'
import type { PostgresStoreOptions, Settings } from './postgres/options.ts'
import { settingsOf, TABLE_DEFAULT } from './postgres/options.ts'
import type { WriteOp } from './postgres/records.ts'
import { heldByTransaction, Records } from './postgres/records.ts'
import { migrationsOf, prepareTable, tableOf } from './postgres/schema.ts'
import type { PostgresPool, PostgresPoolClient, Session } from './postgres/sessions.ts'
import { Sessions } from './postgres/sessions.ts'
import { transact } from './postgres/transaction.ts'
import { Waiters } from './postgres/waiters.ts'

export type { PostgresStoreOptions } from './postgres/options.ts'
export type { PostgresClient, PostgresPool, PostgresPoolClient } from './postgres/sessions.ts'

/**
 * Records in a table of PostgreSQL 13 or later, in the database that the pool connects to.
 *
 * An acknowledged claim or settle is committed: with `synchronous_commit` on, which is the default and which this store
 * never lowers, it survives kill -9 and a loss of power; after a failover it is there when the replica was synchronous.
 * Operations of the same moment share one statement and one commit; one that comes alone is sent at once.
 *
 * The caller owns the pool. The store borrows `2 × inFlightMax + 1` connections of it at most, each for one batch and
 * never two at once for one operation; one more while somebody waits and some seconds longer, and only of a pool of 4 or
 * more; and one for each `transaction` that is under way. It works behind PgBouncer in transaction mode; then it polls
 * instead of listening.
 *
 * `transaction(request, work)`: the claim, the rows that `work` writes through `tx`, and the answer commit together or
 * not at all. `tx` is the pool's own client, inside a transaction: `work` must neither end it nor release the client. A
 * conflict with other transactions, at repeatable read or serializable, throws, and nothing has taken place.
 */
export function postgresStore<Pool extends PostgresPool>(
  pool: Pool,
  options: PostgresStoreOptions = {},
): TransactionalStore<ClientOf<Pool>> {
  assertClient(pool, 'connect', 'postgresStore', 'new Pool() of pg')
  return new PostgresStore(pool as unknown as PostgresPool<ClientOf<Pool>>, settingsOf(options))
}

/** What the pool's `connect` gives; `pg` declares it twice, with and without a callback. */
export type ClientOf<Pool> = Pool extends {
  connect: { (): Promise<infer Client extends PostgresPoolClient>; (callback: never): unknown }
}
  ? Client
  : PostgresPoolClient

/** The SQL that makes the table, one text for each version of it, to be run in order. */
export function postgresMigrations(table: string = TABLE_DEFAULT): readonly string[] {
  return migrationsOf(tableOf(table))
}

/** Operations that may wait for their turn, of each kind. */
const QUEUE_MAX = 10_000
/** Rows freed in one statement of the background sweep, and held by it for a few milliseconds. */
const SWEEP_STEP_ROWS = 200
const SWEEP_LIMIT_DEFAULT = 1_000
/** A smaller pool has no connection to spare for listening: waiters poll. */
const LISTEN_POOL_MIN = 4

class PostgresStore<Client extends PostgresPoolClient> implements TransactionalStore<Client> {
  readonly name = 'postgres'
  readonly #pool: PostgresPool<Client>
  readonly #settings: Settings
  readonly #sessions: Sessions<Client>
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

  constructor(pool: PostgresPool<Client>, settings: Settings) {
    this.#pool = pool
    this.#settings = settings
    this.#sessions = new Sessions(pool, settings.callMsMax)
    this.#records = new Records(settings.table.sql)
    const bounds = { batchMax: settings.batchMax, queueMax: QUEUE_MAX, inFlightMax: settings.inFlightMax }
    // Apart, so that no settle ever stands behind claims.
    this.#claims = new GroupCommit((batch) => this.#with((session) => this.#records.claim(session, batch)), bounds)
    this.#writes = new GroupCommit((batch) => this.#with((session) => this.#records.write(session, batch)), bounds)
    this.#operators = new Operators(settings.table.sql, (task) => this.#with(task))
    this.#waiters = new Waiters({
      look: (ids, flag) => this.#operators.look(ids, flag),
      listen: this.#mayListen() ? (onId, onEnded) => this.#listen(onId, onEnded) : undefined,
    })
    // A pool reports connections that break while they are idle. Unheard, a restart of the server would end the process.
    pool.on('error', ignore)
  }

  // Not async, these two: every request pays for them.
  claim(request: ClaimRequest): Promise<Claim> {
    try {
      this.#assertOpen()
      assertClaimTimes(request)
    } catch (error) {
      return Promise.reject(error)
    }
    this.#planSweep()
    if (this.#transactions.has(request.id)) return Promise.resolve(heldByTransaction(request))
    const labels = request.labels && { ...request.labels }
    return this.#claims.submit(labels ? { ...request, labels } : request)
  }

  settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    try {
      this.#assertOpen()
      assertSettlement(settlement)
    } catch (error) {
      return Promise.reject(error)
    }
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
    work: (tx: Client, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd> {
    this.#assertOpen()
    assertClaimTimes(request)
    this.#planSweep()
    const { isolation, transactionWaitMsMax: waitMsMax } = this.#settings
    const checked = async (tx: Client, attempt: number): Promise<Settlement | undefined> => {
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
    await this.#waiters.close()
    await this.#underWay.idle()
    await Promise.all([this.#claims.drain(), this.#writes.drain(), this.#operators.drain()])
    await this.#sessions.idle()
    this.#pool.removeListener('error', ignore)
  }

  #write(op: WriteOp): Promise<boolean> {
    return this.#writes.submit(op).then((isDone) => {
      if (isDone && (op.verb !== 'renew' || op.leaseMs === 0)) this.#waiters.wake(op.id)
      return isDone
    })
  }

  async #with<T>(task: (session: Session<Client>) => Promise<T>): Promise<T> {
    try {
      return await this.#withUnchanged(task)
    } catch (error) {
      throw toOncekeyError(error, true)
    }
  }

  async #withUnchanged<T>(task: (session: Session<Client>) => Promise<T>): Promise<T> {
    this.#prepared ??= this.#prepare()
    const prepared = this.#prepared
    await prepared
    try {
      return await this.#sessions.use(task)
    } catch (error) {
      if (sqlState(error) === UNDEFINED_TABLE && this.#prepared === prepared) this.#prepared = undefined
      throw error
    }
  }

  /** When it fails, the next operation tries again. */
  async #prepare(): Promise<void> {
    try {
      const { table, migrate = true, whenVolatile } = this.#settings
      const losses = await this.#sessions.use((session) => prepareTable(session, table, migrate))
      if (losses.length > 0 && whenVolatile === 'refuse') throw new OncekeyError('config-invalid', losses.join(' '))
      if (whenVolatile === 'warn') for (const text of losses) process.emitWarning(text, 'OncekeyWarning')
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

  #mayListen(): boolean {
    const { listen } = this.#settings
    return typeof listen === 'function' || (listen !== false && this.#sessions.poolMax >= LISTEN_POOL_MIN)
  }

  async #listen(onId: (id: string) => void, onEnded: () => void): Promise<Listener> {
    const listener = new Listener(await this.#listenConnection(), onId, onEnded)
    try {
      await listener.start(this.#settings.table.sql, this.#sessions, this.#settings.callMsMax)
      return listener
    } catch (error) {
      listener.end()
      throw error
    }
  }

  async #listenConnection(): Promise<ListenConnection> {
    const { listen } = this.#settings
    if (typeof listen === 'function') {
      const client = await listen()
      return { client, end: () => void client.end().catch(ignore) }
    }
    const client = await this.#sessions.connect()
    // Not given back to the pool but ended: it would go on to hear.
    return { client, end: () => client.release(true) }
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
      while (!this.#isClosed && (await this.sweep(SWEEP_STEP_ROWS)) >= SWEEP_STEP_ROWS);
    } catch {
      // Only space is lost: what ails the server is reported to the operations that need it.
    }
    this.#cancelSweep = undefined
    this.#planSweep()
  }

  #assertOpen(): void {
    if (!this.#isClosed) return
    throw new OncekeyError('store-closed', 'This PostgreSQL store was closed. Nothing was recorded; open another.')
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

function ignore(): void {}
