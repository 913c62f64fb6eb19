import type { Socket } from 'node:net'
import type { LinkedList } from '../linked-list.ts'
import { publishGate } from './events.ts'
import type { Exchange } from './exchange.ts'
import type { GateLimits } from './limits.ts'
import { BODY_TIMEOUT, sendProblem } from './problems.ts'

/** Looks, once in a while, for clients that send or read too slowly to be waited for. One timer for all of them. */
export class SlowClients {
  readonly #limits: GateLimits
  readonly #exchanges: LinkedList<Exchange>
  readonly #timer: NodeJS.Timeout

  constructor(limits: GateLimits, exchanges: LinkedList<Exchange>) {
    this.#limits = limits
    this.#exchanges = exchanges
    const everyMs = Math.min(LOOK_MS_MAX, Math.ceil(Math.min(limits.slowMsMax, limits.bodyMsMax) / 4))
    this.#timer = setInterval(() => this.look(performance.now()), everyMs).unref()
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  look(nowMs: number): void {
    for (const exchange of this.#exchanges.members()) {
      const { receivingSinceMs, incoming, response } = exchange
      if (receivingSinceMs !== undefined) {
        if (nowMs - receivingSinceMs >= this.#limits.bodyMsMax) {
          exchange.receivingSinceMs = undefined
          publishGate({ type: 'slow-client', waitingFor: 'request' })
          sendProblem(response, BODY_TIMEOUT)
          incoming.socket.destroySoon()
        }
        continue
      }
      const side = slowSide(exchange)
      if (side === undefined) exchange.mark = undefined
      else this.#measure(exchange, side, nowMs)
    }
  }

  #measure(exchange: Exchange, side: 'request' | 'reader', nowMs: number): void {
    const { socket } = exchange.incoming
    const bytes = side === 'reader' ? flushedBytes(socket) : socket.bytesRead
    const { mark } = exchange
    if (mark?.side !== side) {
      exchange.mark = { side, bytes, atMs: nowMs }
      return
    }
    const tookMs = nowMs - mark.atMs
    if (tookMs < this.#limits.slowMsMax) return
    if (bytes - mark.bytes >= (this.#limits.rateBytesMin * tookMs) / 1000) {
      exchange.mark = { side, bytes, atMs: nowMs }
      return
    }
    publishGate({ type: 'slow-client', waitingFor: side })
    socket.destroy()
  }
}

const LOOK_MS_MAX = 1_000

/** Whom this exchange waits for, if it is the client. */
function slowSide({ incoming }: Exchange): 'request' | 'reader' | undefined {
  if (queued(incoming.socket) > 0) return 'reader'
  // An upstream that takes the body slowly is not the client's fault: then there is something to read.
  return incoming.complete || incoming.readableLength > 0 || incoming.isPaused() ? undefined : 'request'
}

/** Bytes that the system has not taken yet. */
function queued(socket: Socket): number {
  const { _handle } = socket as Socket & { _handle?: { readonly writeQueueSize?: number } | null }
  return _handle?.writeQueueSize ?? socket.writableLength
}

function flushedBytes(socket: Socket): number {
  return socket.bytesWritten - socket.writableLength - queued(socket)
}
