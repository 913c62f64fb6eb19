import { extname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { OncekeyError } from '../../error.ts'
import type { Fault, FromWorker, Op, Reply, ToWorker, WorkerSettings } from './wire.ts'

/** Operations in one batch at most. The worker may put several batches into one transaction. */
const BATCH_OPS_MAX = 512
/** A batch takes no further body beyond this; a larger body still travels, in a batch that it starts. */
const BATCH_BYTES_MAX = 4 * 1024 * 1024
/** Room made at first for the bodies of a batch. */
const BATCH_BYTES_MIN = 16 * 1024
/** On their way at once: the worker writes all that have come in one transaction. Beyond it, batches only get larger. */
const BATCHES_SENT_MAX = 3
/** What waits for the worker, at most. Beyond it the disk is too slow for the load, and a longer queue helps nobody. */
export const QUEUE_OPS_MAX = 10_000
export const QUEUE_BYTES_MAX: number = 256 * 1024 * 1024
/** What the worker makes dies at once; left to itself, V8 would give it some 50 MB more for that. */
const YOUNG_MB_MAX = 8
/** After a second crash in a row the worker is not started again at once; the pause doubles with each further one. */
const RESTART_PAUSE_MS_MIN = 50
const RESTART_PAUSE_MS_MAX = 5_000

/**
 * Operations on their way to the worker. What comes while a batch is being written goes together in the next one, and
 * shares its transaction and its sync; an operation that comes alone is sent in the same turn of the event loop.
 * Batches are answered in the order in which they were sent.
 *
 * The worker starts with the first operation. It keeps the process alive only while something waits for it.
 */
export class Channel {
  readonly #settings: WorkerSettings
  readonly #onChanged: () => void
  readonly #queued: Batch[] = []
  #queuedOps = 0
  #queuedBytes = 0
  readonly #sent: Batch[] = []
  #isSendScheduled = false
  #worker: Worker | undefined
  #isKeptAlive = false
  #isWatching = false
  #crashesInARow = 0
  #restartNotBefore = 0
  #onIdle: (() => void) | undefined
  #isClosing = false
  #closed: Promise<void> | undefined

  /** `onChanged` is called when another process may have changed something, while `watch(true)` holds. */
  constructor(settings: WorkerSettings, onChanged: () => void) {
    this.#settings = settings
    this.#onChanged = onChanged
  }

  /** Resolves with what `decode` makes of the reply. The body is copied before this returns. */
  submit<T>(op: Op, decode: (reply: Reply) => T, body: Uint8Array | null = null): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const bodyLength = body === null ? 0 : body.length
      const refusal = this.#refusal(bodyLength)
      if (refusal !== undefined) return reject(refusal)
      let batch = this.#queued.at(-1)
      if (batch === undefined || !batch.hasRoomFor(bodyLength)) {
        batch = new Batch()
        this.#queued.push(batch)
      }
      batch.add(op, body, { take: (reply) => settleWith(reply, decode, resolve, reject), reject })
      this.#queuedOps += 1
      this.#queuedBytes += bodyLength
      this.#scheduleSend()
    })
  }

  /** Whether to hear of other processes' commits. No longer once it is closing: a worker that watches does not end. */
  watch(isWanted: boolean): void {
    if (this.#isWatching === isWanted || this.#isClosing) return
    this.#isWatching = isWanted
    this.#post({ watch: isWanted })
    this.#keepAliveWhileNeeded()
  }

  /** Finishes what was accepted, then ends the worker. */
  close(): Promise<void> {
    this.#isClosing = true
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    if (!this.#isIdle()) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve
      })
    }
    const worker = this.#worker
    if (worker === undefined) return
    this.#keepAliveWhileNeeded()
    const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
    this.#post({ close: true })
    await exited
  }

  #refusal(bodyLength: number): OncekeyError | undefined {
    if (this.#isClosing) {
      return new OncekeyError('store-closed', 'This SQLite store was closed. Nothing was recorded; open another.')
    }
    const isFull = this.#queuedBytes > 0 && this.#queuedBytes + bodyLength > QUEUE_BYTES_MAX
    if (this.#queuedOps < QUEUE_OPS_MAX && !isFull) return undefined
    return new OncekeyError(
      'store-full',
      `${this.#queuedOps} operations with ${this.#queuedBytes} bytes already wait for the SQLite database ` +
        `${this.#settings.path}, as many as are allowed to. Nothing was recorded for this one. The disk does not keep ` +
        'up with the load: send less, or use a faster disk.',
    )
  }

  #scheduleSend(): void {
    if (this.#isSendScheduled || this.#queued.length === 0 || this.#sent.length >= BATCHES_SENT_MAX) return
    this.#isSendScheduled = true
    // After the poll phase: what arrived on other sockets in this same turn goes along.
    setImmediate(this.#send)
  }

  readonly #send = (): void => {
    this.#isSendScheduled = false
    const refusal = this.#worker === undefined ? this.#start() : undefined
    const batch = this.#queued.shift()
    if (batch === undefined) return
    this.#queuedOps -= batch.ops.length
    this.#queuedBytes -= batch.bytesUsed
    if (refusal !== undefined) {
      batch.reject(refusal)
      this.#next()
      return
    }
    const bytes = batch.takeBytes()
    try {
      this.#worker?.postMessage({ ops: batch.ops, bytes } satisfies ToWorker, bytes === null ? [] : [bytes.buffer])
      this.#sent.push(batch)
    } catch (cause) {
      const message =
        'An id, a token or another value of this batch is of no type that can be stored. Nothing was sent.'
      batch.reject(new OncekeyError('config-invalid', message, { cause }))
    }
    this.#next()
  }

  #next(): void {
    this.#scheduleSend()
    this.#keepAliveWhileNeeded()
    if (this.#isIdle()) this.#onIdle?.()
  }

  #isIdle(): boolean {
    return this.#sent.length === 0 && this.#queued.length === 0
  }

  /** Starts a worker, or says why not yet. */
  #start(): OncekeyError | undefined {
    const pauseMs = this.#restartNotBefore - performance.now()
    if (pauseMs > 0) {
      return new OncekeyError(
        'store-unavailable',
        `The SQLite worker ended ${this.#crashesInARow} times in a row; it is started again in ` +
          `${Math.ceil(pauseMs)} ms. Nothing was recorded.`,
        { retryAfterMs: Math.ceil(pauseMs) },
      )
    }
    const resourceLimits = { maxYoungGenerationSizeMb: YOUNG_MB_MAX }
    const worker = new Worker(WORKER_URL, { workerData: this.#settings, name: 'oncekey-sqlite', resourceLimits })
    let cause: unknown
    worker.unref()
    worker.on('error', (error) => {
      cause = error
    })
    worker.on('message', this.#receive)
    worker.on('exit', (exitCode) => this.#ended(exitCode, cause))
    this.#worker = worker
    this.#isKeptAlive = false
    if (this.#isWatching) this.#post({ watch: true })
    return undefined
  }

  readonly #receive = (message: FromWorker): void => {
    if ('changed' in message) {
      this.#onChanged()
      return
    }
    this.#crashesInARow = 0
    for (const replies of message.batches) this.#sent.shift()?.take(replies)
    this.#next()
  }

  #ended(exitCode: number, cause: unknown): void {
    this.#worker = undefined
    if (this.#isClosing && this.#isIdle()) return
    this.#crashesInARow += 1
    const pauseMs = RESTART_PAUSE_MS_MIN * 2 ** (this.#crashesInARow - 2)
    if (this.#crashesInARow > 1) {
      this.#restartNotBefore = performance.now() + Math.min(pauseMs, RESTART_PAUSE_MS_MAX)
    }
    const error = new OncekeyError(
      'store-unavailable',
      `The SQLite worker ended unexpectedly (exit code ${exitCode}). Whether this operation was recorded is not ` +
        'known; asking again with the same token tells. The next operation starts a new worker.',
      { cause },
    )
    for (const batch of this.#sent.splice(0)) batch.reject(error)
    this.#next()
    if (this.#isWatching) this.#onChanged()
  }

  #post(message: ToWorker): void {
    this.#worker?.postMessage(message)
  }

  #keepAliveWhileNeeded(): void {
    const isNeeded = this.#sent.length > 0 || this.#isWatching || this.#isClosing
    if (this.#worker === undefined || this.#isKeptAlive === isNeeded) return
    this.#isKeptAlive = isNeeded
    if (isNeeded) this.#worker.ref()
    else this.#worker.unref()
  }
}

/** Both as source under type stripping and as compiled JavaScript, the worker has this file's own ending. */
const WORKER_URL = new URL(`./worker${extname(new URL(import.meta.url).pathname)}`, import.meta.url)

interface Task {
  readonly take: (reply: Reply) => void
  readonly reject: (error: OncekeyError) => void
}

/** Operations that travel together, and their bodies one behind the other. */
class Batch {
  readonly ops: Op[] = []
  readonly #tasks: Task[] = []
  #bytes: Uint8Array<ArrayBuffer> | null = null
  bytesUsed = 0

  hasRoomFor(bodyLength: number): boolean {
    if (this.ops.length >= BATCH_OPS_MAX) return false
    return this.bytesUsed === 0 || this.bytesUsed + bodyLength <= BATCH_BYTES_MAX
  }

  add(op: Op, body: Uint8Array | null, task: Task): void {
    this.ops.push(op)
    this.#tasks.push(task)
    if (body === null || body.length === 0) return
    const bytesNeeded = this.bytesUsed + body.length
    if (this.#bytes === null || this.#bytes.length < bytesNeeded) {
      const grown = new Uint8Array(Math.max(BATCH_BYTES_MIN, bytesNeeded, 2 * this.bytesUsed))
      if (this.#bytes !== null) grown.set(this.#bytes.subarray(0, this.bytesUsed))
      this.#bytes = grown
    }
    this.#bytes.set(body, this.bytesUsed)
    this.bytesUsed = bytesNeeded
  }

  /** The buffer itself moves to the worker. */
  takeBytes(): Uint8Array<ArrayBuffer> | null {
    const bytes = this.#bytes
    this.#bytes = null
    return bytes
  }

  take(replies: readonly Reply[]): void {
    for (const [index, task] of this.#tasks.entries()) task.take(replies[index] ?? null)
  }

  reject(error: OncekeyError): void {
    for (const task of this.#tasks) task.reject(error)
  }
}

/** A record that cannot be decoded is its own reader's trouble, and nobody else's of the batch. */
function settleWith<T>(
  reply: Reply,
  decode: (reply: Reply) => T,
  resolve: (value: T) => void,
  reject: (error: OncekeyError) => void,
): void {
  if (isFault(reply)) {
    reject(new OncekeyError(reply.fault, reply.message, { cause: reply.cause }))
    return
  }
  try {
    resolve(decode(reply))
  } catch (cause) {
    const message =
      'This record of the SQLite database cannot be read: its headers or labels are not JSON, so something else than ' +
      'oncekey has written to it. Its answer is lost; an operator can forget it.'
    reject(new OncekeyError('store-incompatible', message, { cause }))
  }
}

function isFault(reply: Reply): reply is Fault {
  return typeof reply === 'object' && reply !== null && 'fault' in reply
}
