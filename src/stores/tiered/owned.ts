import type { Clock } from '../../clock.ts'
import type { ClaimRequest, RecordState, Settlement } from '../../store.ts'

/**
 * The claims that this process holds in the ledger. Only what was acquired here is here, so it ends with the process and
 * cannot speak for an owner that is dead. The moment its end is asked for, an entry no longer answers: from then on only
 * the ledger knows.
 */
export class Owned {
  readonly #clock: Clock
  /** Those renewed last come last. */
  readonly #entries = new Map<string, OwnedEntry>()
  readonly #waiters = new Map<string, Set<() => void>>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** The lease counts from when the ledger was asked, so it ends here no later than there. */
  add({ id, token, fingerprint, leaseMs }: ClaimRequest, askedMs: number): void {
    this.#dropLapsed()
    this.#entries.delete(id)
    this.#entries.set(id, {
      id,
      token,
      fingerprint,
      untilMs: askedMs + leaseMs,
      isEnding: false,
      settled: undefined,
    })
  }

  /** What a duplicate is told. An owner that asks again must hear it from the ledger. */
  running({ id, token }: ClaimRequest): RecordState | undefined {
    const entry = this.#entries.get(id)
    if (entry === undefined || entry.isEnding || entry.token === token) return undefined
    const leaseLeftMs = entry.untilMs - this.#clock.now()
    return leaseLeftMs > 0 ? { state: 'running', fingerprint: entry.fingerprint, leaseLeftMs } : undefined
  }

  holds(id: string): boolean {
    const entry = this.#entries.get(id)
    return entry !== undefined && !entry.isEnding && this.#clock.now() < entry.untilMs
  }

  ending(id: string, token: string): OwnedEntry | undefined {
    const entry = this.#entries.get(id)
    if (entry?.token !== token) return undefined
    entry.isEnding = true
    return entry
  }

  extend(id: string, token: string, untilMs: number): void {
    const entry = this.#entries.get(id)
    if (entry?.token !== token) return
    entry.untilMs = untilMs
    this.#entries.delete(id)
    this.#entries.set(id, entry)
  }

  drop(id: string, token?: string): void {
    const entry = this.#entries.get(id)
    if (entry !== undefined && (token === undefined || entry.token === token)) this.#entries.delete(id)
    this.wake(id)
  }

  wake(id: string): void {
    for (const wake of this.#waiters.get(id) ?? []) wake()
  }

  wakeAll(): void {
    for (const id of [...this.#waiters.keys()]) this.wake(id)
  }

  /** Until the holder here lets go, or `msMax` have passed: others may change the record, too. */
  async wait(id: string, msMax: number, signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve) => {
      const waiters = this.#waiters.get(id) ?? new Set()
      this.#waiters.set(id, waiters)
      const wake = () => {
        cancel()
        signal.removeEventListener('abort', wake)
        waiters.delete(wake)
        if (waiters.size === 0 && this.#waiters.get(id) === waiters) this.#waiters.delete(id)
        resolve()
      }
      const cancel = this.#clock.schedule(msMax, wake)
      waiters.add(wake)
      signal.addEventListener('abort', wake)
    })
  }

  /** A handler that never ends leaves its entry behind; a few are looked at with each new one, so they never add up. */
  #dropLapsed(): void {
    const now = this.#clock.now()
    let steps = DROP_STEPS
    for (const entry of this.#entries.values()) {
      if (steps-- === 0 || now < entry.untilMs) return
      this.#entries.delete(entry.id)
    }
  }
}

export interface OwnedEntry {
  readonly id: string
  readonly token: string
  readonly fingerprint: string
  untilMs: number
  isEnding: boolean
  /** What the first settle brought, and when: one that is asked again may have been kept the first time. */
  settled: { readonly settlement: Settlement; readonly atMs: number } | undefined
}

const DROP_STEPS = 2
