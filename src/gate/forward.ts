import type { ServerResponse } from 'node:http'
import type { Dispatcher } from 'undici'
import { declareOutcome } from '../http/node.ts'
import { dropKeptBody } from '../http/node-capture.ts'
import { gateIsHeard, publishGate } from './events.ts'
import type { Exchange } from './exchange.ts'
import { answerHeaders, checkAnswerStatus, headerOf, reasonPhrase } from './head.ts'
import { badRequest, sendProblem, UPSTREAM_BROKEN, UPSTREAM_REFUSED, UPSTREAM_TIMEOUT } from './problems.ts'

/**
 * Brings the upstream's answer to the client. A small answer is gathered and goes out in one piece, so that the client
 * of a protected operation learns nothing that is not recorded; a large or slow one flows, at the pace of its reader.
 *
 * `covered`: the answer is captured. The upstream is then heard to its end, whether or not the client is still there,
 * and what went wrong is declared for the record: nothing done when no byte was sent, unknown in any other case. An
 * answer that cannot be passed on, because Node would not write it, is one that went wrong.
 */
export class Forward implements Dispatcher.DispatchHandler {
  readonly #exchange: Exchange
  readonly #response: ServerResponse
  readonly #covered: boolean
  readonly #keptBytesMax: number
  #controller: Dispatcher.DispatchController | undefined
  #state: 'waiting' | 'gathering' | 'flowing' | 'ended' = 'waiting'
  #status = 0
  #message = ''
  #headers: string[] = []
  #chunks: Buffer[] = []
  #bytes = 0
  /** Of the gate's budget. */
  #takenBytes = 0
  #keepsNothing = false
  #isCut = false

  /** `keptBytesMax`: how much of the answer is kept for the record; `undefined`: it is not covered. */
  constructor(exchange: Exchange, keptBytesMax: number | undefined) {
    const covered = keptBytesMax !== undefined
    this.#exchange = exchange
    this.#response = exchange.response
    this.#covered = covered
    this.#keptBytesMax = keptBytesMax ?? 0
    this.#keepsNothing = !covered
    exchange.hold()
    exchange.cut = () => this.#cut()
    exchange.clientGone = () => (covered ? this.#controller?.resume() : this.#cut())
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#isCut) controller.abort(new Error('The request was given up before it was sent.'))
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
    message = '',
  ): void {
    if (status >= 100 && status < 200) {
      if (status === 103 && headers.link !== undefined) passHints(this.#exchange, headers.link)
      return
    }
    try {
      checkAnswerStatus(status)
      this.#status = status
      this.#message = reasonPhrase(status, message)
      this.#headers = answerHeaders((controller.rawHeaders as Buffer[] | undefined) ?? [])
      this.#state = 'gathering'
      const length = headerOf(this.#headers, 'content-length')
      if (length === undefined) {
        // Most answers of unknown length are whole in one packet; one that is not should not wait for its end.
        setImmediate(() => this.#flowLater())
      } else if (Number(length) > GATHERED_BYTES_MAX && this.#exchange.incoming.method !== 'HEAD') this.#flow()
    } catch (error) {
      this.#giveUp(error)
    }
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#state === 'ended') return
    try {
      this.#bytes += chunk.length
      if (!this.#keepsNothing) this.#take(chunk.length)
      if (this.#state === 'gathering') {
        this.#chunks.push(chunk)
        if (this.#bytes > GATHERED_BYTES_MAX || (this.#covered && this.#keepsNothing)) this.#flow()
      } else if (this.#state === 'flowing') this.#write(controller, chunk)
    } catch (error) {
      this.#giveUp(error)
    }
  }

  onResponseEnd(controller: Dispatcher.DispatchController): void {
    if (this.#state === 'ended') return
    try {
      this.#end(controller)
    } catch (error) {
      return this.#giveUp(error)
    }
    this.#state = 'ended'
    if (gateIsHeard()) {
      const tookMs = performance.now() - this.#exchange.startedMs
      publishGate({ type: 'forwarded', status: this.#status, covered: this.#covered, tookMs })
    }
    this.#exchange.letGo()
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    if (this.#state === 'ended') return
    const wasFlowing = this.#state === 'flowing'
    this.#state = 'ended'
    this.#chunks = []
    this.#fail(error as NodeJS.ErrnoException, wasFlowing)
    this.#exchange.letGo()
  }

  /** Ends the exchange from this side, whatever undici thinks of it. */
  #giveUp(error: unknown): void {
    this.onResponseError(this.#controller, error as Error)
    this.#controller?.abort(error as Error)
  }

  #end(controller: Dispatcher.DispatchController): void {
    const response = this.#response
    const trailers = (controller as { rawTrailers?: Buffer[] | null }).rawTrailers ?? []
    if (trailers.length > 0) {
      this.#flow()
      response.addTrailers(pairs(answerHeaders(trailers)))
    }
    if (this.#state === 'gathering') {
      const body = this.#chunks.length === 1 && this.#chunks[0] ? this.#chunks[0] : Buffer.concat(this.#chunks)
      if (headerOf(this.#headers, 'content-length') === undefined && mayHaveLength(this.#status)) {
        this.#headers.push('Content-Length', String(body.length))
      }
      this.#writeHead()
      // Latin 1 is the same bytes, and Node sends a string together with the head, in one write.
      if (body.length <= TEXT_BYTES_MAX) response.end(body.toString('latin1'), 'latin1')
      else response.end(body)
    } else response.end()
  }

  /** Room for a piece of the answer, from the gate's budget, for as long as it is held. */
  #take(bytes: number): void {
    const isKept = this.#bytes <= this.#keptBytesMax || this.#state === 'gathering'
    if (isKept && this.#exchange.take(bytes)) {
      this.#takenBytes += bytes
      return
    }
    // More than the contract keeps, or no room for it; it takes its way to the client all the same.
    this.#keepsNothing = true
    dropKeptBody(this.#response)
    this.#exchange.giveBack(this.#takenBytes)
    this.#takenBytes = 0
  }

  #fail(error: NodeJS.ErrnoException, wasFlowing: boolean): void {
    const { incoming } = this.#exchange
    const response = this.#response
    const covered = this.#covered
    if (this.#controller === undefined) {
      declareOutcome(incoming, 'nothing-done')
      publishGate({ type: 'upstream-refused', covered, error })
      // A head that undici does not write is the client's, and no word about the upstream.
      const isInvalid = error.code === 'UND_ERR_INVALID_ARG'
      return sendProblem(response, isInvalid ? badRequest('A header or the target is not valid.') : UPSTREAM_REFUSED)
    }
    declareOutcome(incoming, 'unknown')
    if (!this.#isCut || covered) {
      const timedOut = error.code === 'UND_ERR_HEADERS_TIMEOUT' || error.code === 'UND_ERR_BODY_TIMEOUT'
      publishGate({ type: 'upstream-broken', covered, error, timedOut })
      if (!wasFlowing) return sendProblem(response, timedOut ? UPSTREAM_TIMEOUT : UPSTREAM_BROKEN)
    }
    // Half an answer has gone out: only a broken connection says that it is not whole.
    if (response.destroyed) response.end()
    else response.destroy()
  }

  #flow(): void {
    if (this.#state !== 'gathering') return
    this.#writeHead()
    this.#state = 'flowing'
    if (this.#chunks.length === 0) this.#response.flushHeaders()
    for (const chunk of this.#chunks.splice(0)) this.#write(this.#controller, chunk)
  }

  #flowLater(): void {
    try {
      this.#flow()
    } catch (error) {
      this.#giveUp(error)
    }
  }

  #write(controller: Dispatcher.DispatchController | undefined, chunk: Buffer): void {
    const response = this.#response
    if (response.write(chunk) || response.destroyed || controller === undefined) return
    controller.pause()
    response.once('drain', () => controller.resume())
  }

  #writeHead(): void {
    this.#response.writeHead(this.#status, this.#message, this.#headers)
  }

  #cut(): void {
    this.#isCut = true
    this.#controller?.abort(new Error('The gate gave the request up.'))
  }
}

/** As much of an answer is held back until it is whole; a larger one flows. */
const GATHERED_BYTES_MAX = 64 * 1024
const TEXT_BYTES_MAX = 16 * 1024

function mayHaveLength(status: number): boolean {
  return status !== 204 && status !== 304
}

export function pairs(flat: readonly string[]): Array<[string, string]> {
  const list: Array<[string, string]> = []
  for (let i = 0; i < flat.length; i += 2) list.push([flat[i] ?? '', flat[i + 1] ?? ''])
  return list
}

/**
 * Early hints are the only interim answer with something in it for the client. Node wants each link by itself; hints that
 * it does not take are left out, because the answer is whole without them.
 */
export function passHints({ incoming, response }: Exchange, link: string | string[]): void {
  if (incoming.httpVersionMinor === 0 || response.headersSent || response.destroyed) return
  const links = [link].flat().flatMap((value) => value.split(/,\s*(?=<)/))
  try {
    response.writeEarlyHints({ link: links })
  } catch {}
}
