import type { Clock } from '../../clock.ts'
import type { Random } from './random.ts'

/**
 * Virtual time. Everything that happens in a schedule is an event here; the earliest happens next, and the seed decides
 * between those of the same millisecond. Between two events every promise that can go on does go on, to the last one.
 */
export class Scheduler {
  readonly #random: Random
  readonly #heap: Event[] = []
  nowMs = 0
  steps = 0

  constructor(random: Random) {
    this.#random = random
  }

  at(delayMs: number, act: () => void): Event {
    const event: Event = { atMs: this.nowMs + Math.max(0, Math.ceil(delayMs)), tie: this.#random.uint32(), act }
    this.#push(event)
    return event
  }

  cancel(event: Event): void {
    event.act = undefined
  }

  /** `false`: nothing is left to happen. */
  step(): boolean {
    for (;;) {
      const event = this.#pop()
      if (!event) return false
      if (!event.act) continue
      this.nowMs = event.atMs
      this.steps++
      event.act()
      return true
    }
  }

  #push(event: Event): void {
    const heap = this.#heap
    let index = heap.length
    heap.push(event)
    while (index > 0) {
      const parent = (index - 1) >> 1
      const above = heap[parent]
      if (!above || !isBefore(event, above)) break
      heap[index] = above
      index = parent
    }
    heap[index] = event
  }

  #pop(): Event | undefined {
    const heap = this.#heap
    const first = heap[0]
    const last = heap.pop()
    if (!last || first === last) return first
    let index = 0
    for (;;) {
      let child = index * 2 + 1
      const left = heap[child]
      if (!left) break
      const right = heap[child + 1]
      if (right && isBefore(right, left)) child++
      const smaller = heap[child]
      if (!smaller || !isBefore(smaller, last)) break
      heap[index] = smaller
      index = child
    }
    heap[index] = last
    return first
  }
}

export interface Event {
  readonly atMs: number
  readonly tie: number
  act: (() => void) | undefined
}

function isBefore(a: Event, b: Event): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.tie < b.tie)
}

/**
 * Steps until there is no next one. A turn of the event loop runs a batch of immediates, and Node drains the microtasks after
 * each of them: exact, and many times cheaper than a turn for each step.
 */
export function runSteps(step: () => boolean): Promise<void> {
  return new Promise((resolve, reject) => {
    let isOver = false
    let left = 0
    const turn = () => {
      left = STEPS_PER_TURN
      for (let index = 0; index < STEPS_PER_TURN; index++) setImmediate(one)
    }
    const one = () => {
      left--
      if (!isOver) {
        try {
          isOver = !step()
        } catch (error) {
          isOver = true
          reject(error)
        }
      }
      if (left > 0) return
      if (isOver) resolve()
      else turn()
    }
    turn()
  })
}

const STEPS_PER_TURN = 64

/** A steady clock, for the store. It may be moved forwards. */
export class StoreClock implements Clock {
  readonly #scheduler: Scheduler
  aheadMs = 0

  constructor(scheduler: Scheduler) {
    this.#scheduler = scheduler
  }

  now(): number {
    return EPOCH_MS + this.#scheduler.nowMs + this.aheadMs
  }

  schedule(delayMs: number, callback: () => void): () => void {
    const event = this.#scheduler.at(delayMs, callback)
    return () => this.#scheduler.cancel(event)
  }
}

export const EPOCH_MS = 1_800_000_000_000
