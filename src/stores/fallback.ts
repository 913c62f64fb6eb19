import { type Clock, systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { Awaitable, Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../store.ts'
import { PROBE_ID } from '../store-checks.ts'
import { assertBound, Calls, isAway, within } from '../store-combination.ts'
import { type Bounds, Circuit } from './fallback/circuit.ts'
import { type Hold, Holds } from './fallback/holds.ts'
import { merged, SecondaryRecords } from './fallback/secondary-records.ts'

export interface FallbackOptions {
  readonly primary: Store
  /** Used while the primary is away. Its records outlive the outage: it is asked until the last of them is gone. */
  readonly secondary: Store
  /** How many calls in a row must fail before the primary counts as away. Default 3. */
  readonly failuresMax?: number
  /** And for how long it must have been failing; 0: no time. Until then claims are refused. Default 1,000. */
  readonly awayMsMin?: number
  /** How often a primary that is away is tried. Default 1,000. */
  readonly probeEveryMs?: number
  /** How long the primary may take before a call counts as failed. Default 1,000. */
  readonly primaryMsMax?: number
  /**
   * How old the knowledge may be that the secondary is empty. This long after another process went over to the
   * secondary, this one may not know of it. Default 1,000.
   */
  readonly watchEveryMs?: number
  /** Hears of every operation that is known to have run in both stores. */
  readonly onConflict?: (conflict: FallbackConflict) => void
  readonly clock?: Clock
}

/** An operation that this process ran under a claim of the primary, while another ran it under one of the secondary. */
export interface FallbackConflict {
  readonly id: string
  readonly token: string
}

/**
 * BEST EFFORT: a second store for the time when the first is away. Neither is the authority over the other, so an
 * operation can run twice across a switch. Where that must not happen, use one durable store, or `tiered`.
 *
 * What holds:
 * - While no store goes away, everything that the primary guarantees.
 * - A claim that this process holds on the primary moves to the secondary when the primary goes away, within its lease,
 *   and is renewed, settled and released there. The answer of such an operation is replayed, during the outage and after it.
 * - What ran on the secondary is replayed after the primary came back, until its record there is gone: every claim that
 *   the primary would let through is checked against the secondary first, as long as the secondary has any record.
 *
 * What can run twice:
 * - An operation that was answered on the primary, and is retried while the primary is away.
 * - One whose owner died, or lost both stores, before its claim had moved.
 * - One that two processes run at the same time because only one of them can reach the primary, or because the other has
 *   not yet noticed (`watchEveryMs`) that the secondary is in use.
 */
export function fallback(options: FallbackOptions): Store {
  const { primary, secondary, failuresMax = 3, awayMsMin = 1_000, probeEveryMs = 1_000 } = options
  const { primaryMsMax = 1_000, watchEveryMs = 1_000, onConflict = () => {}, clock = systemClock } = options
  if (typeof primary?.claim !== 'function' || typeof secondary?.claim !== 'function' || primary === secondary) {
    throw new OncekeyError('config-invalid', 'fallback needs two different stores: primary and secondary.')
  }
  const bounds = { failuresMax, awayMsMin, probeEveryMs, primaryMsMax, watchEveryMs }
  for (const [field, value] of Object.entries(bounds)) assertBound(field, value, field === 'awayMsMin' ? 0 : 1)
  return new Fallback(primary, secondary, bounds, onConflict, clock)
}

/** No operation has this id; to claim it shows whether the primary works. */
const PROBE = { id: PROBE_ID, fingerprint: 'probe', leaseMs: 1_000, unknownTtlMs: 0, takeover: true }
/** Releases that the primary is still to hear of; more are left to lapse. */
const OWED_MAX = 10_000
const SWEEP_LIMIT_DEFAULT = 1_000

class Fallback implements Store {
  readonly name: string
  readonly waitFor?: (id: string, signal: AbortSignal) => Promise<void>
  readonly #primary: Store
  readonly #secondary: Store
  readonly #bounds: Bounds
  readonly #onConflict: (conflict: FallbackConflict) => void
  readonly #clock: Clock
  readonly #calls: Calls
  readonly #circuit: Circuit
  readonly #holds: Holds
  readonly #records: SecondaryRecords
  /** Token by id. */
  readonly #owed = new Map<string, string>()

  constructor(
    primary: Store,
    secondary: Store,
    bounds: Bounds,
    onConflict: (conflict: FallbackConflict) => void,
    clock: Clock,
  ) {
    this.name = `best-effort fallback(${primary.name}, ${secondary.name})`
    this.#primary = primary
    this.#secondary = secondary
    this.#bounds = bounds
    this.#onConflict = onConflict
    this.#clock = clock
    this.#calls = new Calls(this.name, clock)
    this.#circuit = new Circuit(bounds, clock)
    this.#holds = new Holds(clock)
    this.#records = new SecondaryRecords(secondary, clock, bounds)
    if (primary.waitFor && secondary.waitFor) {
      this.waitFor = (id, signal) => this.#calls.wait(() => this.#waitFor(id, signal))
    }
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    return this.#calls.run(async () => {
      if (!this.#circuit.isOpen) {
        try {
          return await this.#claimOnPrimary(request)
        } catch (error) {
          // A single failure is no reason to go over: others may still be using the primary.
          if (!isAway(error) || !this.#circuit.isOpen) throw error
        }
      }
      await this.#moved(request.id)
      return this.#claimOnSecondary(request)
    })
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#calls.run(async () => {
      const isKept = await this.#settle(id, token, settlement)
      this.#holds.drop(id, token)
      return isKept
    })
  }

  async release(id: string, token: string): Promise<boolean> {
    return this.#calls.run(async () => {
      const isReleased = await this.#write(id, token, (store) => store.release(id, token))
      if (this.#holds.get(id, token)?.isAlsoOnPrimary && this.#owed.size < OWED_MAX) this.#owed.set(id, token)
      this.#holds.drop(id, token)
      return isReleased
    })
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#calls.run(async () => {
      const askedMs = this.#clock.now()
      const isHeld = await this.#write(id, token, (store) => store.renew(id, token, leaseMs))
      if (isHeld) this.#holds.renewed(id, token, askedMs + leaseMs)
      return isHeld
    })
  }

  /** While the primary is away, what only the primary knows is not found. */
  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#calls.run(async () => {
      if (this.#circuit.isOpen) {
        await this.#moved(id)
        return this.#secondary.read(id)
      }
      const [record] = await Promise.all([this.#onPrimary((store) => store.read(id)), this.#records.look()])
      if (!this.#records.mayBe || record?.state === 'settled' || record?.state === 'expired') return record
      return (await this.#secondary.read(id)) ?? record
    })
  }

  async list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    return this.#calls.run(async () => {
      if (this.#circuit.isOpen) return this.#secondary.list(query)
      const [first] = await Promise.all([this.#onPrimary((store) => store.list(query)), this.#records.look()])
      return this.#records.mayBe ? merged(first, await this.#secondary.list(query), query.limit) : first
    })
  }

  async forget(id: string): Promise<boolean> {
    return this.#inBoth(
      (store) => store.forget(id),
      () => this.#holds.drop(id),
    )
  }

  async redact(id: string): Promise<boolean> {
    return this.#inBoth((store) => store.redact(id))
  }

  /** In the primary first: while that is away nothing is changed, because half of it would come back. */
  #inBoth(verb: (store: Store) => Awaitable<boolean>, between = () => {}): Promise<boolean> {
    return this.#calls.run(async () => {
      const isDone = await this.#onPrimary(verb)
      await this.#records.look()
      between()
      return (this.#records.mayBe && (await verb(this.#secondary))) || isDone
    })
  }

  async sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    return this.#calls.run(async () => {
      const freed = this.#circuit.isOpen ? 0 : await this.#onPrimary((store) => store.sweep(limit))
      return freed < limit ? freed + (await this.#secondary.sweep(limit - freed)) : freed
    })
  }

  close(): Promise<void> {
    return this.#calls.close([this.#primary, this.#secondary])
  }

  /**
   * Claims first and looks at the secondary then: whoever claimed there before this look is seen. The other way round,
   * one who claims there between look and claim would not be.
   */
  async #claimOnPrimary(request: ClaimRequest): Promise<Claim> {
    const askedMs = this.#clock.now()
    const [claim] = await Promise.all([this.#onPrimary((store) => store.claim(request)), this.#records.look()])
    if (claim.state === 'settled' || claim.state === 'expired') return claim
    const elsewhere = await this.#lookUp(request, claim)
    if (elsewhere) {
      await this.#undo(request, claim)
      return this.#claimOnSecondary(request)
    }
    if (claim.state === 'acquired') this.#holds.add(request, 'primary', askedMs)
    return claim
  }

  async #lookUp(request: ClaimRequest, claim: Claim): Promise<StoredRecord | undefined> {
    if (!this.#records.mayBe) return undefined
    try {
      return await this.#secondary.read(request.id)
    } catch (error) {
      await this.#undo(request, claim)
      throw error
    }
  }

  /** The record on the primary is left as it was found; if that fails, it lapses. */
  async #undo({ id, token }: ClaimRequest, claim: Claim): Promise<void> {
    if (claim.state !== 'acquired') return
    const letGo = (store: Store) => (claim.attempt > 1 ? store.renew(id, token, 0) : store.release(id, token))
    await this.#onPrimary(letGo).catch(() => {})
  }

  async #claimOnSecondary(request: ClaimRequest): Promise<Claim> {
    this.#probe()
    this.#records.added()
    const askedMs = this.#clock.now()
    const claim = await this.#secondary.claim(request)
    if (claim.state === 'acquired') this.#holds.add(request, 'secondary', askedMs)
    return claim
  }

  /** The effect has taken place: when the primary does not take the answer, the secondary keeps it. */
  async #settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    const settle = (store: Store) => store.settle(id, token, settlement)
    const hold = this.#holds.get(id, token)
    if (hold?.at !== 'primary' || this.#circuit.isOpen) return this.#write(id, token, settle)
    try {
      return await this.#onPrimary(settle)
    } catch (error) {
      if (!isAway(error)) throw error
      return (await this.#move(hold)) && settle(this.#secondary)
    }
  }

  /** Writes where the token's record is. */
  async #write(id: string, token: string, write: (store: Store) => Awaitable<boolean>): Promise<boolean> {
    this.#probe()
    const hold = this.#holds.get(id, token)
    if (hold?.at === 'secondary') return write(this.#secondary)
    if (this.#circuit.isOpen) {
      if (hold) return (await this.#move(hold)) && write(this.#secondary)
      if (await write(this.#secondary)) return true
      throw this.#away()
    }
    const [isWritten] = await Promise.all([this.#onPrimary(write), this.#records.look()])
    return isWritten || (this.#records.mayBe && write(this.#secondary))
  }

  async #onPrimary<T>(call: (store: Store) => Awaitable<T>): Promise<T> {
    if (this.#circuit.isOpen) throw this.#away()
    try {
      const reply = await within(this.#clock, this.#bounds.primaryMsMax, this.#primary.name, () => call(this.#primary))
      this.#circuit.succeeded()
      return reply
    } catch (error) {
      if (isAway(error) && this.#circuit.failed()) {
        // What this process holds goes along at once, so that others find it; what fails now is moved when it is needed.
        for (const hold of this.#holds.liveOnPrimary()) this.#calls.alsoAwait(this.#move(hold)).catch(() => {})
      }
      throw error
    }
  }

  async #moved(id: string): Promise<void> {
    const hold = this.#holds.get(id)
    if (hold?.at === 'primary' && this.#holds.isLive(hold)) await this.#move(hold)
  }

  /** Takes the claim to the secondary, under the same token. `false`: somebody else has run it there. */
  #move(hold: Hold): Promise<boolean> {
    hold.moving ??= this.#moveNow(hold).finally(() => {
      hold.moving = undefined
    })
    return hold.moving
  }

  async #moveNow(hold: Hold): Promise<boolean> {
    if (hold.at === 'secondary') return true
    // After its lease somebody may have taken it over on the primary: then only the primary can say whose it is.
    if (!this.#holds.isLive(hold)) throw this.#away()
    const { request } = hold
    this.#records.added()
    const claim = await this.#secondary.claim({ ...request, takeover: false })
    if (claim.state !== 'acquired') {
      this.#holds.drop(request.id, request.token)
      this.#onConflict({ id: request.id, token: request.token })
      return false
    }
    hold.at = 'secondary'
    hold.isAlsoOnPrimary = true
    return true
  }

  /** Behind the request that found it due: nobody waits for a primary that may be away. */
  #probe(): void {
    if (!this.#circuit.isProbeDue()) return
    const probe = within(this.#clock, this.#bounds.primaryMsMax, this.#primary.name, async () => {
      // A write: one that only reads would be no use.
      const request = { ...PROBE, token: crypto.randomUUID() }
      await this.#primary.claim(request)
      await this.#primary.release(request.id, request.token)
    }).then(async () => {
      this.#circuit.close()
      for (const [id, token] of this.#owed) {
        this.#owed.delete(id)
        await this.#onPrimary((store) => store.release(id, token))
      }
    })
    this.#calls.alsoAwait(probe).catch(() => {})
  }

  async #waitFor(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    if (this.#circuit.isOpen) await this.#moved(id)
    const isThere = this.#circuit.isOpen || (this.#records.mayBe && (await this.#secondary.read(id)) !== undefined)
    await (isThere ? this.#secondary : this.#primary).waitFor?.(id, signal)
  }

  #away(): OncekeyError {
    const message = `${this.#primary.name} is away, and only it could say. Nothing was changed. Try again when it is back.`
    return new OncekeyError('store-unavailable', message)
  }
}
