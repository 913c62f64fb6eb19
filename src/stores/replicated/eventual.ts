import type { Clock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import type {
  Answer,
  Awaitable,
  Claim,
  ClaimRequest,
  ListQuery,
  RecordState,
  Settlement,
  Store,
  StoredRecord,
} from '../../store.ts'
import { Calls, copyOf, isAway, within } from '../../store-combination.ts'
import { Held, type HeldClaim } from './held.ts'
import { Untold } from './untold.ts'
import { waitForEither } from './waiting.ts'

/** An operation that ran here, and of which the global ledger says something else: it ran elsewhere, too. */
export interface ReplicationConflict {
  readonly id: string
  readonly fingerprint: string
  /** What clients of this data centre were answered. */
  readonly local: Answer
  /** What the global ledger has. */
  readonly global: RecordState
}

export interface EventualBounds {
  readonly globalMsMax: number
  readonly retryEveryMs: number
  readonly untoldMax: number
}

/**
 * The local ledger decides, and the global one is asked whenever it can be reached. When it cannot, the operation runs
 * all the same, and the global ledger is told when it is back; by then another data centre may have run it, too.
 */
export class Eventual implements Store {
  readonly name: string
  readonly waitFor?: (id: string, signal: AbortSignal) => Promise<void>
  readonly #local: Store
  readonly #global: Store
  readonly #clock: Clock
  readonly #bounds: EventualBounds
  readonly #calls: Calls
  readonly #held: Held
  readonly #untold: Untold
  readonly #onConflict: (conflict: ReplicationConflict) => void
  readonly #onError: (error: unknown) => void
  #awayUntilMs = Number.NEGATIVE_INFINITY

  constructor(
    local: Store,
    global: Store,
    clock: Clock,
    bounds: EventualBounds,
    onConflict: (conflict: ReplicationConflict) => void,
    onError: (error: unknown) => void,
  ) {
    this.name = `replicated(${local.name}, ${global.name}, eventual)`
    this.#local = local
    this.#global = global
    this.#clock = clock
    this.#bounds = bounds
    this.#calls = new Calls(this.name, clock)
    this.#held = new Held(clock)
    this.#untold = new Untold(clock, bounds.retryEveryMs, onError)
    this.#onConflict = onConflict
    this.#onError = onError
    const waitFor = waitForEither(local, global)
    if (waitFor) this.waitFor = (id, signal) => this.#calls.wait(() => waitFor(id, signal))
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    return this.#calls.run(async () => {
      // What is just being told about this id would else be taken for somebody else's.
      await this.#untold.underWay(request.id)
      const local = await this.#local.claim(request)
      if (local.state === 'acquired') return this.#claimGlobally(request, local.attempt)
      if (local.state !== 'running' || local.fingerprint === request.fingerprint) return local
      // Perhaps it is the other one whose payload is wrong, and the global ledger is just about to tell it so.
      return (await this.#ifReached((global) => global.read(request.id))) ?? local
    })
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#calls.run(async () => {
      const held = this.#held.get(id, token)
      if (held) held.settled ??= { settlement, atMs: this.#clock.now() }
      const isKept = await this.#local.settle(id, token, settlement)
      this.#held.drop(id, token)
      // Asked twice with two answers, only the local ledger knows which of them it kept.
      if (isKept && held?.settled?.settlement === settlement) {
        this.#tell(held, { ...settlement, answer: copyOf(settlement.answer) }, held.settled.atMs)
      }
      return isKept
    })
  }

  async release(id: string, token: string): Promise<boolean> {
    return this.#calls.run(async () => {
      await this.#letGo(id, token, (global) => global.release(id, token))
      this.#held.drop(id, token)
      return this.#local.release(id, token)
    })
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#calls.run(async () => {
      if (leaseMs === 0) await this.#letGo(id, token, (global) => global.renew(id, token, 0))
      const isHeld = await this.#local.renew(id, token, leaseMs)
      if (isHeld && leaseMs > 0) {
        this.#held.renewed(id, token, leaseMs)
        if (this.#held.get(id, token)?.isGlobal) {
          void this.#calls.alsoAwait(this.#ifReached((global) => global.renew(id, token, leaseMs)))
        }
      }
      return isHeld
    })
  }

  /** Of this data centre, or else of another as far as it can be reached. */
  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#calls.run(async () => {
      await this.#untold.underWay(id)
      return (await this.#local.read(id)) ?? (await this.#ifReached((global) => global.read(id)))
    })
  }

  /** The records of this data centre. */
  async list(query?: ListQuery): Promise<readonly StoredRecord[]> {
    return this.#calls.run(async () => this.#local.list(query))
  }

  async forget(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      await this.#untold.underWay(id)
      // Globally first: while the global ledger is away nothing is forgotten, because half of it would come back.
      const isForgotten = await this.#globally((global) => global.forget(id))
      this.#untold.drop(id)
      return (await this.#local.forget(id)) || isForgotten
    })
  }

  async redact(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      await this.#untold.underWay(id)
      const isRedacted = await this.#globally((global) => global.redact(id))
      return (await this.#local.redact(id)) || isRedacted
    })
  }

  async sweep(limit?: number): Promise<number> {
    return this.#calls.run(async () => {
      const freed = await this.#local.sweep(limit)
      await this.#ifReached((global) => global.sweep(limit))
      return freed
    })
  }

  close(): Promise<void> {
    return this.#calls.close([this.#local, this.#global], async () => {
      const left = await this.#untold.flush()
      if (left === 0) return
      const text = `${left} answers were not told to ${this.#global.name}, which is away. They are in ${this.#local.name}.`
      this.#onError(new OncekeyError('store-unavailable', text))
    })
  }

  async #claimGlobally(request: ClaimRequest, attempt: number): Promise<Claim> {
    const { id, token } = request
    const askedMs = this.#clock.now()
    const letGo = async () => {
      if (attempt > 1) await this.#local.renew(id, token, 0)
      else await this.#local.release(id, token)
    }
    let claim: Claim
    try {
      claim = await this.#globally((global) => global.claim(request))
    } catch (error) {
      if (isAway(error) && this.#untold.size < this.#bounds.untoldMax) {
        this.#held.add(request, false)
        return { state: 'acquired', attempt }
      }
      await letGo()
      throw error
    }
    if (claim.state === 'acquired') {
      this.#held.add(request, true)
      return { state: 'acquired', attempt: Math.max(attempt, claim.attempt) }
    }
    const ttlMs = (claim.state === 'settled' ? claim.expiresInMs : 0) - (this.#clock.now() - askedMs)
    if (claim.state === 'settled' && claim.fingerprint === request.fingerprint && ttlMs > 0) {
      const { outcome, answer } = claim
      await this.#local.settle(id, token, { outcome, answer, ttlMs, expiredTtlMs: 0 })
    } else {
      await letGo()
    }
    return claim
  }

  /** Before the local record changes: whoever finds that one free must not find the global one still held. */
  async #letGo(id: string, token: string, letGo: (global: Store) => Awaitable<boolean>): Promise<void> {
    const held = this.#held.get(id, token)
    if (held && !held.isGlobal) return
    try {
      await this.#globally(letGo)
    } catch (error) {
      if (!isAway(error)) throw error
      const untilMs = held?.goneMs ?? this.#clock.now() + this.#bounds.retryEveryMs
      if (this.#untold.size >= this.#bounds.untoldMax) return
      void this.#untold.add({ id, untilMs, tell: async () => void (await this.#globally(letGo)) })
    }
  }

  #tell(held: HeldClaim, settlement: Settlement, settledMs: number): void {
    const { id, token, fingerprint } = held.request
    const expiresMs = settledMs + settlement.ttlMs
    const leftMs = () => Math.max(0, expiresMs - this.#clock.now())
    const settle = (global: Store) => global.settle(id, token, { ...settlement, ttlMs: leftMs() })
    // A claim that stands there must be ended, even when nobody wants the answer any more.
    const untilMs = held.isGlobal ? Math.max(expiresMs, held.goneMs) : expiresMs
    const tell = async () => {
      if ((held.isGlobal && (await this.#globally(settle))) || leftMs() === 0) return
      // There is an answer: a claim there whose outcome is unknown has found it.
      const claim = await this.#globally((global) => global.claim({ ...held.request, takeover: true }))
      if (claim.state !== 'acquired') {
        // Not this token's, for its own it would have settled: another has run it, or runs it now.
        this.#onConflict({ id, fingerprint, local: settlement.answer, global: claim })
        return
      }
      held.isGlobal = true
      await this.#globally(settle)
    }
    void this.#calls.alsoAwait(this.#untold.add({ id, untilMs, tell }))
  }

  /** Throws when the global ledger is away, at once for a while after it was. */
  async #globally<T>(call: (global: Store) => Awaitable<T>): Promise<T> {
    if (this.#clock.now() < this.#awayUntilMs) {
      throw new OncekeyError('store-unavailable', `${this.#global.name} is away. It is tried again in a moment.`)
    }
    try {
      return await within(this.#clock, this.#bounds.globalMsMax, this.#global.name, () => call(this.#global))
    } catch (error) {
      if (isAway(error)) this.#awayUntilMs = this.#clock.now() + this.#bounds.retryEveryMs
      throw error
    }
  }

  async #ifReached<T>(call: (global: Store) => Awaitable<T>): Promise<T | undefined> {
    try {
      return await this.#globally(call)
    } catch (error) {
      if (!isAway(error)) this.#onError(error)
      return undefined
    }
  }
}
