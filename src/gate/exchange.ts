import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Linked } from '../linked-list.ts'
import type { Budget } from './shedding.ts'

/**
 * One request inside the gate, from its admission until its answer has left and its upstream is done. It holds a place
 * in the budget, and the bytes that are kept for it.
 */
export class Exchange implements Linked<Exchange> {
  isListed = false
  before: Exchange | undefined
  after: Exchange | undefined
  readonly incoming: IncomingMessage
  readonly response: ServerResponse
  readonly startedMs: number = performance.now()
  /** Whose request it is, once that is known. */
  principal = ''
  /** The body of a protected request, once it is read. */
  body: Buffer | undefined
  /** Since when the body of a protected request is waited for. */
  receivingSinceMs: number | undefined
  /** Cuts the connection to the upstream. */
  cut: (() => void) | undefined
  /** Called when the client is gone before its answer was whole. */
  clientGone: (() => void) | undefined
  /** How far the slow side had come, and when. */
  mark: { readonly side: 'request' | 'reader'; readonly bytes: number; readonly atMs: number } | undefined
  readonly #budget: Budget
  readonly #ended: (exchange: Exchange) => void
  #bytes = 0
  #holds = 1

  constructor(incoming: IncomingMessage, response: ServerResponse, budget: Budget, ended: (one: Exchange) => void) {
    this.incoming = incoming
    this.response = response
    this.#budget = budget
    this.#ended = ended
    response.on('close', () => {
      if (!response.writableFinished) this.clientGone?.()
      // A refusal can be answered before its body has come; as long as that is awaited, somebody has to watch it.
      if (incoming.complete || incoming.socket.destroyed) return this.letGo()
      const over = (): void => {
        incoming.off('end', over)
        incoming.socket.off('close', over)
        this.letGo()
      }
      incoming.on('end', over)
      incoming.socket.on('close', over)
    })
    // A write to a client that has left. The close says the rest.
    response.on('error', ignore)
  }

  /** Something still runs for this request, whether or not its client is there. */
  hold(): void {
    this.#holds++
  }

  letGo(): void {
    if (--this.#holds > 0) return
    this.#budget.free(this.#bytes)
    this.#bytes = 0
    this.body = undefined
    this.#ended(this)
  }

  /** Room for bytes that are held until the end of the exchange. */
  take(bytes: number): boolean {
    if (!this.#budget.take(bytes)) return false
    this.#bytes += bytes
    return true
  }

  /** Of what was taken: they are not held any more. */
  giveBack(bytes: number): void {
    this.#bytes -= bytes
    this.#budget.free(bytes)
  }
}

function ignore(): void {}
