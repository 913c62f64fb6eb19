import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import { GroupCommit, type Reply } from '../group-commit.ts'
import type {
  Claim,
  ClaimRequest,
  ListQuery,
  Settlement,
  StoredRecord,
  TransactionalStore,
  TransactionEnd,
} from '../store.ts'
import { assertDuration } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import { heldByTransaction, type WriteOp } from './operations.ts'
import type { SqlSettings } from './options.ts'
import { type TransactionSettings, type TransactionSteps, transact } from './transaction.ts'

/** One connection of the caller's pool, borrowed for one task. */
export interface SqlSession {
  /** `false`: the connection must not be used again. */
  isGood: boolean
}

/** What one database does in its own way. `Tx` is what the `work` of a transaction gets: the driver's own connection. */
export interface SqlDatabase<Tx, Session extends SqlSession> {
  readonly name: string
  /** As its makers write it, for messages. */
  readonly title: string
  /** Claims, settles, releases and renewals, many in one statement. */
  readonly records: {
    claim(session: Session, requests: readonly ClaimRequest[]): Promise<Reply<Claim>[]>
    write(session: Session, ops: readonly WriteOp[]): Promise<Reply<boolean>[]>
  }
  readonly operators: {
    read(id: string): Promise<StoredRecord | undefined>
    list(query: ListQuery): Promise<readonly StoredRecord[]>
    forget(id: string): Promise<boolean>
    redact(id: string): Promise<boolean>
    sweep(limit: number): Promise<number>
    drain(): Promise<void>
  }
  readonly waiters: {
    wait(id: string, signal: AbortSignal): Promise<void>
    wake(id: string): void
    close(): void | Promise<void>
  }
  /** Throw for what the table cannot hold. */
  assertClaim(request: ClaimRequest): void
  assertSettlement(settlement: Settlement): void
  /** Runs the task on a connection, and gives that back. */
  use<T>(task: (session: Session) => Promise<T>): Promise<T>
  /** Makes sure that the table is there, and that this code knows it. Says what a crash would lose, a line for each. */
  prepare(session: Session): Promise<readonly string[]>
  transactionOn(session: Session, request: ClaimRequest, settings: TransactionSettings): TransactionSteps<Tx>
  isTableMissing(error: unknown): boolean
  /** `sent`: whether the server may have carried it out. */
  toOncekeyError(error: unknown, sent: boolean): OncekeyError
  /** After everything else has ended. */
  close?(): Promise<void>
}

/** Runs a task on a connection, once the table is there; what goes wrong is told in our own words. */
export type Use<Session> = <T>(task: (session: Session) => Promise<T>) => Promise<T>

/** Operations that may wait for their turn, of each kind. */
const QUEUE_MAX = 10_000
/** Rows freed in one step of the background sweep, and held by it for a few milliseconds. */
const SWEEP_STEP_ROWS = 200
const SWEEP_LIMIT_DEFAULT = 1_000

/**
 * A store in a table of a SQL server: what PostgreSQL and MySQL have in common. Operations of the same moment share one
 * statement and one commit; one that comes alone is sent at once.
 */
export class SqlStore<Tx, Session extends SqlSession> implements TransactionalStore<Tx> {
  readonly name: string
  readonly #settings: SqlSettings
  readonly #database: SqlDatabase<Tx, Session>
  readonly #claims: GroupCommit<ClaimRequest, Claim>
  readonly #writes: GroupCommit<WriteOp, boolean>
  /** The transactions of this process by id: their duplicates wait here, and hold no connection. */
  readonly #transactions = new Map<string, Promise<unknown>>()
  readonly #underWay = new UnderWay()
  #prepared: Promise<void> | undefined
  #cancelSweep: (() => void) | undefined
  #isClosed = false
  #closed: Promise<void> | undefined

  constructor(settings: SqlSettings, databaseOf: (use: Use<Session>) => SqlDatabase<Tx, Session>) {
    this.#settings = settings
    this.#database = databaseOf((task) => this.#with(task))
    const { name, records } = this.#database
    this.name = name
    const bounds = { batchMax: settings.batchMax, queueMax: QUEUE_MAX, inFlightMax: settings.inFlightMax }
    // Apart, so that no settle ever stands behind claims.
    this.#claims = new GroupCommit((batch) => this.#with((session) => records.claim(session, batch)), bounds)
    this.#writes = new GroupCommit((batch) => this.#with((session) => records.write(session, batch)), bounds)
  }

  // Not async, these two: every request pays for them.
  claim(request: ClaimRequest): Promise<Claim> {
    try {
      this.#assertOpen()
      this.#database.assertClaim(request)
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
      this.#database.assertSettlement(settlement)
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
    return this.#database.operators.read(id)
  }

  async list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    this.#assertOpen()
    return this.#database.operators.list(query)
  }

  async forget(id: string): Promise<boolean> {
    this.#assertOpen()
    const isForgotten = await this.#database.operators.forget(id)
    if (isForgotten) this.#database.waiters.wake(id)
    return isForgotten
  }

  async redact(id: string): Promise<boolean> {
    this.#assertOpen()
    return this.#database.operators.redact(id)
  }

  async sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    this.#assertOpen()
    return this.#database.operators.sweep(limit)
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    // What a transaction has not committed cannot be seen, and would look as if nobody ran.
    const transaction = this.#transactions.get(id)
    if (transaction === undefined) return this.#database.waiters.wait(id, signal)
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        signal.removeEventListener('abort', wake)
        resolve()
      }
      if (signal.aborted) return resolve()
      signal.addEventListener('abort', wake)
      transaction.then(wake, wake)
    })
  }

  async transaction(
    request: ClaimRequest,
    work: (tx: Tx, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd> {
    const database = this.#database
    this.#assertOpen()
    database.assertClaim(request)
    this.#planSweep()
    const { isolation, transactionWaitMsMax: waitMsMax } = this.#settings
    const checked = async (tx: Tx, attempt: number): Promise<Settlement | undefined> => {
      const settlement = await work(tx, attempt)
      if (settlement !== undefined) database.assertSettlement(settlement)
      return settlement
    }
    const end = this.#inTurn(request, waitMsMax, () =>
      this.#withUnchanged((session) =>
        transact(database.transactionOn(session, request, { isolation, waitMsMax }), checked),
      ),
    )
    try {
      return await this.#underWay.during(end)
    } finally {
      database.waiters.wake(request.id)
    }
  }

  close(): Promise<void> {
    this.#isClosed = true
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    this.#cancelSweep?.()
    await this.#database.waiters.close()
    await this.#underWay.idle()
    await Promise.all([this.#claims.drain(), this.#writes.drain(), this.#database.operators.drain()])
    await this.#database.close?.()
  }

  #write(op: WriteOp): Promise<boolean> {
    return this.#writes.submit(op).then((isDone) => {
      if (isDone && (op.verb !== 'renew' || op.leaseMs === 0)) this.#database.waiters.wake(op.id)
      return isDone
    })
  }

  async #with<T>(task: (session: Session) => Promise<T>): Promise<T> {
    try {
      return await this.#withUnchanged(task)
    } catch (error) {
      throw this.#database.toOncekeyError(error, true)
    }
  }

  /** Throws what the driver threw: of a transaction, also what its `work` threw. */
  async #withUnchanged<T>(task: (session: Session) => Promise<T>): Promise<T> {
    this.#prepared ??= this.#prepare()
    const prepared = this.#prepared
    await prepared
    try {
      return await this.#database.use(task)
    } catch (error) {
      if (this.#database.isTableMissing(error) && this.#prepared === prepared) this.#prepared = undefined
      throw error
    }
  }

  /** When it fails, the next operation tries again. */
  async #prepare(): Promise<void> {
    try {
      const { whenVolatile } = this.#settings
      const losses = await this.#database.use((session) => this.#database.prepare(session))
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
      const record = await this.#database.operators.read(request.id)
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
      while (!this.#isClosed && (await this.sweep(SWEEP_STEP_ROWS)) >= SWEEP_STEP_ROWS);
    } catch {
      // Only space is lost: what ails the server is reported to the operations that need it.
    }
    this.#cancelSweep = undefined
    this.#planSweep()
  }

  #assertOpen(): void {
    if (!this.#isClosed) return
    throw new OncekeyError(
      'store-closed',
      `This ${this.#database.title} store was closed. Nothing was recorded; open another.`,
    )
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
