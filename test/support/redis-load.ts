import type { Store } from '../../src/store.ts'
import { answered, claimOf } from './redis.ts'

const WORKERS = 16
const AGAIN_MS = 20

/** Workers that claim and settle one new key after the other, and ask again with the same token when the store fails. */
export class Load {
  /** What was acknowledged: a claim that was acquired, and a settle that was true. */
  readonly claimed: string[] = []
  readonly settled: string[] = []
  /** The judge: one entry each time that an effect took place. */
  readonly effects: string[] = []
  readonly errors: unknown[] = []
  readonly #store: Store
  readonly #name: string
  readonly #workers: Array<Promise<void>>
  #next = 0
  #isOver = false

  constructor(store: Store, name: string) {
    this.#store = store
    this.#name = name
    this.#workers = Array.from({ length: WORKERS }, () => this.#work())
  }

  /** Resolves when this many more claims have been acknowledged. */
  async more(count: number): Promise<void> {
    const goal = this.claimed.length + count
    while (this.claimed.length < goal) await new Promise((resolve) => setTimeout(resolve, 1))
  }

  async end(): Promise<void> {
    this.#isOver = true
    await Promise.all(this.#workers)
  }

  async #work(): Promise<void> {
    while (!this.#isOver) {
      const id = `${this.#name}-${this.#next++}`
      const claim = await this.#asked(() => this.#store.claim(claimOf(id, { token: id })))
      if (claim.state !== 'acquired') continue
      this.claimed.push(id)
      this.effects.push(id)
      if (await this.#asked(() => this.#store.settle(id, id, answered))) this.settled.push(id)
    }
  }

  async #asked<T>(verb: () => T): Promise<Awaited<T>> {
    for (;;) {
      try {
        return await verb()
      } catch (error) {
        this.errors.push(error)
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS))
      }
    }
  }
}

/** Which of these ids another owner could claim now, so that their effect could take place again. */
export async function lostOf(store: Store, ids: readonly string[]): Promise<readonly string[]> {
  const lost: string[] = []
  for (let from = 0; from < ids.length; from += 500) {
    const records = await Promise.all(
      ids.slice(from, from + 500).map(async (id) => [id, await store.read(id)] as const),
    )
    for (const [id, record] of records) if (record === undefined) lost.push(id)
  }
  return lost
}
