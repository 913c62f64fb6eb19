import { OncekeyError } from '../../src/error.ts'
import type { Store } from '../../src/store.ts'
import { claimOf, settlementOf } from './nats.ts'

/**
 * Claims every key once through each store, all at the same moment, and settles what was acquired. Keeps its own log of
 * effects and of what was acknowledged, as the judge: the stores' servers may die meanwhile.
 */
export class Workload {
  readonly #stores: readonly Store[]
  readonly #effects = new Map<string, number>()
  readonly #claimed: string[] = []
  readonly #settled = new Set<string>()
  #refused = 0
  #isStopping = false
  #lanes: Promise<unknown> | undefined
  #next = 0
  #changed = Promise.withResolvers<void>()

  constructor(stores: readonly Store[]) {
    this.#stores = stores
  }

  start(): void {
    const LANES = 16
    this.#lanes = Promise.all(Array.from({ length: LANES }, () => this.#lane()))
  }

  async stop(): Promise<void> {
    this.#isStopping = true
    await this.#lanes
  }

  /** Until so many answers were acknowledged. */
  settled(count: number): Promise<void> {
    return this.#until(() => this.#settled.size >= count)
  }

  /** Until so many operations were refused because the store was away. */
  refused(count: number): Promise<void> {
    return this.#until(() => this.#refused >= count)
  }

  get refusals(): number {
    return this.#refused
  }

  async verdict(): Promise<{ doubleEffects: string[]; lost: string[] }> {
    const doubleEffects = [...this.#effects].filter(([, count]) => count > 1).map(([key]) => key)
    const lost: string[] = []
    const [store] = this.#stores
    const look = async (key: string): Promise<void> => {
      const record = await store?.read(key)
      const isKept = this.#settled.has(key) ? record?.state === 'settled' : record !== undefined
      if (!isKept) lost.push(`${key}: ${record?.state ?? 'absent'}`)
    }
    for (let at = 0; at < this.#claimed.length; at += 100)
      await Promise.all(this.#claimed.slice(at, at + 100).map(look))
    return { doubleEffects, lost }
  }

  async #lane(): Promise<void> {
    while (!this.#isStopping) {
      const key = `key ${this.#next++}`
      await Promise.all(this.#stores.map((store, at) => this.#operation(store, key, `token ${at} of ${key}`)))
    }
  }

  async #operation(store: Store, key: string, token: string): Promise<void> {
    try {
      const claim = await this.#asked(() => store.claim(claimOf(key, { token })))
      if (claim.state !== 'acquired') return
      this.#claimed.push(key)
      this.#effects.set(key, (this.#effects.get(key) ?? 0) + 1)
      if (await this.#asked(() => store.settle(key, token, settlementOf(token)))) this.#settled.add(key)
    } catch (error) {
      if (!(error instanceof OncekeyError) || error.code !== 'store-unavailable') throw error
      this.#refused++
      // A connection that is closed refuses at once: the lanes must not keep everything else from running.
      await new Promise((resolve) => setImmediate(resolve))
    }
    this.#changed.resolve()
    this.#changed = Promise.withResolvers()
  }

  /** As the engine does: once more with the same token, for the reply may have been lost. */
  async #asked<T>(verb: () => T | Promise<T>): Promise<T> {
    try {
      return await verb()
    } catch {
      return await verb()
    }
  }

  async #until(condition: () => boolean): Promise<void> {
    while (!condition()) await this.#changed.promise
  }
}
