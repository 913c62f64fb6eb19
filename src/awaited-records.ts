import { type Clock, systemClock } from './clock.ts'
import { GroupCommit } from './group-commit.ts'
import { SharedSubscription, type SubscriptionParts } from './shared-subscription.ts'

/** 0: the record is not running. Else in how many ms it is to be looked at again, for its lease ends with no sign. */
export type Look = (id: string) => Promise<number>

export interface AwaitedRecordsParts {
  /** When the look that a wait begins with fails, the wait does. Whom a later one fails is woken, and asks for himself. */
  readonly look: Look
  /** How other processes' changes are heard of, where they are. */
  readonly subscription?: SubscriptionParts | undefined
  /** All awaited records are looked at together, this long after the last time, while nothing is heard. */
  readonly pollMs?: number
  readonly clock?: Clock
}

/**
 * What `waitFor` of a store stands on: those who wait for records to be no longer running. A store brings how it looks
 * and how it listens, and calls `wake` for what it has changed itself. (The engine's own waiters are in waiters.ts.)
 *
 * Nobody is forgotten: a record is looked at once its waiter is in place, when something is heard of it, when the
 * subscription has come or gone, and when the last look said so. All timers are such that they keep no process alive.
 */
export class AwaitedRecords {
  readonly #parts: AwaitedRecordsParts
  readonly #clock: Clock
  readonly #subscription: SharedSubscription | undefined
  readonly #awaited = new Map<string, Awaited>()
  #isPolling = false
  #isClosed = false

  constructor(parts: AwaitedRecordsParts) {
    const { subscription, clock = systemClock } = parts
    this.#parts = parts
    this.#clock = clock
    this.#subscription = subscription && new SharedSubscription(subscription, clock, () => void this.lookAtAll())
  }

  /** Whether other processes' changes are heard of now. */
  get isHeard(): boolean {
    return this.#subscription?.isHeard === true
  }

  get size(): number {
    return this.#awaited.size
  }

  has(id: string): boolean {
    return this.#awaited.has(id)
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted || this.#isClosed) return
    this.#subscription?.need()
    const awaited = this.#awaited.get(id) ?? new Awaited()
    this.#awaited.set(id, awaited)
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        signal.removeEventListener('abort', wake)
        awaited.wakers.delete(wake)
        if (awaited.wakers.size === 0) this.#drop(id, awaited)
      }
      const wake = (): void => {
        leave()
        resolve()
      }
      awaited.wakers.add(wake)
      signal.addEventListener('abort', wake)
      // In place first, looked at second: a change in between is not missed.
      this.#lookAt(id, awaited).catch((error: unknown) => {
        leave()
        reject(error)
        this.wake(id)
      })
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#awaited.get(id)?.wakers ?? [])]) wake()
  }

  wakeAll(): void {
    for (const id of [...this.#awaited.keys()]) this.wake(id)
  }

  /** Something was heard of this record, which may have ended. */
  lookAt(id: string): void {
    const awaited = this.#awaited.get(id)
    if (awaited !== undefined) void this.#lookOrWake(id, awaited)
  }

  async lookAtAll(): Promise<void> {
    await Promise.all([...this.#awaited].map(([id, awaited]) => this.#lookOrWake(id, awaited)))
  }

  /** Wakes all, and ends the subscription. */
  async close(): Promise<void> {
    this.#isClosed = true
    this.wakeAll()
    await this.#subscription?.close()
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  #lookOrWake(id: string, awaited: Awaited): Promise<void> {
    return this.#lookAt(id, awaited).catch(() => this.wake(id))
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
        const againInMs = await this.#parts.look(id)
        if (againInMs === 0) this.wake(id)
        if (awaited.wakers.size === 0) return
        awaited.cancelLook?.()
        awaited.cancelLook = this.#clock.schedule(Math.min(againInMs, LOOK_MS_MAX), () => {
          void this.#lookOrWake(id, awaited)
        })
        void this.#poll()
      } while (awaited.lookAgain)
    } finally {
      awaited.isBeingLookedAt = false
    }
  }

  async #poll(): Promise<void> {
    const { pollMs } = this.#parts
    if (pollMs === undefined || this.#isPolling) return
    this.#isPolling = true
    while (!this.isHeard && this.size > 0) {
      await new Promise<void>((resolve) => this.#clock.schedule(pollMs, resolve))
      if (!this.isHeard) await this.lookAtAll()
    }
    this.#isPolling = false
  }

  #drop(id: string, awaited: Awaited): void {
    if (this.#awaited.get(id) !== awaited) return
    awaited.cancelLook?.()
    this.#awaited.delete(id)
    if (this.size === 0) this.#subscription?.spare()
  }
}

/**
 * One look for all records that are to be looked at in the same moment, one after the other where they are many.
 * `running` gives those that run, for how many more ms. Where it fails, the waiters are woken.
 */
export function lookTogether(running: (ids: readonly string[]) => Promise<ReadonlyMap<string, number>>): Look {
  const looks = new GroupCommit<string, number>(
    async (ids) => {
      const leftMs = await running(ids)
      // A ms later it has ended.
      return ids.map((id) => (leftMs.has(id) ? Number(leftMs.get(id)) + 1 : 0))
    },
    { batchMax: LOOK_RECORDS_MAX, queueMax: Number.MAX_SAFE_INTEGER, inFlightMax: 1 },
  )
  return (id) => looks.submit(id).catch(() => 0)
}

class Awaited {
  readonly wakers = new Set<() => void>()
  isBeingLookedAt = false
  lookAgain = false
  cancelLook: (() => void) | undefined
}

/** A timer's longest, nearly: 20 days. A longer lease is looked at again then. */
const LOOK_MS_MAX = 20 * 24 * 3_600_000
/** In one statement. */
const LOOK_RECORDS_MAX = 500
