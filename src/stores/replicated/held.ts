import type { Clock } from '../../clock.ts'
import type { ClaimRequest, Settlement } from '../../store.ts'

/** One claim that this process holds. */
export interface HeldClaim {
  readonly request: ClaimRequest
  /** Whether the global ledger has it. */
  isGlobal: boolean
  /** What the first settle brought, and when: one that is asked again may have been kept the first time. */
  settled: { readonly settlement: Settlement; readonly atMs: number } | undefined
  goneMs: number
}

interface Asking {
  readonly token: string
  /** Its owner let go before the reply came. */
  isOver: boolean
}

/** The claims of this process: as many as operations are running. Those that nobody ended go when they lapse. */
export class Held {
  readonly #clock: Clock
  /** Those renewed last come last. */
  readonly #claims = new Map<string, HeldClaim>()
  readonly #asking = new Map<string, Set<Asking>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  add(request: ClaimRequest, isGlobal: boolean): void {
    const now = this.#clock.now()
    let steps = DROP_STEPS
    for (const [id, { goneMs }] of this.#claims) {
      if (steps-- === 0 || now < goneMs) break
      this.#claims.delete(id)
    }
    const settled = this.get(request.id, request.token)?.settled
    this.#put({ request, isGlobal, settled, goneMs: now + request.leaseMs + request.unknownTtlMs })
  }

  get(id: string, token: string): HeldClaim | undefined {
    const claim = this.#claims.get(id)
    return claim?.request.token === token ? claim : undefined
  }

  renewed(id: string, token: string, leaseMs: number): void {
    const claim = this.get(id, token)
    if (claim) this.#put({ ...claim, goneMs: this.#clock.now() + leaseMs + claim.request.unknownTtlMs })
  }

  drop(id: string, token: string): void {
    if (this.get(id, token)) this.#claims.delete(id)
  }

  /** A claim of this token is on its way to the global ledger. */
  asks(id: string, token: string): Asking {
    const asking = { token, isOver: false }
    this.#asking.set(id, (this.#asking.get(id) ?? new Set()).add(asking))
    return asking
  }

  asked(id: string, asking: Asking): void {
    const all = this.#asking.get(id)
    all?.delete(asking)
    if (all?.size === 0) this.#asking.delete(id)
  }

  letsGo(id: string, token?: string): void {
    for (const asking of this.#asking.get(id) ?? []) asking.isOver ||= token === undefined || asking.token === token
  }

  #put(claim: HeldClaim): void {
    this.#claims.delete(claim.request.id)
    this.#claims.set(claim.request.id, claim)
  }
}

const DROP_STEPS = 2
