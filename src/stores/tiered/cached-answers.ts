import type { Clock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import type { Awaitable, Settlement, Store, StoredRecord } from '../../store.ts'
import { isPromise } from '../../store-access.ts'
import { copyOf, type Settled, within } from '../../store-combination.ts'

/**
 * The cache as tiered uses it: settled answers, each with a lifetime that ends no later than in the ledger. Whatever
 * goes wrong with it costs time and nothing else, so nothing here throws but `forget`.
 */
export class CachedAnswers {
  readonly #cache: Store
  readonly #clock: Clock
  readonly #bounds: CacheBounds
  #restUntilMs = Number.NEGATIVE_INFINITY

  constructor(cache: Store, clock: Clock, bounds: CacheBounds) {
    this.#cache = cache
    this.#clock = clock
    this.#bounds = bounds
  }

  find(id: string): Awaitable<Settled | undefined> {
    if (this.#clock.now() < this.#restUntilMs) return undefined
    try {
      const found = this.#cache.read(id)
      if (!isPromise(found)) return settledIn(found)
      return this.#bounded(() => found).then(settledIn, (error) => this.#failed(error))
    } catch (error) {
      return this.#failed(error)
    }
  }

  /** An answer that is there already stays. */
  fill(
    id: string,
    fingerprint: string,
    { outcome, answer }: Pick<Settlement, 'outcome' | 'answer'>,
    leftMs: number,
  ): void {
    const now = this.#clock.now()
    const ttlMs = Math.min(leftMs, this.#bounds.cacheTtlMsMax)
    if (ttlMs <= 0 || now < this.#restUntilMs) return
    const token = crypto.randomUUID()
    // Another filler that died leaves a claim behind: it holds nothing but a place for this very answer.
    const request = { id, token, fingerprint, leaseMs: FILL_LEASE_MS, unknownTtlMs: 0, takeover: true }
    try {
      const claim = this.#cache.claim(request)
      if (!isPromise(claim)) {
        if (claim.state !== 'acquired') return
        const kept = this.#cache.settle(id, token, { outcome, answer, ttlMs, expiredTtlMs: 0 })
        if (isPromise(kept)) void kept.catch((error) => this.#failed(error))
        return
      }
      const copy = copyOf(answer)
      void this.#bounded(async () => {
        if ((await claim).state !== 'acquired') return
        // The lifetime began when the claim was sent.
        const restMs = ttlMs - (this.#clock.now() - now)
        if (restMs > 0) await this.#cache.settle(id, token, { outcome, answer: copy, ttlMs: restMs, expiredTtlMs: 0 })
      }).catch((error) => this.#failed(error))
    } catch (error) {
      this.#failed(error)
    }
  }

  /** Throws when the cache cannot be told: it would go on replaying what an operator has taken away. */
  async forget(id: string): Promise<void> {
    try {
      await this.#bounded(() => this.#cache.forget(id))
    } catch (error) {
      this.#failed(error)
      throw new OncekeyError(
        'store-unavailable',
        `The ledger has it, but the cache (${this.#cache.name}) could not be told, and may replay the old answer for up to ` +
          `${this.#bounds.cacheTtlMsMax} ms. Do the same again when it is back.`,
        { cause: error },
      )
    }
  }

  async sweep(limit: number | undefined): Promise<void> {
    try {
      await this.#bounded(() => this.#cache.sweep(limit))
    } catch (error) {
      this.#failed(error)
    }
  }

  #bounded<T>(call: () => Awaitable<T>): Promise<T> {
    return within(this.#clock, this.#bounds.cacheMsMax, this.#cache.name, call)
  }

  /** A cache that is away is left alone for a moment, so that not every request waits for it. */
  #failed(error: unknown): undefined {
    this.#restUntilMs = this.#clock.now() + REST_MS
    this.#bounds.onCacheError?.(error)
    return undefined
  }
}

export interface CacheBounds {
  readonly cacheTtlMsMax: number
  readonly cacheMsMax: number
  readonly onCacheError: ((error: unknown) => void) | undefined
}

function settledIn(record: StoredRecord | undefined): Settled | undefined {
  if (record?.state !== 'settled') return undefined
  const { id, attempt, createdAt, goneAt, labels, ...state } = record
  return state
}

const FILL_LEASE_MS = 1_000
const REST_MS = 1_000
