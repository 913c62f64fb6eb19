import type { Clock } from '../../clock.ts'
import type { ClaimRequest } from '../../store.ts'

/** One claim that this process holds, and in which of the two stores. */
export interface Hold {
  readonly request: ClaimRequest
  at: 'primary' | 'secondary'
  /** On this process's clock, counted from when the store was asked: until then nobody else can have taken it over. */
  leaseUntilMs: number
  /** Under way from the primary to the secondary. */
  moving: Promise<boolean> | undefined
  /** The primary still has a claim of this token. */
  isAlsoOnPrimary: boolean
}

/** Where each claim of this process is. As many as operations are running; those that nobody ended go when they lapse. */
export class Holds {
  readonly #clock: Clock
  /** Those renewed last come last. */
  readonly #holds = new Map<string, Hold>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  add(request: ClaimRequest, at: Hold['at'], askedMs: number): void {
    this.#dropGone()
    const known = this.get(request.id, request.token)
    if (known && known.at === at) return
    const leaseUntilMs = askedMs + request.leaseMs
    this.#holds.delete(request.id)
    this.#holds.set(request.id, { request, at, leaseUntilMs, moving: undefined, isAlsoOnPrimary: false })
  }

  get(id: string, token?: string): Hold | undefined {
    const hold = this.#holds.get(id)
    return token === undefined || hold?.request.token === token ? hold : undefined
  }

  renewed(id: string, token: string, leaseUntilMs: number): void {
    const hold = this.get(id, token)
    if (!hold) return
    hold.leaseUntilMs = leaseUntilMs
    this.#holds.delete(id)
    this.#holds.set(id, hold)
  }

  drop(id: string, token?: string): void {
    if (this.get(id, token)) this.#holds.delete(id)
  }

  isLive(hold: Hold): boolean {
    return this.#clock.now() < hold.leaseUntilMs
  }

  liveOnPrimary(): Hold[] {
    return [...this.#holds.values()].filter((hold) => hold.at === 'primary' && this.isLive(hold))
  }

  #dropGone(): void {
    const now = this.#clock.now()
    let steps = DROP_STEPS
    for (const [id, { leaseUntilMs, request }] of this.#holds) {
      if (steps-- === 0 || now < leaseUntilMs + request.unknownTtlMs) return
      this.#holds.delete(id)
    }
  }
}

const DROP_STEPS = 2
