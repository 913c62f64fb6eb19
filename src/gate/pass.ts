import type { ClientRequest, IncomingMessage } from 'node:http'
import { publishGate } from './events.ts'
import type { Exchange } from './exchange.ts'
import { Forward, pairs, passHints } from './forward.ts'
import { answerHeaders, checkAnswerStatus, type HeadRules, reasonPhrase, upstreamHeaders } from './head.ts'
import { sendProblem, UPSTREAM_BROKEN, UPSTREAM_REFUSED, UPSTREAM_TIMEOUT } from './problems.ts'
import type { Upstream } from './upstream.ts'

/** Sees an exchange pass by, and changes nothing of it. */
export interface Observer {
  requestChunk(chunk: Buffer): void
  requestEnd(): void
  answerStart(status: number): void
  answerChunk(chunk: Buffer): void
  answerEnd(): void
  /** `sent`: whether a byte of the request had gone out. */
  broken(sent: boolean): void
}

export interface PassOptions {
  readonly rules: HeadRules
  readonly timeoutMs: number
  readonly expectsContinue: boolean
  readonly observer?: Observer | undefined
}

/** What is not covered: streamed in both directions, each at the pace of its slower side, and never held. */
export function passThrough(exchange: Exchange, upstream: Upstream, options: PassOptions): void {
  const { incoming } = exchange
  const { method = 'GET', url = '/', headers } = incoming
  const hasBody = headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
  if (!hasBody && method !== 'HEAD' && url !== '*' && !options.expectsContinue && !options.observer) {
    // A head and nothing more: the faster client will do.
    const forward = new Forward(exchange, undefined)
    return upstream.dispatch(method, url, upstreamHeaders(incoming, options.rules), null, options.timeoutMs, forward)
  }
  new Pass(exchange, upstream, options)
}

class Pass {
  readonly #exchange: Exchange
  readonly #request: ClientRequest
  readonly #observer: Observer | undefined
  #connected = false
  #timedOut = false
  #answer: IncomingMessage | undefined
  #isOver = false
  #isSending = false

  constructor(exchange: Exchange, upstream: Upstream, options: PassOptions) {
    const { incoming } = exchange
    this.#exchange = exchange
    this.#observer = options.observer
    const { method = 'GET', url = '/' } = incoming
    const request = upstream.request(method, url, streamHeaders(incoming, options))
    this.#request = request
    exchange.hold()
    exchange.cut = () => request.destroy()
    exchange.clientGone = () => {
      if (this.#observer === undefined || !incoming.complete) request.destroy()
    }
    this.#watchConnection(upstream.connectMsMax)
    request.setTimeout(options.timeoutMs, () => {
      this.#timedOut = true
      request.destroy()
    })
    request.on('response', (answer) => this.#try(() => this.#receive(answer)))
    request.on('information', ({ statusCode, headers }) => {
      const link = headers.link as string | string[] | undefined
      if (statusCode === 103 && link !== undefined) passHints(exchange, link)
    })
    request.on('error', (error) => this.#fail(error))
    request.on('close', () => this.#fail(new Error('The connection to the upstream was closed.')))
    if (options.expectsContinue) this.#waitForContinue()
    else this.#send()
  }

  /** What cannot be passed on, because Node would not write it, is as good as broken off. */
  #try(work: () => void): void {
    try {
      work()
    } catch (error) {
      this.#fail(error as Error)
      this.#request.destroy()
    }
  }

  #watchConnection(connectMsMax: number): void {
    this.#request.on('socket', (socket) => {
      if (!socket.connecting) {
        this.#connected = true
        return
      }
      const timer = setTimeout(() => this.#request.destroy(), connectMsMax)
      socket.once('connect', () => {
        this.#connected = true
        clearTimeout(timer)
      })
      socket.once('close', () => clearTimeout(timer))
    })
  }

  /** The upstream decides whether it wants the body; one that says nothing gets it after a moment, as the RFC asks. */
  #waitForContinue(): void {
    const go = (): void => {
      clearTimeout(timer)
      if (this.#isSending || this.#answer || this.#isOver) return
      this.#exchange.response.writeContinue()
      this.#send()
    }
    const timer = setTimeout(go, CONTINUE_MS_MAX)
    this.#request.on('continue', go)
    this.#request.on('close', () => clearTimeout(timer))
    this.#request.flushHeaders()
  }

  #send(): void {
    this.#isSending = true
    const { incoming } = this.#exchange
    const observer = this.#observer
    if (observer) incoming.on('data', (chunk: Buffer) => observer.requestChunk(chunk))
    incoming.on('end', () => {
      observer?.requestEnd()
      if (this.#request.destroyed) return
      this.#try(() => {
        const trailers = answerHeaders(incoming.rawTrailers)
        if (trailers.length > 0) this.#request.addTrailers(pairs(trailers))
        this.#request.end()
      })
    })
    incoming.on('error', () => this.#request.destroy())
    incoming.pipe(this.#request, { end: false })
  }

  #receive(answer: IncomingMessage): void {
    const { incoming, response } = this.#exchange
    const { statusCode = 0, statusMessage } = answer
    checkAnswerStatus(statusCode)
    // What is left of the request will not be waited for.
    if (!incoming.complete) response.shouldKeepAlive = false
    const headers = answerHeaders(answer.rawHeaders)
    if (answer.headers.trailer !== undefined) headers.push('Trailer', answer.headers.trailer)
    if (!response.destroyed) {
      response.writeHead(statusCode, reasonPhrase(statusCode, statusMessage), headers)
      if (answer.headers['content-length'] === undefined) response.flushHeaders()
    }
    this.#answer = answer
    const observer = this.#observer
    observer?.answerStart(statusCode)
    if (observer) answer.on('data', (chunk: Buffer) => observer.answerChunk(chunk))
    answer.on('end', () => this.#try(() => this.#finish(answer)))
    answer.on('error', (error) => this.#fail(error))
    if (response.destroyed) answer.resume()
    else answer.pipe(response, { end: false })
    if (observer) this.#exchange.clientGone = () => answer.resume()
  }

  #finish(answer: IncomingMessage): void {
    if (this.#isOver) return
    const { incoming, response, startedMs } = this.#exchange
    const trailers = answerHeaders(answer.rawTrailers)
    if (trailers.length > 0 && !response.destroyed) response.addTrailers(pairs(trailers))
    response.end()
    this.#isOver = true
    this.#observer?.answerEnd()
    if (!incoming.complete) this.#request.destroy()
    publishGate({
      type: 'forwarded',
      status: answer.statusCode ?? 0,
      covered: false,
      tookMs: performance.now() - startedMs,
    })
    this.#exchange.letGo()
  }

  #fail(error: Error): void {
    if (this.#isOver) return
    this.#isOver = true
    const { incoming, response } = this.#exchange
    incoming.unpipe(this.#request)
    this.#observer?.broken(this.#connected)
    const timedOut = this.#timedOut
    if (this.#connected) publishGate({ type: 'upstream-broken', covered: false, error, timedOut })
    else publishGate({ type: 'upstream-refused', covered: false, error })
    if (this.#answer) response.destroy()
    else {
      if (!incoming.complete) response.shouldKeepAlive = false
      sendProblem(response, !this.#connected ? UPSTREAM_REFUSED : timedOut ? UPSTREAM_TIMEOUT : UPSTREAM_BROKEN)
    }
    this.#exchange.letGo()
  }
}

const CONTINUE_MS_MAX = 1_000

/** What node:http passes on besides: how the body is framed, and what was asked of its other end. */
function streamHeaders(incoming: IncomingMessage, { rules, expectsContinue }: PassOptions): string[] {
  const headers = upstreamHeaders(incoming, rules)
  const { headers: came } = incoming
  if (came['transfer-encoding'] !== undefined) headers.push('Transfer-Encoding', 'chunked')
  else if (came['content-length'] === undefined && incoming.method !== 'GET' && incoming.method !== 'HEAD') {
    headers.push('Content-Length', '0')
  }
  if (came.trailer !== undefined) headers.push('Trailer', came.trailer)
  if (came.te !== undefined && /\btrailers\b/i.test(String(came.te))) headers.push('TE', 'trailers')
  if (expectsContinue) headers.push('Expect', '100-continue')
  return headers
}
