import { statSync } from 'node:fs'
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { faultOf, isHandleGood, isOfOneOperation, SqliteFault } from './faults.ts'
import { MUST_WRITE, Records } from './records.ts'
import { openDatabase, retryWhileBusy, rollback } from './schema.ts'
import type { FromWorker, Op, Reply, ToWorker, WorkerSettings } from './wire.ts'

/** How often the file is looked at for commits of other processes, and only while somebody waits for one. */
const WATCH_EVERY_MS = 5

/** Operations in one transaction: a batch more is taken as long as there are fewer. */
const TRANSACTION_OPS_MAX = 512

const NO_BYTES = new Uint8Array(0)

type Batch = Extract<ToWorker, { readonly ops: readonly Op[] }>
type Body = Uint8Array | null

/** The batches that share one transaction. */
class Gathered {
  readonly ops: Op[] = []
  /** Of each operation. */
  readonly bodies: Body[] = []
  readonly #ends: number[] = []

  get isFull(): boolean {
    return this.ops.length >= TRANSACTION_OPS_MAX
  }

  add({ ops, bytes }: Batch): void {
    let offset = 0
    for (const op of ops) {
      const bodyLength = op[0] === 'settle' ? op[4][5] : -1
      this.ops.push(op)
      this.bodies.push(bodyLength < 0 ? null : (bytes ?? NO_BYTES).subarray(offset, offset + bodyLength))
      offset += Math.max(0, bodyLength)
    }
    this.#ends.push(this.ops.length)
  }

  /** The replies of each batch. */
  split(replies: readonly Reply[]): ReadonlyArray<readonly Reply[]> {
    return this.#ends.map((end, index) => replies.slice(this.#ends[index - 1] ?? 0, end))
  }
}

interface Open {
  readonly db: DatabaseSync
  readonly records: Records
  readonly begin: StatementSync
  readonly beginImmediate: StatementSync
  readonly commit: StatementSync
  readonly inode: string
}

/** One database handle, and the batches that run on it. It opens on the first batch, and again after a failure. */
class Ledger {
  readonly #settings: WorkerSettings
  #open: Open | undefined

  constructor(settings: WorkerSettings) {
    this.#settings = settings
  }

  /** Answers every operation, in order. All that they changed is on disk when this returns. */
  run({ ops, bodies }: Gathered): readonly Reply[] {
    const replies: Reply[] = []
    try {
      const open = this.#opened()
      retryWhileBusy(() => this.#readPart(open, ops, replies))
      if (replies.length < ops.length) this.#writePart(open, ops, bodies, replies)
    } catch (error) {
      const fault = faultOf(error, this.#settings.path)
      while (replies.length < ops.length) replies.push(fault)
      if (!isHandleGood(error)) this.close()
    }
    return replies
  }

  /** A number that changes when another connection has committed; undefined when there is no telling. */
  dataVersion(): unknown {
    try {
      return this.#opened().db.prepare('PRAGMA data_version').get()?.data_version
    } catch {
      return undefined
    }
  }

  close(): void {
    const db = this.#open?.db
    this.#open = undefined
    try {
      db?.exec('PRAGMA wal_checkpoint(TRUNCATE)')
    } catch {
      // The log is as durable as the file: whoever opens it next reads it.
    }
    try {
      db?.close()
    } catch {
      // Nothing is lost: every reply was sent after its commit.
    }
  }

  /** The leading operations that change nothing need neither the write lock nor a sync. */
  #readPart({ records, begin, commit }: Open, ops: readonly Op[], replies: Reply[]): void {
    const now = Date.now()
    let hasBegun = false
    replies.length = 0
    try {
      for (const op of ops) {
        const reply = records.tryRead(op, op[1] ?? now)
        if (reply === MUST_WRITE) return
        replies.push(reply)
        if (hasBegun || ops.length === 1) continue
        // When the first did not have to write, others may not have to either: one snapshot for all of them is cheaper.
        begin.run()
        hasBegun = true
      }
    } finally {
      if (hasBegun) commit.run()
    }
  }

  #writePart(open: Open, ops: readonly Op[], bodies: readonly Body[], replies: Reply[]): void {
    const { db, records, beginImmediate, commit } = open
    retryWhileBusy(() => beginImmediate.run())
    const answered = replies.length
    try {
      // Read once the lock is held: waiting for it may have taken long.
      const now = Date.now()
      for (let at = answered; at < ops.length; at++) {
        const op = ops[at] as Op
        replies.push(this.#writeOne(records, op, op[1] ?? now, bodies[at] ?? null))
      }
      commit.run()
    } catch (error) {
      replies.length = answered
      rollback(db)
      throw error
    }
  }

  #writeOne(records: Records, op: Op, now: number, body: Body): Reply {
    try {
      return records.write(op, now, body)
    } catch (error) {
      if (!isOfOneOperation(error)) throw error
      return faultOf(error, this.#settings.path)
    }
  }

  #opened(): Open {
    const { path, synchronous } = this.#settings
    if (this.#open !== undefined) {
      if (this.#open.inode === inodeOf(path)) return this.#open
      // Writes to a file that has lost its name would be acknowledged, and then be seen by nobody.
      this.close()
      throw new SqliteFault(
        'store-unavailable',
        `The SQLite database ${path} was moved, replaced or deleted while it was in use. Nothing of this batch was ` +
          'recorded, and records of the file that is gone are not known any more. The next operation opens the file ' +
          'that is there now, or makes a new one.',
      )
    }
    const db = openDatabase(path, synchronous)
    this.#open = {
      db,
      records: new Records(db),
      begin: db.prepare('BEGIN'),
      beginImmediate: db.prepare('BEGIN IMMEDIATE'),
      commit: db.prepare('COMMIT'),
      inode: inodeOf(path),
    }
    return this.#open
  }
}

function inodeOf(path: string): string {
  if (path === ':memory:') return path
  const stats = statSync(path, { throwIfNoEntry: false })
  return stats === undefined ? '' : `${stats.dev}:${stats.ino}`
}

function serve(port: NonNullable<typeof parentPort>): void {
  const ledger = new Ledger(workerData as WorkerSettings)
  const post = (message: FromWorker): void => port.postMessage(message)
  let watching: NodeJS.Timeout | undefined
  let seen: unknown
  let isClosed = false

  const look = (): void => {
    const version = ledger.dataVersion()
    if (version !== undefined && version === seen) return
    seen = version
    post({ changed: true })
  }

  const serveBatches = (first: Batch): void => {
    const gathered = new Gathered()
    let next: ToWorker | undefined = first
    while (next !== undefined && 'ops' in next) {
      gathered.add(next)
      // What has come while the last transaction was written is waiting here.
      next = gathered.isFull ? undefined : receiveMessageOnPort(port)?.message
    }
    post({ batches: gathered.split(ledger.run(gathered)) })
    if (next !== undefined) receive(next)
  }

  const receive = (message: ToWorker): void => {
    // What was already on its way may still come.
    if (isClosed) return
    if ('ops' in message) {
      serveBatches(message)
    } else if ('watch' in message) {
      clearInterval(watching)
      seen = message.watch ? ledger.dataVersion() : undefined
      watching = message.watch ? setInterval(look, WATCH_EVERY_MS) : undefined
    } else {
      isClosed = true
      clearInterval(watching)
      ledger.close()
      port.close()
    }
  }

  port.on('message', receive)
}

if (parentPort !== null) serve(parentPort)
