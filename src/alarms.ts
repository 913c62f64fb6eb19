import type { Clock } from './clock.ts'
import { type Linked, LinkedList } from './linked-list.ts'

/**
 * Many alarms with one and the same delay, on one timer. They ring in the order they were set, so that setting and
 * cancelling are O(1) however many there are: a timer for each request would cost more than the rest of the engine.
 */
export class Alarms {
  readonly #clock: Clock
  readonly #delayMs: number
  readonly #queue = new LinkedList<Alarm>()
  #timed = false

  constructor(clock: Clock, delayMs: number) {
    this.#clock = clock
    this.#delayMs = delayMs
  }

  set(ring: () => void): Alarm {
    const dueAt = this.#clock.now() + this.#delayMs
    const alarm: Alarm = { dueAt, ring, isListed: false, before: undefined, after: undefined }
    this.#queue.add(alarm)
    if (!this.#timed) this.#arm(this.#delayMs)
    return alarm
  }

  /** Does nothing to one that has rung. */
  cancel(alarm: Alarm): void {
    this.#queue.delete(alarm)
    // Whoever keeps the alarm does not keep the request behind it.
    alarm.ring = undefined
  }

  #arm(delayMs: number): void {
    this.#timed = true
    this.#clock.schedule(delayMs, () => this.#ringDue())
  }

  #ringDue(): void {
    for (let alarm = this.#queue.first; alarm !== undefined; alarm = this.#queue.first) {
      // Read each time: what rings may set another, by a clock that has moved on meanwhile.
      const leftMs = alarm.dueAt - this.#clock.now()
      // More than a whole delay left: the clock was set back, and waiting for it to catch up could take for ever.
      if (leftMs > 0 && leftMs <= this.#delayMs) return this.#arm(leftMs)
      const { ring } = alarm
      this.cancel(alarm)
      ring?.()
    }
    this.#timed = false
  }
}

export interface Alarm extends Linked<Alarm> {
  readonly dueAt: number
  ring: (() => void) | undefined
}
