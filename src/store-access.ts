import { Alarms } from './alarms.ts'
import type { Clock } from './clock.ts'
import { OncekeyError } from './error.ts'
import type { EventType, Subject } from './events.ts'
import type { Awaitable, Claim, ClaimRequest, Labels, Settlement, Store, StoredRecord } from './store.ts'

/** The record that one attempt may write to. */
export interface Hold {
  readonly id: string
  readonly token: string
  readonly labels?: Labels | undefined
}

/**
 * The store as the engine uses it: every call bounded in time, asked again where that is safe, and never throwing where
 * a failure only means that the record finds its end by itself. What outlives the answer goes on in the background.
 */
export class StoreAccess {
  readonly #store: Store
  readonly #clock: Clock
  readonly #callMsMax: number
  readonly #timeouts: Alarms
  readonly #tell: Tell
  readonly #background = new Set<Promise<void>>()

  constructor(store: Store, clock: Clock, callMsMax: number, tell: Tell) {
    this.#store = store
    this.#clock = clock
    this.#callMsMax = callMsMax
    this.#timeouts = new Alarms(clock, callMsMax)
    this.#tell = tell
  }

  /** Asks once more with the same token when no reply came: the first may have been lost on its way back. */
  claim(request: ClaimRequest): Awaitable<Claim> {
    return this.#bounded(this.#store.claim(request), same, (error) => {
      if (isFinal(error)) throw error
      this.#tell('store-failed', request, undefined, error)
      return this.#bounded(this.#store.claim(request))
    })
  }

  /** `false`: the record does not have it. A store that failed is tried again in the background until `retryUntilMs`. */
  settle(hold: Hold, settlement: Settlement, retryUntilMs: number): Awaitable<boolean> {
    const { status } = settlement.answer
    const settled = (kept: boolean): boolean => {
      this.#tell(kept ? 'kept' : 'unrecorded', hold, status)
      return kept
    }
    const failed = (error: unknown): boolean => {
      this.#tell('store-failed', hold, status, error)
      this.#tell('unrecorded', hold, status)
      this.#retry(retryUntilMs, async () => {
        const kept = await this.#bounded(this.#store.settle(hold.id, hold.token, settlement))
        this.#tell(kept ? 'kept' : 'lease-lost', hold, status)
      })
      return false
    }
    try {
      return this.#bounded(this.#store.settle(hold.id, hold.token, settlement), settled, failed)
    } catch (error) {
      return failed(error)
    }
  }

  /** When the store cannot be reached in time, the lease lapses and the record becomes unknown. */
  async release(hold: Hold, retryUntilMs: number): Promise<void> {
    const release = async () => {
      const released = await this.#bounded(this.#store.release(hold.id, hold.token))
      this.#tell(released ? 'released' : 'lease-lost', hold)
    }
    try {
      await release()
    } catch (error) {
      this.#tell('store-failed', hold, undefined, error)
      if (!isFinal(error)) this.#retry(retryUntilMs, release)
    }
  }

  /**
   * Takes back a claim that may or may not have arrived: nothing ran, so it must not stand. It may still be on its way,
   * so that one "not yours" is not the last word.
   */
  undoClaim(hold: Hold): void {
    let misses = 0
    this.#retry(this.#clock.now() + UNDO_MS_MAX, async () => {
      const released = await this.#bounded(this.#store.release(hold.id, hold.token))
      if (!released && ++misses < UNDO_MISSES_MAX) throw new Error('not there yet')
    })
  }

  async renew(hold: Hold, leaseMs: number): Promise<boolean> {
    return this.#bounded(this.#store.renew(hold.id, hold.token, leaseMs))
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#bounded(this.#store.read(id))
  }

  /** Ends the lease now, so that nobody has to wait for its end to learn that the outcome is unknown. */
  async giveUp(hold: Hold): Promise<void> {
    this.#tell('left-unknown', hold)
    try {
      await this.renew(hold, 0)
    } catch (error) {
      this.#tell('store-failed', hold, undefined, error)
    }
  }

  inBackground(task: Promise<unknown>): void {
    const quiet: Promise<void> = task.then(
      () => {},
      () => {},
    )
    this.#background.add(quiet)
    quiet.then(() => this.#background.delete(quiet))
  }

  async idle(): Promise<void> {
    while (this.#background.size > 0) await Promise.all(this.#background)
  }

  #retry(untilMs: number, attempt: () => Promise<void>): void {
    if (this.#background.size >= BACKGROUND_MAX) return
    const retries = async () => {
      let delayMs = RETRY_MS_MIN
      while (this.#clock.now() + delayMs < untilMs) {
        await new Promise<void>((resolve) => this.#clock.schedule(delayMs, resolve))
        if (await succeeds(attempt)) return
        delayMs = Math.min(delayMs * 2, RETRY_MS_MAX)
      }
    }
    this.inBackground(retries())
  }

  /**
   * A store that hangs counts as one that failed. One that answers at once, in this process, costs no timer, and one that
   * does not costs one promise, whatever is done with its reply.
   */
  #bounded<T>(reply: Awaitable<T>): Awaitable<T>
  #bounded<T>(reply: Awaitable<T>, onReply: (value: T) => T, onFailure: (error: unknown) => Awaitable<T>): Awaitable<T>
  #bounded<T>(
    reply: Awaitable<T>,
    onReply: (value: T) => T = same,
    onFailure: (error: unknown) => Awaitable<T> = raise,
  ): Awaitable<T> {
    if (!isPromise(reply)) return onReply(reply)
    return new Promise<T>((resolve, reject) => {
      let isOver = false
      const fail = (error: unknown): void => {
        if (isOver) return
        isOver = true
        this.#timeouts.cancel(alarm)
        try {
          resolve(onFailure(error))
        } catch (final) {
          reject(final)
        }
      }
      const alarm = this.#timeouts.set(() => {
        fail(new OncekeyError('store-unavailable', `${this.#store.name} gave no reply within ${this.#callMsMax} ms`))
      })
      reply.then((value) => {
        if (isOver) return
        isOver = true
        this.#timeouts.cancel(alarm)
        resolve(onReply(value))
      }, fail)
    })
  }
}

function same<T>(value: T): T {
  return value
}

function raise(error: unknown): never {
  throw error
}

export function isPromise<T>(value: Awaitable<T>): value is Promise<T> {
  return typeof (value as Promise<T> | undefined)?.then === 'function'
}

type Tell = (type: EventType, subject: Subject, status?: number, error?: unknown) => void

/** A full or closed store has answered; to ask it again changes nothing. */
function isFinal(error: unknown): boolean {
  return error instanceof OncekeyError && error.code !== 'store-unavailable'
}

async function succeeds(attempt: () => Promise<void>): Promise<boolean> {
  try {
    await attempt()
    return true
  } catch {
    return false
  }
}

const RETRY_MS_MIN = 50
const RETRY_MS_MAX = 5_000
const UNDO_MS_MAX = 600_000
const UNDO_MISSES_MAX = 3
/** In a long outage every refused request would leave something to retry; past this many the lease must do. */
const BACKGROUND_MAX = 10_000
