/** The load generator, in a process of its own: a closed loop of keep-alive connections on bare sockets. */
import { connect, type Socket } from 'node:net'
import { type ChildFailure, reply } from './child.ts'
import { RequestBytes, ResponseScanner, statusOf } from './wire.ts'

export interface LoadAsk {
  readonly ask: 'load'
  readonly port: number
  readonly connections: number
  readonly keyHead: string
  /** How many keys there are; they are used in turn, again and again. 0: every request has a new one. */
  readonly keys: number
  /** Ends after this many requests, if the time is not over before. 0: no limit. */
  readonly requestsMax: number
  /** Sent but not measured, while connections and caches come to speed. */
  readonly leadInMs: number
  readonly measureMs: number
}

export interface LoadResult {
  /** Completed in the measured time. */
  readonly requests: number
  readonly measuredMs: number
  /** All that were sent, lead-in and end included. */
  readonly requestsTotal: number
  /** Answers that were not 2xx, and connections that broke. */
  readonly wrong: number
  readonly wrongExample: string
  readonly p50Ms: number
  readonly p95Ms: number
  readonly p99Ms: number
  readonly maxMs: number
  readonly cpuUs: number
}

const RECEIVE_BYTES = 16 * 1024
const RESPONSE_BYTES_MAX = 1024 * 1024
const SAMPLES_MAX = 2_000_000
const samplesMs = new Float32Array(SAMPLES_MAX)

class Load {
  readonly #ask: LoadAsk
  readonly #scanner = new ResponseScanner()
  readonly #done: (result: LoadResult) => void
  readonly #cpuStart = process.cpuUsage()
  readonly #measureFrom: number
  readonly #measureUntil: number
  #nextKey = 0
  #sent = 0
  #open: number
  #measured = 0
  #lastAt = 0
  #wrong = 0
  #wrongExample = ''

  constructor(ask: LoadAsk, done: (result: LoadResult) => void) {
    this.#ask = ask
    this.#done = done
    this.#open = ask.connections
    this.#measureFrom = performance.now() + ask.leadInMs
    this.#measureUntil = this.#measureFrom + ask.measureMs
    for (let count = 0; count < ask.connections; count++) this.#connect()
  }

  #connect(): void {
    const request = new RequestBytes(this.#ask.keyHead)
    let sentAt = 0
    let received: Buffer | undefined
    let isWaiting = false
    const next = (now: number): void => {
      const { requestsMax, keys } = this.#ask
      if (now >= this.#measureUntil || (requestsMax > 0 && this.#sent >= requestsMax)) {
        socket.end()
        return
      }
      request.setKey(keys === 0 ? this.#nextKey : this.#nextKey % keys)
      this.#nextKey++
      this.#sent++
      isWaiting = true
      sentAt = now
      socket.write(request.bytes)
    }
    const receive = (size: number, chunk: Buffer): boolean => {
      let bytes = chunk
      let length = size
      if (received !== undefined) {
        bytes = Buffer.concat([received, chunk.subarray(0, size)])
        length = bytes.length
      }
      const end = this.#scanner.scan(bytes, length)
      if (end === 0) {
        received = Buffer.from(bytes.subarray(0, length))
        if (length > RESPONSE_BYTES_MAX) socket.destroy()
        return true
      }
      received = undefined
      isWaiting = false
      const now = performance.now()
      this.#count(bytes, end, now - sentAt, now)
      next(now)
      return true
    }
    const socket: Socket = connect({
      host: '127.0.0.1',
      port: this.#ask.port,
      noDelay: true,
      onread: {
        buffer: Buffer.allocUnsafe(RECEIVE_BYTES),
        callback: receive as (size: number, buffer: Uint8Array) => boolean,
      },
    })
    socket.on('connect', () => next(performance.now()))
    socket.on('error', (error) => this.#fault(error.message))
    socket.on('close', () => {
      if (isWaiting) this.#fault('the connection was closed before the answer was whole')
      if (--this.#open === 0) this.#finish()
    })
  }

  #count(bytes: Buffer, end: number, latencyMs: number, now: number): void {
    const status = statusOf(bytes)
    if (status < 200 || status > 299) this.#fault(`${status} ${bytes.toString('latin1', 0, end).split('\r\n\r\n')[1]}`)
    if (now < this.#measureFrom || now >= this.#measureUntil || this.#measured >= SAMPLES_MAX) return
    samplesMs[this.#measured++] = latencyMs
    this.#lastAt = now
  }

  #fault(example: string): void {
    this.#wrong++
    this.#wrongExample ||= example.slice(0, 200)
  }

  #finish(): void {
    const sorted = samplesMs.subarray(0, this.#measured).sort()
    const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0
    const { user, system } = process.cpuUsage(this.#cpuStart)
    const isCut = this.#ask.requestsMax > 0
    this.#done({
      requests: this.#measured,
      measuredMs: isCut ? Math.max(0, this.#lastAt - this.#measureFrom) : this.#ask.measureMs,
      requestsTotal: this.#sent,
      wrong: this.#wrong,
      wrongExample: this.#wrongExample,
      p50Ms: at(0.5),
      p95Ms: at(0.95),
      p99Ms: at(0.99),
      maxMs: at(1),
      cpuUs: user + system,
    })
  }
}

process.on('disconnect', () => process.exit(0))
process.on('message', (message: LoadAsk | { readonly ask: 'close' }) => {
  if (message.ask === 'close') process.exit(0)
  try {
    new Load(message, reply)
  } catch (error) {
    reply({ failure: String(error) } satisfies ChildFailure)
  }
})
