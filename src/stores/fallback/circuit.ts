import type { Clock } from '../../clock.ts'

export interface CircuitBounds {
  readonly failuresMax: number
  readonly awayMsMin: number
  readonly probeEveryMs: number
}

/** All that `fallback` is bounded by. */
export interface Bounds extends CircuitBounds {
  readonly primaryMsMax: number
  readonly watchEveryMs: number
}

/**
 * Whether the primary counts as away. One broken connection fails many calls at once, so it takes both: failures in a
 * row, and time since the first of them. Only a probe brings the primary back.
 */
export class Circuit {
  readonly #bounds: CircuitBounds
  readonly #clock: Clock
  #failures = 0
  #failingSinceMs = 0
  #nextProbeMs = 0
  isOpen = false

  constructor(bounds: CircuitBounds, clock: Clock) {
    this.#bounds = bounds
    this.#clock = clock
  }

  succeeded(): void {
    this.#failures = 0
  }

  /** `true`: with this failure the primary counts as away. */
  failed(): boolean {
    const now = this.#clock.now()
    if (this.isOpen) return false
    if (this.#failures++ === 0) this.#failingSinceMs = now
    if (this.#failures < this.#bounds.failuresMax || now - this.#failingSinceMs < this.#bounds.awayMsMin) return false
    this.isOpen = true
    this.#nextProbeMs = now + this.#bounds.probeEveryMs
    return true
  }

  /** `true` for one caller in each interval. */
  isProbeDue(): boolean {
    const now = this.#clock.now()
    if (!this.isOpen || now < this.#nextProbeMs) return false
    this.#nextProbeMs = now + this.#bounds.probeEveryMs
    return true
  }

  close(): void {
    this.isOpen = false
    this.#failures = 0
  }
}
