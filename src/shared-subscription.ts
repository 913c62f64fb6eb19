import type { Clock } from './clock.ts'

/** What tells a store of other processes' changes: a connection that listens, a change stream, a consumer. */
export interface Subscription {
  /** Resolves when nothing is missed from then on; may reject when that will never be. */
  readonly ready: Promise<unknown>
  /** Ends it, ready or not. */
  close(): unknown
}

export interface SubscriptionParts {
  /** `onLost`, called later: it hears no more, or never will. */
  readonly open: (onLost: () => void) => Subscription
  /** How long it is kept when nobody needs it any more. Without it, until `close`. */
  readonly lingerMs?: number
  /** For how long no other one is opened after one that never became ready, and after one that did and was lost. */
  readonly pauseMs: { readonly failed: number; readonly lost: number }
}

/**
 * One subscription for all who wait, opened when the first of them comes. One that fails is not replaced by itself, but
 * for the next one who comes; until then whoever waits must look for himself.
 */
export class SharedSubscription {
  readonly #parts: SubscriptionParts
  readonly #clock: Clock
  readonly #onTurn: () => void
  #open: Subscription | undefined
  #isHeard = false
  #openNotBefore = 0
  #cancelEnd: (() => void) | undefined

  /** `onTurn` is called when it has become heard, and when it no longer is: nobody can say what was missed before. */
  constructor(parts: SubscriptionParts, clock: Clock, onTurn: () => void) {
    this.#parts = parts
    this.#clock = clock
    this.#onTurn = onTurn
  }

  get isHeard(): boolean {
    return this.#isHeard
  }

  need(): void {
    this.#cancelEnd?.()
    if (this.#open !== undefined || this.#clock.now() < this.#openNotBefore) return
    const open = this.#parts.open(() => this.#lost(open))
    this.#open = open
    open.ready.then(
      () => {
        // One that was lost before is not believed.
        if (this.#open !== open) return
        this.#isHeard = true
        this.#onTurn()
      },
      () => this.#lost(open),
    )
  }

  /** Nobody needs it any more, for the time being. */
  spare(): void {
    if (this.#open === undefined || this.#parts.lingerMs === undefined) return
    this.#cancelEnd = this.#clock.schedule(this.#parts.lingerMs, () => void this.close())
  }

  async close(): Promise<void> {
    this.#cancelEnd?.()
    const open = this.#open
    this.#open = undefined
    this.#isHeard = false
    try {
      await open?.close()
    } catch {
      // What is closed may be down already; that is no news to anybody.
    }
  }

  #lost(open: Subscription): void {
    if (this.#open !== open) return
    const { failed, lost } = this.#parts.pauseMs
    this.#openNotBefore = this.#clock.now() + (this.#isHeard ? lost : failed)
    void this.close()
    this.#onTurn()
  }
}
