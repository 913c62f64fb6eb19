import type { IncomingMessage, OutgoingHttpHeader, ServerResponse } from 'node:http'
import type { Done } from '../execution.ts'
import { type Linked, LinkedList } from '../linked-list.ts'
import type { Answer } from '../store.ts'
import { hasNoBody } from './bytes.ts'
import type { CaptureLimits } from './capture-limits.ts'
import { declaredEnd } from './declared-outcome.ts'
import { checkChunk, checkHeader, checkStatus, flatHeaders, type Headers } from './node-arguments.ts'

/**
 * Watches one response at the level of `writeHead`, `write` and `end`, where every way of answering comes out.
 *
 * An answer that is made by one `end()` is held back until `send()`: the client learns nothing that is not recorded.
 * One that is streamed goes out as it is written, and only its end is held back. To the handler both look sent.
 */
export class NodeCapture implements Linked<NodeCapture> {
  isListed = false
  before: NodeCapture | undefined
  after: NodeCapture | undefined
  /** Resolves when the handler has ended its answer, or the answer can no longer be ended. */
  readonly done: Promise<Done>
  readonly #incoming: IncomingMessage
  readonly #response: CapturedResponse
  readonly #limits: CaptureLimits
  readonly #methods: Pick<ServerResponse, 'writeHead' | 'write' | 'end' | 'flushHeaders'>
  readonly #socketBytes: number
  #resolve!: (done: Done) => void
  #mode: Mode = 'gathering'
  #head: Head | undefined
  #chunks: Uint8Array[] = []
  #bytes = 0
  #endArgs: unknown[] = []
  #status = 0
  #statusMessage = ''
  #keptAtStart: Array<readonly [string, string]> | undefined
  readonly #outlivesClient: boolean

  /** `outlivesClient`: the handler ends its answer even when the client leaves in the middle of it. */
  constructor(incoming: IncomingMessage, response: ServerResponse, limits: CaptureLimits, outlivesClient = false) {
    const res = response as CapturedResponse
    this.#incoming = incoming
    this.#response = res
    this.#limits = limits
    this.#outlivesClient = outlivesClient
    this.#socketBytes = incoming.socket.bytesWritten
    this.#methods = { writeHead: res.writeHead, write: res.write, end: res.end, flushHeaders: res.flushHeaders }
    this.done = new Promise((resolve) => {
      this.#resolve = resolve
    })
    res[CAPTURE] = this
    res.writeHead = captureWriteHead
    res.write = captureWrite
    res.end = captureEnd
    res.flushHeaders = captureFlushHeaders
    onClosed(incoming, this)
  }

  /** Adds a header to an answer that has not gone out yet; one that is streaming cannot be marked any more. */
  mark(name: string, value: string): void {
    if (this.#reallyStarted) return
    this.#pretend(false)
    this.#response.setHeader(name, value)
    this.#pretend(true)
  }

  /** Lets the held end of the answer go out. */
  send(): void {
    const res = this.#response
    if (this.#mode !== 'held') return
    this.#pretend(false)
    // What a handler changed after its end() was never part of the answer.
    res.statusCode = this.#status
    res.statusMessage = this.#statusMessage
    this.#passHead('sent')
    Reflect.apply(this.#methods.end, res, this.#endArgs)
  }

  /**
   * While an answer is held it looks sent and ended: so `headersSent`, `writableEnded`, a late header, a late write and
   * a second end are all what they are without us. Not `finished`: by that mark `server.close()` tells idle connections
   * from those that still owe an answer.
   */
  #pretend(held: boolean): void {
    const res = this.#response as unknown as { _header: string | null }
    if (held && res._header === null) res._header = HELD
    if (!held && res._header === HELD) res._header = null
    if (held && this.#mode === 'held') Object.defineProperty(res, 'writableEnded', ENDED)
  }

  /** Node's own answer to a write or an end after the end. */
  #afterEnd(method: 'write' | 'end', args: unknown[]): unknown {
    const res = this.#response as { finished: boolean }
    const before = res.finished
    res.finished = true
    try {
      return Reflect.apply(this.#methods[method], res, args)
    } finally {
      res.finished = before
    }
  }

  get #reallyStarted(): boolean {
    const { _header } = this.#response as unknown as { _header: string | null }
    return _header !== null && _header !== HELD
  }

  writeHead(args: unknown[]): ServerResponse {
    // Node calls writeHead itself when the first byte goes out.
    if (this.#mode !== 'gathering' && this.#mode !== 'absorbing') {
      return Reflect.apply(this.#methods.writeHead, this.#response, args)
    }
    // Node's own error.
    if (this.#head) return Reflect.apply(this.#methods.writeHead, this.#response, args)
    const [status, message, headers] = args as [number, string | Headers | undefined, Headers | undefined]
    const reason = typeof message === 'string' ? message : undefined
    const given = (typeof message === 'string' ? headers : (message ?? headers)) ?? undefined
    checkStatus(status)
    for (const [name, value] of flatHeaders(given)) checkHeader(name, value)
    this.#head = { args, headers: given }
    this.#response.statusCode = status
    if (reason !== undefined) this.#response.statusMessage = reason
    this.#pretend(true)
    return this.#response
  }

  flushHeaders(): void {
    if (this.#mode === 'gathering') this.#passHead('streaming')
    if (this.#mode === 'streaming') this.#methods.flushHeaders.call(this.#response)
  }

  write(args: unknown[]): boolean {
    if (this.#mode === 'absorbing') {
      this.#keep(args[0], args[1])
      const callback = args.find((arg) => typeof arg === 'function')
      if (callback) process.nextTick(callback as () => void)
      return true
    }
    if (this.#mode === 'held') return this.#afterEnd('write', args) as boolean
    if (this.#mode === 'gathering') this.#passHead('streaming')
    const goesOn = Reflect.apply(this.#methods.write, this.#response, args)
    // After Node has taken it: what Node refuses was not written.
    if (this.#mode === 'streaming') this.#keep(args[0], args[1])
    return goesOn
  }

  end(args: unknown[]): ServerResponse {
    if (this.#mode === 'held') return this.#afterEnd('end', args) as ServerResponse
    if (this.#mode === 'sent') return Reflect.apply(this.#methods.end, this.#response, args)
    checkStatus(this.#response.statusCode)
    if (typeof args[0] !== 'function') {
      checkChunk(args[0])
      this.#keep(args[0], args[1])
    }
    closed(this.#incoming, this)
    this.#endArgs = args
    this.#status = this.#response.statusCode
    this.#statusMessage = this.#response.statusMessage
    // Before anything else may look at the response: the answer is complete.
    const answer = this.#answer()
    this.#mode = 'held'
    this.#pretend(true)
    this.#resolve(declaredEnd(this.#incoming) ?? { kind: 'answered', answer })
    return this.#response
  }

  /** The answer reaches the client as it is, but its body is not kept: as if it were larger than the contract allows. */
  dropBody(): void {
    this.#bytes = Number.POSITIVE_INFINITY
    this.#chunks = []
  }

  close(): void {
    if (this.#mode !== 'gathering' && this.#mode !== 'streaming') return
    const end = declaredEnd(this.#incoming)
    if (end) this.#resolve(end)
    else if (this.#outlivesClient || (this.#mode === 'gathering' && this.#clientWentAway())) this.#mode = 'absorbing'
    else this.#resolve({ kind: 'broken' })
  }

  /**
   * A client that hangs up while the handler still works changes nothing: the answer is recorded when it comes. Only a
   * connection that ended without the client's doing, and without an error, was destroyed by the handler itself. One
   * that the handler took for itself and the client then closed looks the same as the first: that is safe, and lasts
   * until `lease.handlerMsMax`, unless bytes went out that are not ours.
   */
  #clientWentAway(): boolean {
    const { socket } = this.#incoming
    const { code } = (socket.errored ?? {}) as NodeJS.ErrnoException
    if (code !== undefined && code !== 'ERR_STREAM_PREMATURE_CLOSE') return true
    return socket.readableEnded && !this.#hijacked(socket)
  }

  /** A pipelined neighbour, an early hint or Node's own error page write to the socket, too: those prove nothing. */
  #hijacked(socket: IncomingMessage['socket']): boolean {
    const isAlone = (socket as WatchedSocket)[OPEN]?.size === 1
    return isAlone && socket.bytesWritten > this.#socketBytes && !(this.#response as { _sent100?: boolean })._sent100
  }

  /** From here on Node's own methods do the work. */
  #passHead(mode: Mode): void {
    const held = this.#head
    // Now, before an outer layer adds its own: what it adds to this answer it will add to a replay, too.
    if (mode === 'streaming') this.#keptAtStart = this.#keptHeaders()
    this.#pretend(false)
    this.#mode = mode
    this.#head = undefined
    if (held && !this.#reallyStarted) Reflect.apply(this.#methods.writeHead, this.#response, held.args)
  }

  #keep(chunk: unknown, encoding: unknown): void {
    if (chunk === undefined || chunk === null || this.#bytes > this.#limits.contract.limits.answerBytesMax) return
    const bytes =
      typeof chunk === 'string'
        ? Buffer.from(chunk, typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8')
        : // A copy: the handler may use its buffer again.
          Buffer.from(chunk as Uint8Array)
    this.#bytes += bytes.length
    if (this.#bytes > this.#limits.contract.limits.answerBytesMax) this.#chunks = []
    else this.#chunks.push(bytes)
  }

  #answer(): Answer {
    const status = this.#response.statusCode
    const bodiless = hasNoBody(status) || this.#incoming.method === 'HEAD'
    return { status, headers: this.#keptAtStart ?? this.#keptHeaders(), body: bodiless ? EMPTY : this.#body() }
  }

  #body(): Uint8Array | null {
    if (this.#bytes > this.#limits.contract.limits.answerBytesMax) return null
    const [first] = this.#chunks
    return this.#chunks.length === 1 && first ? first : Buffer.concat(this.#chunks)
  }

  #keptHeaders(): Array<readonly [string, string]> {
    const kept: Array<readonly [string, string]> = []
    const isHead = this.#incoming.method === 'HEAD'
    for (const [name, value] of this.#headers()) {
      // HEAD has no body to count, so the number itself is the answer.
      if (!this.#limits.keepsHeader(name) && !(isHead && name.toLowerCase() === 'content-length')) continue
      if (Array.isArray(value)) for (const item of value) kept.push([name, String(item)])
      else if (value !== undefined) kept.push([name, String(value)])
    }
    return kept
  }

  /** As Node will merge them: an object overwrites in place, a list comes after what it does not replace. */
  #headers(): ReadonlyArray<readonly [string, OutgoingHttpHeader | undefined]> {
    const given = flatHeaders(this.#head?.headers)
    const set = rawHeaderNames(this.#response).map((name) => [name, this.#response.getHeader(name)] as const)
    if (given.length === 0) return set
    if (set.length === 0) return given
    const names = new Map(given.map((pair) => [pair[0].toLowerCase(), pair]))
    if (Array.isArray(this.#head?.headers)) return [...set.filter(([name]) => !names.has(name.toLowerCase())), ...given]
    const inPlace = set.map((pair) => names.get(pair[0].toLowerCase()) ?? pair)
    return [...inPlace, ...given.filter((pair) => !inPlace.includes(pair))]
  }
}

/** absorbing: as gathering, but the client has left. gathering: nothing has gone out. streaming: writes go out as they come. held: ended, waiting for `send`. */
type Mode = 'gathering' | 'absorbing' | 'streaming' | 'held' | 'sent'

interface Head {
  readonly args: unknown[]
  readonly headers: Headers | undefined
}

/** Frees what is kept of the body of this answer, and keeps no more of it. */
export function dropKeptBody(response: ServerResponse): void {
  ;(response as CapturedResponse)[CAPTURE]?.dropBody()
}

const EMPTY = new Uint8Array()
const CAPTURE: unique symbol = Symbol('oncekey.capture')
type CapturedResponse = ServerResponse & { [CAPTURE]?: NodeCapture }

// One function each for all responses: a closure for every request costs more than the capture itself.
function capture(response: CapturedResponse): NodeCapture {
  return response[CAPTURE] as NodeCapture
}
function captureWriteHead(this: ServerResponse, ...args: unknown[]): ServerResponse {
  return capture(this).writeHead(args)
}
function captureWrite(this: ServerResponse, ...args: unknown[]): boolean {
  return capture(this).write(args)
}
function captureEnd(this: ServerResponse, ...args: unknown[]): ServerResponse {
  return capture(this).end(args)
}
function captureFlushHeaders(this: ServerResponse): void {
  capture(this).flushHeaders()
}

/**
 * Tells the capture when its connection ends before its answer does. A connection serves many requests, so it is
 * watched once, and each request only enters its name.
 */
function onClosed(incoming: IncomingMessage, entering: NodeCapture): void {
  const socket = incoming.socket as WatchedSocket
  if (socket[OPEN] === undefined) {
    socket[OPEN] = new LinkedList()
    socket.on('close', socketClosed)
  }
  socket[OPEN].add(entering)
}

function closed({ socket }: IncomingMessage, leaving: NodeCapture): void {
  ;(socket as WatchedSocket)[OPEN]?.delete(leaving)
}

function socketClosed(this: WatchedSocket): void {
  for (const open of this[OPEN]?.members() ?? []) open.close()
}

const OPEN: unique symbol = Symbol('oncekey.open')
type WatchedSocket = IncomingMessage['socket'] & { [OPEN]?: LinkedList<NodeCapture> }

const HELD = 'held'
const ENDED: PropertyDescriptor = { configurable: true, value: true }

function rawHeaderNames(response: ServerResponse): string[] {
  return (response as unknown as { getRawHeaderNames(): string[] }).getRawHeaderNames()
}
