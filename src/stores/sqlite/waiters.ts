import type { Clock } from '../../clock.ts'
import type { Channel } from './channel.ts'
import type { Stamp } from './wire.ts'

/**
 * Those who wait for a record to be no longer running. What this store changes wakes them at once; while anybody waits,
 * the worker also looks for commits of other processes, and then every awaited record is looked at again.
 */
export class Waiters {
  readonly #channel: Channel
  readonly #clock: Clock
  readonly #now: () => Stamp
  readonly #waiting = new Map<string, Awaited>()

  constructor(channel: Channel, clock: Clock, now: () => Stamp) {
    this.#channel = channel
    this.#clock = clock
    this.#now = now
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const awaited = this.#awaited(id)
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        signal.removeEventListener('abort', wake)
        awaited.wakers.delete(wake)
        if (awaited.wakers.size === 0) this.#drop(id)
      }
      const wake = (): void => {
        leave()
        resolve()
      }
      awaited.wakers.add(wake)
      signal.addEventListener('abort', wake)
      // Subscribed first, looked at second: a change in between is not missed.
      this.#look(id, awaited).catch((error: unknown) => {
        if (awaited.wakers.has(wake)) leave()
        reject(error)
        this.wake(id)
      })
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#waiting.get(id)?.wakers ?? [])]) wake()
  }

  wakeAll(): void {
    for (const id of [...this.#waiting.keys()]) this.wake(id)
  }

  /** Something changed, by another process: looks at every awaited record again. */
  check(): void {
    for (const [id, awaited] of this.#waiting) this.#lookOrWake(id, awaited)
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  #lookOrWake(id: string, awaited: Awaited): void {
    this.#look(id, awaited).catch(() => this.wake(id))
  }

  async #look(id: string, awaited: Awaited): Promise<void> {
    if (awaited.isBeingLookedAt) {
      awaited.lookAgain = true
      return
    }
    awaited.isBeingLookedAt = true
    try {
      do {
        awaited.lookAgain = false
        const leaseLeftMs = await this.#channel.submit(['leaseLeft', this.#now(), id], Number)
        if (leaseLeftMs === 0) this.wake(id)
        if (awaited.wakers.size === 0) return
        awaited.cancelLook?.()
        awaited.cancelLook = this.#clock.schedule(leaseLeftMs, () => this.#lookOrWake(id, awaited))
      } while (awaited.lookAgain)
    } finally {
      awaited.isBeingLookedAt = false
    }
  }

  #awaited(id: string): Awaited {
    let awaited = this.#waiting.get(id)
    if (awaited === undefined) {
      awaited = new Awaited()
      this.#waiting.set(id, awaited)
      this.#channel.watch(true)
    }
    return awaited
  }

  #drop(id: string): void {
    this.#waiting.get(id)?.cancelLook?.()
    this.#waiting.delete(id)
    if (this.#waiting.size === 0) this.#channel.watch(false)
  }
}

class Awaited {
  readonly wakers = new Set<() => void>()
  isBeingLookedAt = false
  lookAgain = false
  /** The lease may lapse with nobody writing anything. */
  cancelLook: (() => void) | undefined
}
