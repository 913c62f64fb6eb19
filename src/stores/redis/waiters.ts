import type { Clock } from '../../clock.ts'
import type { Subscription } from './drivers.ts'

/**
 * Those who wait for a record to be no longer running. One connection of its own listens to one channel, from the first
 * wait on; the scripts publish to it the keys that somebody waits for.
 *
 * A message may be lost with its connection. So nobody relies on it: every awaited record is looked at again when
 * anything happens to the connection, when its lease ends, and every second; more often while nobody listens.
 */
export class Waiters {
  readonly #clock: Clock
  readonly #look: (id: string) => Promise<number>
  readonly #subscribe: (onChange: () => void) => Subscription
  readonly #waiting = new Map<string, Awaited>()
  #subscription: Subscription | undefined
  #isListening = false
  #subscribeAgainAt = 0
  #isClosed = false

  /** `look` gives how long the lease still runs, 0 when the record is not running. */
  constructor(clock: Clock, look: (id: string) => Promise<number>, subscribe: (onChange: () => void) => Subscription) {
    this.#clock = clock
    this.#look = look
    this.#subscribe = subscribe
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    this.#listen()
    let awaited = this.#waiting.get(id)
    if (awaited === undefined) {
      awaited = { wakers: new Set(), isBeingLookedAt: false, lookAgain: false, cancelLook: undefined }
      this.#waiting.set(id, awaited)
    }
    const { wakers } = awaited
    const mine = awaited
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        signal.removeEventListener('abort', wake)
        wakers.delete(wake)
        if (wakers.size === 0) this.#drop(id, mine)
      }
      const wake = (): void => {
        leave()
        resolve()
      }
      wakers.add(wake)
      signal.addEventListener('abort', wake)
      this.#lookAt(id, mine).catch((error: unknown) => {
        if (wakers.has(wake)) leave()
        reject(error)
        this.wake(id)
      })
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#waiting.get(id)?.wakers ?? [])]) wake()
  }

  close(): void {
    this.#isClosed = true
    this.#subscription?.close()
    this.#subscription = undefined
    for (const id of [...this.#waiting.keys()]) this.wake(id)
  }

  #listen(): void {
    if (this.#subscription !== undefined || this.#isClosed || this.#clock.now() < this.#subscribeAgainAt) return
    const subscription = this.#subscribe(() => this.#lookAtAll())
    this.#subscription = subscription
    subscription.ready.then(
      () => {
        this.#isListening = true
        // What was settled before the subscription was in place has sent no message here.
        this.#lookAtAll()
      },
      () => {
        subscription.close()
        if (this.#subscription !== subscription) return
        this.#subscription = undefined
        this.#isListening = false
        this.#subscribeAgainAt = this.#clock.now() + SUBSCRIBE_AGAIN_MS
      },
    )
  }

  #lookAtAll(): void {
    for (const [id, awaited] of this.#waiting) this.#lookOrWake(id, awaited)
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  #lookOrWake(id: string, awaited: Awaited): void {
    this.#lookAt(id, awaited).catch(() => this.wake(id))
  }

  async #lookAt(id: string, awaited: Awaited): Promise<void> {
    if (awaited.isBeingLookedAt) {
      awaited.lookAgain = true
      return
    }
    awaited.isBeingLookedAt = true
    try {
      do {
        awaited.lookAgain = false
        const leaseLeftMs = await this.#look(id)
        if (leaseLeftMs === 0) this.wake(id)
        if (awaited.wakers.size === 0) return
        awaited.cancelLook?.()
        const lookInMs = Math.min(leaseLeftMs, this.#isListening ? LOOK_MS : LOOK_MS_UNHEARD)
        awaited.cancelLook = this.#clock.schedule(lookInMs, () => this.#lookOrWake(id, awaited))
      } while (awaited.lookAgain)
    } finally {
      awaited.isBeingLookedAt = false
    }
  }

  #drop(id: string, awaited: Awaited): void {
    awaited.cancelLook?.()
    if (this.#waiting.get(id) === awaited) this.#waiting.delete(id)
  }
}

interface Awaited {
  readonly wakers: Set<() => void>
  isBeingLookedAt: boolean
  lookAgain: boolean
  cancelLook: (() => void) | undefined
}

const LOOK_MS = 1_000
const LOOK_MS_UNHEARD = 50
const SUBSCRIBE_AGAIN_MS = 10_000
