import { resolve as resolvePath } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import type { Clock } from '../clock.ts'
import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type {
  Claim,
  ClaimRequest,
  Labels,
  ListQuery,
  RecordState,
  Settlement,
  StoredRecord,
  TransactionalStore,
  TransactionEnd,
} from '../store.ts'
import { assertClaimTimes, assertDuration, assertSettlementTimes, rowCount } from '../store-checks.ts'
import { Channel } from './sqlite/channel.ts'
import { fromText, idOfKey } from './sqlite/encoding.ts'
import { MIGRATIONS } from './sqlite/schema.ts'
import { Transactions } from './sqlite/transactions.ts'
import { Waiters } from './sqlite/waiters.ts'
import type { ClaimFields, Op, Reply, Row, SettleFields, Stamp } from './sqlite/wire.ts'

export interface SqliteStoreOptions {
  /** The database file; made when absent, in a directory that exists. `:memory:` keeps records in this store alone. */
  readonly path: string
  /**
   * `full` (default): what was acknowledged survives a loss of power. `normal`: it survives a crash of the process, and
   * a loss of power may take the last moments, after which an operation can run a second time.
   */
  readonly synchronous?: 'full' | 'normal'
  /** How often space is freed in the background, in small steps. Default 10 s; 0 turns it off. */
  readonly sweepEveryMs?: number
  /** The store's clock, for tests. Otherwise the system's, read when the batch holds the lock. */
  readonly clock?: Clock
}

/**
 * Records in one SQLite file, durable, shared by any number of processes on one machine (not over a network file
 * system). The database lives in a worker thread, so the event loop never waits for the disk.
 *
 * Operations of the same moment share one transaction and one sync. An operation is answered after its commit.
 * Nothing is opened before the first operation; when opening fails, the operations that asked for it are rejected, and
 * the next one tries again. Needs no dependency: `node:sqlite` is part of Node.
 *
 * The file may be the application's own: then `once.transaction` commits its rows and the record together, on a
 * `DatabaseSync` of the event loop's thread. Keep such transactions short: SQLite has one writer at a time.
 */
export function sqliteStore(options: SqliteStoreOptions): TransactionalStore<DatabaseSync> {
  const { path, synchronous = 'full', sweepEveryMs = SWEEP_EVERY_MS_DEFAULT } = options ?? {}
  if (process.getBuiltinModule?.('node:sqlite') === undefined) {
    const message = `sqliteStore needs Node 22.13 or later, which has node:sqlite; this is Node ${process.versions.node}.`
    throw new OncekeyError('config-invalid', message)
  }
  if (typeof path !== 'string' || path === '' || path.includes('\0')) {
    throw new OncekeyError('config-invalid', 'path must name the database file, or be ":memory:".')
  }
  if (synchronous !== 'full' && synchronous !== 'normal') {
    throw new OncekeyError('config-invalid', `synchronous is ${synchronous}; it must be "full" or "normal".`)
  }
  assertDuration('sweepEveryMs', sweepEveryMs)
  return new SqliteStore({ ...options, path, synchronous, sweepEveryMs })
}

const SWEEP_EVERY_MS_DEFAULT = 10_000
/** Rows freed in one step of the background sweep: about a millisecond in which other operations wait. */
const SWEEP_STEP_ROWS = 200
const SWEEP_LIMIT_DEFAULT = 1_000
const LIST_LIMIT_DEFAULT = 100
/** Longer is as good as for ever, and still a time that a Date can show. */
const DURATION_MS_MAX = 1_000 * 365 * 24 * 3_600_000

const NO_LABELS: Labels = Object.freeze({})

class SqliteStore implements TransactionalStore<DatabaseSync> {
  readonly name = 'sqlite'
  readonly #channel: Channel
  readonly #clock: Clock
  /** Only an injected clock stamps the operations here. */
  readonly #now: () => Stamp
  readonly #waiters: Waiters
  readonly #transactions: Transactions
  readonly #path: string
  readonly #sweepEveryMs: number
  #cancelSweep: (() => void) | undefined
  #isClosed = false

  constructor(options: SqliteStoreOptions & { synchronous: 'full' | 'normal'; sweepEveryMs: number }) {
    const { path, synchronous, sweepEveryMs, clock } = options
    const settings = { path: path === ':memory:' ? path : resolvePath(path), synchronous }
    this.#channel = new Channel(settings, () => void this.#waiters.lookAtAll())
    this.#clock = clock ?? systemClock
    this.#now = clock === undefined ? () => null : () => Math.floor(clock.now())
    this.#sweepEveryMs = sweepEveryMs
    this.#waiters = new Waiters(this.#channel, this.#clock, this.#now)
    this.#path = path
    this.#transactions = new Transactions(settings, this.#now)
  }

  claim(request: ClaimRequest): Promise<Claim> {
    const fields = claimFields(request)
    this.#planSweep()
    return this.#channel.submit(['claim', this.#now(), request.id, fields], toClaim)
  }

  settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    const op: Op = ['settle', this.#now(), id, token, settleFields(settlement)]
    return this.#channel.submit(op, this.#wakingWhenTrue(id), settlement.answer.body)
  }

  async transaction(
    request: ClaimRequest,
    work: (tx: DatabaseSync, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd> {
    if (this.#path === ':memory:') {
      throw new OncekeyError(
        'config-invalid',
        'Transactions need a file that the application shares; ":memory:" is private.',
      )
    }
    if (this.#isClosed) throw new OncekeyError('store-closed', 'This SQLite store was closed. Nothing ran.')
    const reply = await this.#transactions.run(request.id, claimFields(request), async (tx, attempt) => {
      const settlement = await work(tx, attempt)
      return settlement && { fields: settleFields(settlement), body: settlement.answer.body }
    })
    if (typeof reply !== 'string') return stateOf(reply)
    if (reply === 'committed') this.#waiters.wake(request.id)
    return { state: reply }
  }

  async release(id: string, token: string): Promise<boolean> {
    return this.#channel.submit(['release', this.#now(), id, token], this.#wakingWhenTrue(id))
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    assertDuration('leaseMs', leaseMs)
    const decode = leaseMs === 0 ? this.#wakingWhenTrue(id) : isTrue
    return this.#channel.submit(['renew', this.#now(), id, token, whole(leaseMs)], decode)
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#channel.submit(['read', this.#now(), id], (reply) => (isRow(reply) ? recordOf(reply) : undefined))
  }

  async list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    const { after = null, limit = LIST_LIMIT_DEFAULT, state = null } = query
    return this.#channel.submit(['list', this.#now(), after, rowCount(limit), state], (reply) =>
      typeof reply === 'object' && reply !== null && 'rows' in reply ? reply.rows.map(recordOf) : [],
    )
  }

  async forget(id: string): Promise<boolean> {
    return this.#channel.submit(['forget', this.#now(), id], this.#wakingWhenTrue(id))
  }

  async redact(id: string): Promise<boolean> {
    return this.#channel.submit(['redact', this.#now(), id], isTrue)
  }

  async sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    return this.#channel.submit(['sweep', this.#now(), rowCount(limit)], Number)
  }

  waitFor(id: string, signal: AbortSignal): Promise<void> {
    return this.#waiters.wait(id, signal)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#cancelSweep?.()
    const closed = this.#channel.close()
    this.#waiters.wakeAll()
    await Promise.all([closed, this.#transactions.close()])
  }

  #wakingWhenTrue(id: string): (reply: Reply) => boolean {
    return (reply) => {
      if (reply === 1) this.#waiters.wake(id)
      return reply === 1
    }
  }

  /** From the first claim on: a process that only reads leaves the sweeping to others. */
  #planSweep(): void {
    if (this.#cancelSweep !== undefined || this.#sweepEveryMs === 0 || this.#isClosed) return
    this.#cancelSweep = this.#clock.schedule(this.#sweepEveryMs, () => {
      void this.#sweepInSteps()
    })
  }

  /** One step goes with one batch, so that other operations come between the steps. */
  async #sweepInSteps(): Promise<void> {
    try {
      while ((await this.sweep(SWEEP_STEP_ROWS)) >= SWEEP_STEP_ROWS);
    } catch {
      // Only space is lost: what ails the file is reported to the operations that need it.
    }
    this.#cancelSweep = undefined
    this.#planSweep()
  }
}

function claimFields(request: ClaimRequest): ClaimFields {
  const { token, fingerprint, leaseMs, unknownTtlMs, takeover, labels } = request
  assertClaimTimes(request)
  const labelsText = labels === undefined || isEmpty(labels) ? null : JSON.stringify(labels)
  return [token, fingerprint, whole(leaseMs), whole(unknownTtlMs), takeover, labelsText]
}

function settleFields(settlement: Settlement): SettleFields {
  assertSettlementTimes(settlement)
  const { outcome, answer, ttlMs, expiredTtlMs } = settlement
  const { status, headers, body } = answer
  const bodyLength = body === null ? -1 : body.length
  return [outcome, whole(ttlMs), whole(expiredTtlMs), status, JSON.stringify(headers), bodyLength]
}

function toClaim(reply: Reply): Claim {
  return isRow(reply) ? stateOf(reply) : { state: 'acquired', attempt: Number(reply) }
}

function isTrue(reply: Reply): boolean {
  return reply === 1
}

function isRow(reply: Reply): reply is Row {
  return Array.isArray(reply)
}

function recordOf(row: Row): StoredRecord {
  const [, id, , , attempt, createdAt, , goneAt, , , , labelsText] = row
  const labels: Labels = labelsText === null ? NO_LABELS : JSON.parse(labelsText)
  return { ...stateOf(row), id: idOfKey(id), attempt, createdAt, goneAt, labels }
}

/** The state at the moment that the worker read the row. */
function stateOf(row: Row): RecordState {
  const [now, , , text, , , leaseUntil, goneAt, outcome, expiresAt, status, , headers, body] = row
  const fingerprint = fromText(text)
  if (outcome === null) {
    if (now < leaseUntil) return { state: 'running', fingerprint, leaseLeftMs: leaseUntil - now }
    return { state: 'unknown', fingerprint, goneInMs: goneAt - now }
  }
  if (expiresAt === null || now >= expiresAt || status === null || headers === null) {
    return { state: 'expired', fingerprint, goneInMs: goneAt - now }
  }
  const answer = { status, headers: JSON.parse(headers), body }
  return { state: 'settled', fingerprint, outcome, answer, expiresInMs: expiresAt - now }
}

function isEmpty(labels: Labels): boolean {
  for (const _ in labels) return false
  return true
}

/** The table counts in whole milliseconds; a part of one counts as one. */
function whole(durationMs: number): number {
  return Math.min(Math.ceil(durationMs), DURATION_MS_MAX)
}

/** The SQL that makes the tables, in order. The names are fixed: they stand beside the application's own. */
export function sqliteMigrations(table?: string): readonly string[] {
  if (table === undefined) return MIGRATIONS
  throw new OncekeyError(
    'config-invalid',
    'The tables of the SQLite store are called oncekey_…, and have no other name.',
  )
}
