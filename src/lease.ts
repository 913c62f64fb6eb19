import type { Alarm, Alarms } from './alarms.ts'
import type { Clock } from './clock.ts'
import type { Contract } from './contract.ts'
import { OncekeyError } from './error.ts'
import type { Hold, StoreAccess } from './store-access.ts'

/**
 * One owner's hold on one operation, renewed while its handler runs. When it can no longer be sure of the hold, the
 * signal aborts: the store refused a renewal, none got through before the lease ran out, or the handler ran too long.
 */
export class Lease {
  readonly #access: StoreAccess
  readonly #limits: Contract['lease']
  readonly #clock: Clock
  readonly #renewals: Alarms
  readonly #hold: Hold
  readonly #startedMs: number
  #alarm: Alarm | undefined
  #aborter: AbortController | undefined
  #reason: OncekeyError | undefined
  #asking = false
  /** On this process's clock, counted from before the store was asked: not after the store's own end, unless the machine slept. */
  untilMs: number

  constructor(
    access: StoreAccess,
    limits: Contract['lease'],
    clock: Clock,
    renewals: Alarms,
    hold: Hold,
    /** When the store was asked for the claim, on this process's clock. */
    askedMs: number,
  ) {
    this.#access = access
    this.#limits = limits
    this.#clock = clock
    this.#renewals = renewals
    this.#hold = hold
    this.#startedMs = askedMs
    this.untilMs = this.#startedMs + limits.ms
    this.#alarm = renewals.set(this.#renew)
  }

  get lost(): boolean {
    return this.#reason !== undefined
  }

  /** Made on demand: most handlers never ask. */
  get signal(): AbortSignal {
    this.#aborter ??= new AbortController()
    if (this.#reason) this.#aborter.abort(this.#reason)
    return this.#aborter.signal
  }

  stop(): void {
    if (this.#alarm) this.#renewals.cancel(this.#alarm)
    this.#alarm = undefined
  }

  readonly #renew = async (): Promise<void> => {
    const askedMs = this.#clock.now()
    if (askedMs - this.#startedMs >= this.#limits.handlerMsMax) {
      return this.#lose(`the handler ran for longer than lease.handlerMsMax (${this.#limits.handlerMsMax} ms)`)
    }
    if (this.#asking && askedMs >= this.untilMs) return this.#lose('the store did not reply before the lease ran out')
    // The next look comes whether or not the store replies to this one.
    this.#alarm = this.#renewals.set(this.#renew)
    if (this.#asking) return
    this.#asking = true
    try {
      // Asked even when the lease has run out, after a long pause: if nobody took it over, it is still ours.
      const held = await this.#access.renew(this.#hold, this.#limits.ms)
      if (!this.#alarm) return
      if (!held) return this.#lose('another owner has taken the operation over, or its record was removed')
      this.untilMs = askedMs + this.#limits.ms
    } catch {
      // The next renewal tries again, as long as the lease lasts.
      if (this.#alarm && this.#clock.now() >= this.untilMs) this.#lose('the store failed until the lease ran out')
    } finally {
      this.#asking = false
    }
  }

  #lose(why: string): void {
    this.stop()
    this.#reason = new OncekeyError('outcome-unknown', `This run no longer holds its operation: ${why}.`)
    this.#aborter?.abort(this.#reason)
  }
}
