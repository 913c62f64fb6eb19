import type { Done } from '../execution.ts'
import { concat, hasNoBody } from './bytes.ts'
import type { CaptureLimits } from './capture-limits.ts'

/**
 * Reads one `Response`. What is there at once is gathered and held until it is recorded. A body that keeps the reader
 * waiting is streamed: what has come goes out, the rest follows as it comes, and only the end waits for the record.
 */
export class FetchCapture {
  /** Resolves when the whole answer was read, or broke off. */
  readonly done: Promise<Done>
  /** Resolves with the response as soon as it must be given out before its end is known; never, when it need not be. */
  readonly untilStreaming: Promise<Response>
  readonly #source: Response
  readonly #limits: CaptureLimits
  readonly #headOnly: boolean
  readonly #streaming: PromiseWithResolvers<Response> = Promise.withResolvers()
  readonly #ended: PromiseWithResolvers<void> = Promise.withResolvers()
  #chunks: Uint8Array[] = []
  #bytes = 0
  #overflown = false
  #out: ReadableStreamDefaultController<Uint8Array> | undefined
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined
  #cancelled = false
  #wanted: PromiseWithResolvers<void> | undefined

  constructor(method: string, limits: CaptureLimits, source: Response) {
    this.#source = source
    this.#limits = limits
    this.#headOnly = method === 'HEAD'
    this.untilStreaming = this.#streaming.promise
    this.done = this.#read()
  }

  /** The gathered answer, once `done`. */
  response(): Response {
    const { status, statusText, headers } = this.#source
    const body = this.#source.body === null || hasNoBody(status) ? null : concat(this.#chunks, this.#bytes)
    return new Response(body, { status, statusText, headers })
  }

  /** Lets a streamed answer end. */
  end(): void {
    this.#ended.resolve()
  }

  async #read(): Promise<Done> {
    const { body, status } = this.#source
    if (body && !this.#headOnly) {
      this.#reader = body.getReader()
      try {
        for (;;) {
          const { done, value } = await this.#next(this.#reader)
          if (done) break
          this.#take(value)
          await this.#demand()
        }
      } catch (error) {
        this.#out?.error(error)
        // Nothing of it has gone out: the client gets the failure as the server makes it.
        if (!this.#out) throw error
        return { kind: 'broken' }
      }
      if (this.#cancelled) return { kind: 'broken' }
      if (this.#out) this.#ended.promise.then(() => this.#cancelled || this.#out?.close())
    }
    const kept = this.#overflown ? null : concat(this.#chunks, this.#bytes)
    return { kind: 'answered', answer: { status, headers: this.#keptHeaders(), body: kept } }
  }

  async #next(reader: ReadableStreamDefaultReader<Uint8Array>): ReturnType<typeof reader.read> {
    const next = reader.read()
    if (this.#out) return next
    const soon = await Promise.race([next, nextTurn()])
    if (soon !== 'later') return soon
    this.#startStreaming()
    return next
  }

  /** A client that reads slowly holds the handler back, and not our memory. */
  async #demand(): Promise<void> {
    if (!this.#out || this.#cancelled || (this.#out.desiredSize ?? 1) > 0) return
    this.#wanted = Promise.withResolvers()
    await this.#wanted.promise
  }

  #startStreaming(): void {
    const { status, statusText, headers } = this.#source
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#out = controller
        for (const chunk of this.#chunks) controller.enqueue(chunk)
      },
      pull: () => this.#wanted?.resolve(),
      // The client went away in the middle of the answer.
      cancel: async (reason) => {
        this.#cancelled = true
        this.#wanted?.resolve()
        await this.#reader?.cancel(reason)
      },
    })
    this.#streaming.resolve(new Response(body, { status, statusText, headers }))
  }

  #take(chunk: Uint8Array): void {
    this.#out?.enqueue(chunk)
    if (this.#overflown) return
    this.#bytes += chunk.byteLength
    this.#chunks.push(chunk)
    if (this.#bytes <= this.#limits.contract.limits.answerBytesMax) return
    if (!this.#out) this.#startStreaming()
    this.#overflown = true
    this.#chunks = []
  }

  #keptHeaders(): Array<readonly [string, string]> {
    const kept: Array<readonly [string, string]> = []
    this.#source.headers.forEach((value, name) => {
      if (this.#limits.keepsHeader(name) || (this.#headOnly && name === 'content-length')) kept.push([name, value])
    })
    return kept
  }
}

/** Bodies made of bytes that are already there arrive before this does. */
function nextTurn(): Promise<'later'> {
  return new Promise((resolve) => setImmediate(resolve, 'later'))
}
