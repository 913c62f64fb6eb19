import type { Awaitable, Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../../store.ts'

/** What may be done to a store on its way: each hook runs before the real verb, and may wait or throw. */
export interface Interference {
  claim?(): Awaitable<void>
  settle?(): Awaitable<void>
}

/**
 * A real store that is watched, and disturbed where a case asks for it. Cases wait for what the store was told instead
 * of sleeping.
 */
export class Watched implements Store {
  readonly name: string
  readonly waitFor?: (id: string, signal: AbortSignal) => Promise<void>
  /** How often any verb was called. */
  calls = 0
  interference: Interference = {}
  readonly #inner: Store
  #concluded = 0
  #wake: Array<() => void> = []

  constructor(inner: Store) {
    this.#inner = inner
    this.name = inner.name
    if (inner.waitFor) this.waitFor = (id, signal) => inner.waitFor?.(id, signal) ?? Promise.resolve()
  }

  claim(request: ClaimRequest): Awaitable<Claim> {
    this.calls++
    return after(this.interference.claim?.(), () => this.#inner.claim(request))
  }

  settle(id: string, token: string, settlement: Settlement): Awaitable<boolean> {
    this.calls++
    return this.#concludes(after(this.interference.settle?.(), () => this.#inner.settle(id, token, settlement)))
  }

  release(id: string, token: string): Awaitable<boolean> {
    this.calls++
    return this.#concludes(this.#inner.release(id, token))
  }

  renew(id: string, token: string, leaseMs: number): Awaitable<boolean> {
    this.calls++
    const renewed = this.#inner.renew(id, token, leaseMs)
    return leaseMs === 0 ? this.#concludes(renewed) : renewed
  }

  read(id: string): Awaitable<StoredRecord | undefined> {
    this.calls++
    return this.#inner.read(id)
  }

  list(query?: ListQuery): Awaitable<readonly StoredRecord[]> {
    return this.#inner.list(query)
  }

  forget(id: string): Awaitable<boolean> {
    return this.#inner.forget(id)
  }

  redact(id: string): Awaitable<boolean> {
    return this.#inner.redact(id)
  }

  sweep(limit?: number): Awaitable<number> {
    return this.#inner.sweep(limit)
  }

  close(): Promise<void> {
    return this.#inner.close()
  }

  /** Resolves when so many runs have ended for the store: settled, released or given up. */
  async concluded(count = 1): Promise<void> {
    const deadline = setTimeout(() => this.#rouse(), CONCLUDED_MS_MAX)
    const late = Date.now() + CONCLUDED_MS_MAX
    while (this.#concluded < count) {
      if (Date.now() >= late) {
        throw new Error('The run was never ended in the store: its key is stuck until the lease lapses.')
      }
      await new Promise<void>((resolve) => this.#wake.push(resolve))
    }
    clearTimeout(deadline)
  }

  #concludes(reply: Awaitable<boolean>): Awaitable<boolean> {
    if (!(reply instanceof Promise)) {
      this.#count()
      return reply
    }
    return reply.then((kept) => {
      this.#count()
      return kept
    })
  }

  #count(): void {
    this.#concluded++
    this.#rouse()
  }

  #rouse(): void {
    for (const wake of this.#wake.splice(0)) wake()
  }
}

const CONCLUDED_MS_MAX = 4_000

function after<T>(before: Awaitable<void>, call: () => Awaitable<T>): Awaitable<T> {
  return before instanceof Promise ? before.then(call) : call()
}
