import { publishGate, type ShedReason } from './events.ts'
import type { GateLimits } from './limits.ts'

/** What the gate holds at this moment. */
export interface Load {
  readonly inFlight: number
  readonly bufferedBytes: number
  readonly connections: number
  /** Requests refused with 503 for want of room, since the start. */
  readonly shed: number
}

/**
 * The budgets that keep the gate's memory bounded however many ask. A request that does not fit is refused before
 * anything was done for it, which is cheap, and lets those inside be finished.
 */
export class Budget {
  readonly #limits: GateLimits
  inFlight = 0
  bufferedBytes = 0
  shed = 0

  constructor(limits: GateLimits) {
    this.#limits = limits
  }

  /** A place for one more request, to be given back by `leave`. */
  enter(): boolean {
    if (this.inFlight >= this.#limits.inFlightMax) return false
    this.inFlight++
    return true
  }

  leave(): void {
    this.inFlight--
  }

  /** Room for that many bytes more, to be given back by `free`. */
  take(bytes: number): boolean {
    if (this.bufferedBytes + bytes > this.#limits.bufferedBytesMax) return false
    this.bufferedBytes += bytes
    return true
  }

  free(bytes: number): void {
    this.bufferedBytes -= bytes
  }

  count(reason: ShedReason): void {
    this.shed++
    publishGate({ type: 'shed', reason })
  }
}
