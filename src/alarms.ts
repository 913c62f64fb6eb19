import type { Clock } from './clock.ts'

/**
 * Many alarms with one and the same delay, on one timer. They ring in the order they were set, so that setting and
 * cancelling are O(1) however many there are: a timer for each request would cost more than the rest of the engine.
 */
export class Alarms {
  readonly #clock: Clock
  readonly #delayMs: number
  readonly #queue = new Set<Alarm>()
  #timed = false

  constructor(clock: Clock, delayMs: number) {
    this.#clock = clock
    this.#delayMs = delayMs
  }

  set(ring: () => void): Alarm {
    const alarm: Alarm = { dueAt: this.#clock.now() + this.#delayMs, ring }
    this.#queue.add(alarm)
    if (!this.#timed) this.#arm(this.#delayMs)
    return alarm
  }

  cancel(alarm: Alarm): void {
    this.#queue.delete(alarm)
  }

  #arm(delayMs: number): void {
    this.#timed = true
    this.#clock.schedule(delayMs, () => this.#ringDue())
  }

  #ringDue(): void {
    const now = this.#clock.now()
    for (const alarm of this.#queue) {
      const leftMs = alarm.dueAt - now
      // More than a whole delay left: the clock was set back, and waiting for it to catch up could take for ever.
      if (leftMs > 0 && leftMs <= this.#delayMs) return this.#arm(leftMs)
      this.#queue.delete(alarm)
      alarm.ring()
    }
    this.#timed = false
  }
}

export interface Alarm {
  readonly dueAt: number
  readonly ring: () => void
}
