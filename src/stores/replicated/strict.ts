import type { Clock } from '../../clock.ts'
import type { Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../../store.ts'
import { Calls, isAway, type Settled } from '../../store-combination.ts'
import { Held, type HeldClaim } from './held.ts'
import { waitForEither } from './waiting.ts'

/**
 * The global ledger decides alone, and is always written first. The local one follows, and so knows only what the global
 * one has confirmed: the settled answers, and that an operation is running in this data centre. It answers these; all
 * else is asked globally.
 */
export class Strict implements Store {
  readonly name: string
  readonly waitFor?: (id: string, signal: AbortSignal) => Promise<void>
  readonly #local: Store
  readonly #global: Store
  readonly #clock: Clock
  readonly #calls: Calls
  readonly #held: Held
  readonly #onError: (error: unknown) => void

  constructor(local: Store, global: Store, clock: Clock, onError: (error: unknown) => void) {
    this.name = `replicated(${local.name}, ${global.name}, strict)`
    this.#local = local
    this.#global = global
    this.#clock = clock
    this.#calls = new Calls(this.name, clock)
    this.#held = new Held(clock)
    this.#onError = onError
    const waitFor = waitForEither(local, global)
    if (waitFor) this.waitFor = (id, signal) => this.#calls.wait(() => waitFor(id, signal))
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    return this.#calls.run(async () => {
      const known = await this.#local.read(request.id)
      if (known?.state === 'settled') return asWritten(known)
      // An owner that asks again must hear it from the global ledger: only the local one can tell it by its token.
      if (known?.state === 'running' && !isCopy(known)) {
        // Should the owner have let go just now, this makes a record: marked, so that nobody takes it for one that runs.
        const marked = { ...request, fingerprint: COPY + request.fingerprint, takeover: false }
        const again = await this.#local.claim(marked)
        if (again.state === 'settled' || (again.state === 'running' && !isCopy(again))) return asWritten(again)
      }
      return this.#claimGlobally(request)
    })
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#calls.run(async () => {
      const held = this.#held.get(id, token)
      if (held) held.settled ??= { settlement, atMs: this.#clock.now() }
      this.#held.letsGo(id, token)
      // From this moment on only the global ledger can say what it is.
      const silenced = this.#locally(() => this.#local.renew(id, token, 0))
      let isKept: boolean
      try {
        isKept = await this.#global.settle(id, token, settlement)
      } finally {
        await silenced
      }
      this.#held.drop(id, token)
      await this.#locally(() => {
        // Asked twice with two answers, only the global ledger knows which of them it kept.
        const first = held?.settled
        const isOwn = isKept && first?.settlement === settlement
        return isOwn ? this.#keepLocally(id, token, first) : this.#local.release(id, token)
      })
      return isKept
    })
  }

  async release(id: string, token: string): Promise<boolean> {
    return this.#calls.run(async () => {
      this.#held.letsGo(id, token)
      this.#held.drop(id, token)
      const [isReleased] = await Promise.all([
        this.#global.release(id, token),
        this.#locally(() => this.#local.release(id, token)),
      ])
      return isReleased
    })
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#calls.run(async () => {
      if (leaseMs === 0) return this.#giveUp(id, token)
      const askedMs = this.#clock.now()
      const isHeld = await this.#global.renew(id, token, leaseMs)
      if (isHeld) this.#held.renewed(id, token, leaseMs)
      await this.#locally(() =>
        isHeld ? this.#renewLocally(id, token, leaseMs, askedMs) : this.#local.release(id, token),
      )
      return isHeld
    })
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#calls.run(async () => {
      try {
        return await this.#global.read(id)
      } catch (error) {
        const local = isAway(error) ? await this.#local.read(id) : undefined
        if (local?.state === 'settled') return asWritten(local)
        throw error
      }
    })
  }

  async list(query?: ListQuery): Promise<readonly StoredRecord[]> {
    return this.#calls.run(async () => this.#global.list(query))
  }

  async forget(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      this.#held.letsGo(id)
      const isForgotten = await this.#global.forget(id)
      return (await this.#local.forget(id)) || isForgotten
    })
  }

  async redact(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      const isRedacted = await this.#global.redact(id)
      return (await this.#local.redact(id)) || isRedacted
    })
  }

  async sweep(limit?: number): Promise<number> {
    return this.#calls.run(async () => {
      await this.#locally(() => this.#local.sweep(limit))
      return this.#global.sweep(limit)
    })
  }

  close(): Promise<void> {
    return this.#calls.close([this.#local, this.#global])
  }

  async #giveUp(id: string, token: string): Promise<boolean> {
    this.#held.letsGo(id, token)
    this.#held.drop(id, token)
    const [isHeld] = await Promise.all([
      this.#global.renew(id, token, 0),
      this.#locally(() => this.#local.release(id, token)),
    ])
    return isHeld
  }

  async #claimGlobally(request: ClaimRequest): Promise<Claim> {
    const { id, token } = request
    const askedMs = this.#clock.now()
    const asking = this.#held.asks(id, token)
    try {
      const claim = await this.#global.claim(request)
      if (claim.state === 'acquired') {
        // A reply that comes after its owner has let go says nothing about now.
        if (asking.isOver) return claim
        this.#held.add(request, true)
        await this.#locally(() => this.#claimLocally(request, askedMs))
      } else {
        await this.#locally(() => this.#local.release(id, token))
        if (claim.state === 'settled') await this.#locally(() => this.#copyLocally(request, claim, askedMs))
      }
      return claim
    } finally {
      this.#held.asked(id, asking)
    }
  }

  /** Whatever the local ledger remembers is from before: the global one has a new owner. */
  async #claimLocally(request: ClaimRequest, askedMs: number): Promise<void> {
    const leaseMs = request.leaseMs - (this.#clock.now() - askedMs)
    if (leaseMs <= 0) return
    const claim = await this.#local.claim({ ...request, leaseMs, takeover: true })
    if (claim.state === 'acquired') return
    await this.#local.forget(request.id)
    await this.#local.claim({ ...request, leaseMs })
  }

  /** A reply that comes after its owner has let go must not make it running again. */
  async #renewLocally(id: string, token: string, leaseMs: number, askedMs: number): Promise<void> {
    const held = this.#held.get(id, token)
    const leftMs = leaseMs - (this.#clock.now() - askedMs)
    if (held && !held.settled && leftMs > 0) await this.#local.renew(id, token, leftMs)
  }

  /** An answer that another process has asked for. While it is being copied nobody may take it for one that runs. */
  async #copyLocally({ id, token, leaseMs }: ClaimRequest, settled: Settled, askedMs: number): Promise<void> {
    const { fingerprint, outcome, answer, expiresInMs } = settled
    const request = { id, token, fingerprint: COPY + fingerprint, leaseMs, unknownTtlMs: 0, takeover: true }
    const claim = await this.#local.claim(request)
    if (claim.state !== 'acquired') return
    const settlement = { outcome, answer, ttlMs: expiresInMs, expiredTtlMs: 0 }
    await this.#keepLocally(id, token, { settlement, atMs: askedMs })
  }

  /** Counted from when the global ledger was asked first, so that the copy does not outlive the answer. */
  async #keepLocally(id: string, token: string, settled: NonNullable<HeldClaim['settled']>): Promise<void> {
    const { settlement, atMs } = settled
    const ttlMs = settlement.ttlMs - (this.#clock.now() - atMs)
    if (ttlMs <= 0) await this.#local.release(id, token)
    else await this.#local.settle(id, token, { ...settlement, ttlMs, expiredTtlMs: 0 })
  }

  /** The local ledger follows. When it cannot, its record lapses, and the global one is asked again. */
  async #locally(follow: () => unknown): Promise<void> {
    try {
      await follow()
    } catch (error) {
      this.#onError(error)
    }
  }
}

/** Before the fingerprint of a local record that says nothing of who runs. */
const COPY = 'copy of '

function isCopy({ fingerprint }: { readonly fingerprint: string }): boolean {
  return fingerprint.startsWith(COPY)
}

function asWritten<R extends { readonly fingerprint: string }>(record: R): R {
  return isCopy(record) ? { ...record, fingerprint: record.fingerprint.slice(COPY.length) } : record
}
