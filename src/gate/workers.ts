import cluster, { type Worker } from 'node:cluster'
import { channel, subscribe } from 'node:diagnostics_channel'
import { OncekeyError } from '../error.ts'
import type { Gate } from './gate.ts'

export interface WorkersOptions {
  /** How many processes serve the one port. They must share a store that processes can share: any but `memory`. */
  readonly count: number
  /** The module that each of them runs: it calls `startGate` with one and the same port, and then `workerReady`. */
  readonly script: string
  readonly args?: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  /** A worker that ends by itself is replaced, at most so many times within `restartWindowMs`. Default 5. */
  readonly restartsMax?: number
  /** Default 60,000. */
  readonly restartWindowMs?: number
  /** For a worker to become ready; one that takes longer is killed. Stopping is bounded by its gate. Default 40,000. */
  readonly workerMsMax?: number
  /** Hears of every worker that ended by itself, before another takes its place. `how`: its signal or its code. */
  readonly onReplaced?: (pid: number, how: string) => void
}

export interface Workers {
  readonly url: string
  /** Of the workers that are ready. */
  readonly pids: readonly number[]
  /** Settles when the workers are gone: with the reason why they could not be kept running, or without, after `stop()`. */
  readonly ended: Promise<OncekeyError | undefined>
  /** Resolves when so many workers are ready. */
  ready(count: number): Promise<void>
  stop(): Promise<void>
}

/**
 * Several gates in processes of their own on one port, kept running. For the primary process of a cluster. What the
 * workers tell of operations is published here, too, as if it had happened in this process.
 */
export async function startWorkers(options: WorkersOptions): Promise<Workers> {
  const { count, script, args = [] } = options
  if (!Number.isSafeInteger(count) || count < 1 || count > WORKERS_MAX) {
    throw new OncekeyError('config-invalid', `workers is ${String(count)}, but must be from 1 to ${WORKERS_MAX}`)
  }
  cluster.setupPrimary({ exec: script, args: [...args] })
  const group = new Group(options)
  for (let number = 0; number < count; number++) group.fork()
  const failed = await Promise.race([group.ready(count).then(() => undefined), group.ended])
  if (failed) throw failed
  return group
}

/**
 * In a worker, before anything else. A terminal or a service manager signals all processes of a group at once: a worker
 * takes no notice, because the primary, which is signalled, too, tells it when to stop. Until it is ready, that is at once.
 */
export function workerStarts(): void {
  if (hasStarted) return
  hasStarted = true
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => {})
  process.on('message', (message) => {
    if (isWord(message) && message.oncekey === 'stop') stopWorker()
  })
}

let hasStarted = false
let stopWorker = (): void => process.exit(0)

/** In a worker: tells the primary where the gate listens, and stops with it. `close` frees the rest, such as the store. */
export function workerReady(gate: Gate, close: () => Promise<void> = async () => {}): void {
  workerStarts()
  for (const name of CHANNELS) {
    subscribe(name, (event) => tell({ oncekey: 'event', channel: name, event: plain(event) }))
  }
  let isStopping = false
  const stop = async (): Promise<void> => {
    if (isStopping) return
    isStopping = true
    await gate.stop()
    await close()
    process.exit(0)
  }
  stopWorker = () => void stop()
  // The primary is gone: nobody would ever stop this process.
  process.on('disconnect', stopWorker)
  tell({ oncekey: 'ready', url: gate.url, stopMsMax: gate.stopMsMax })
}

/** In a worker that cannot do its work, and whose successors could not either: the primary ends them all, and says why. */
export function workerFailed(message: string): void {
  tell({ oncekey: 'failed', message })
}

const CHANNELS = ['oncekey', 'oncekey:gate'] as const

type Word =
  | { readonly oncekey: 'ready'; readonly url: string; readonly stopMsMax: number }
  | { readonly oncekey: 'failed'; readonly message: string }
  | { readonly oncekey: 'event'; readonly channel: (typeof CHANNELS)[number]; readonly event: object }
  | { readonly oncekey: 'stop' }

function tell(word: Word): void {
  if (process.connected) process.send?.(word)
}

/** Errors do not travel between processes by themselves. */
function plain(event: unknown): object {
  const { error, ...rest } = event as { readonly error?: unknown }
  return error === undefined ? rest : { ...rest, error: error instanceof Error ? error.message : String(error) }
}

function isWord(message: unknown): message is Word {
  return typeof message === 'object' && message !== null && 'oncekey' in message
}

const WORKERS_MAX = 64
const RESTARTS_MAX = 5
const RESTART_WINDOW_MS = 60_000
const WORKER_MS_MAX = 40_000
/** For a worker to close its store, and to end, when its gate has stopped. */
const END_MS_MAX = 10_000

class Group implements Workers {
  readonly ended: Promise<OncekeyError | undefined>
  url = ''
  readonly #options: WorkersOptions
  /** With how long each may take to stop. */
  readonly #workers = new Map<Worker, number>()
  readonly #readyPids = new Set<number>()
  readonly #waiting: Array<() => void> = []
  #restartsAtMs: number[] = []
  #isStopping = false
  #reason: OncekeyError | undefined
  #resolve!: (reason: OncekeyError | undefined) => void

  constructor(options: WorkersOptions) {
    this.#options = options
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve
    })
  }

  get pids(): readonly number[] {
    return [...this.#readyPids]
  }

  async ready(count: number): Promise<void> {
    while (this.#readyPids.size < count) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  async stop(): Promise<void> {
    this.#end(undefined)
    await this.ended
  }

  fork(): void {
    const worker = cluster.fork(this.#options.env)
    this.#workers.set(worker, END_MS_MAX)
    const { workerMsMax = WORKER_MS_MAX } = this.#options
    const late = setTimeout(() => worker.process.kill('SIGKILL'), workerMsMax)
    worker.on('message', (message) => {
      if (!isWord(message)) return
      if (message.oncekey === 'event') return channel(message.channel).publish(message.event)
      if (message.oncekey === 'failed') return this.#end(new OncekeyError('config-invalid', message.message))
      if (message.oncekey !== 'ready') return
      clearTimeout(late)
      this.#workers.set(worker, message.stopMsMax + END_MS_MAX)
      this.url = message.url
      this.#readyPids.add(worker.process.pid as number)
      for (const wake of this.#waiting.splice(0)) wake()
    })
    worker.on('error', () => {})
    worker.on('exit', (code, signal) => {
      clearTimeout(late)
      this.#workers.delete(worker)
      const pid = worker.process.pid as number
      this.#replace(this.#readyPids.delete(pid), pid, signal ?? `code ${code}`)
    })
  }

  #replace(wasReady: boolean, pid: number, how: string): void {
    if (this.#isStopping) {
      if (this.#workers.size === 0) this.#resolve(this.#reason)
      return
    }
    const { restartsMax = RESTARTS_MAX, restartWindowMs = RESTART_WINDOW_MS } = this.#options
    const nowMs = performance.now()
    this.#restartsAtMs = this.#restartsAtMs.filter((atMs) => nowMs - atMs < restartWindowMs)
    // One that never came to be ready will not do better the next time.
    if ((this.url === '' && !wasReady) || this.#restartsAtMs.length >= restartsMax) {
      const times = this.#restartsAtMs.length
      return this.#end(
        new OncekeyError(
          'config-invalid',
          `A worker of the gate ended (${how}) after ${times} restarts within ${restartWindowMs} ms, so the gate was stopped. Its own output above says why.`,
        ),
      )
    }
    this.#restartsAtMs.push(nowMs)
    this.#options.onReplaced?.(pid, how)
    this.fork()
  }

  #end(reason: OncekeyError | undefined): void {
    if (this.#isStopping) return
    this.#isStopping = true
    this.#reason = reason
    if (this.#workers.size === 0) return this.#resolve(reason)
    for (const [worker, stopMsMax] of this.#workers) {
      const late = setTimeout(() => worker.process.kill('SIGKILL'), stopMsMax)
      worker.on('exit', () => clearTimeout(late))
      if (worker.isConnected()) worker.send({ oncekey: 'stop' } satisfies Word)
      else worker.process.kill('SIGKILL')
    }
  }
}
