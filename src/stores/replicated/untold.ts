import type { Clock } from '../../clock.ts'
import { isAway } from '../../store-combination.ts'

/**
 * What the global ledger is still to be told. Bounded: whoever adds to it asks first whether there is room. Everything
 * is tried at once, and what the network swallowed is tried again until it gets through or is no longer worth telling.
 */
export class Untold {
  readonly #clock: Clock
  readonly #retryMs: number
  readonly #onError: (error: unknown) => void
  readonly #waiting = new Set<Telling>()
  readonly #underWay = new Map<string, Set<Promise<void>>>()
  #count = 0
  #isTimed = false

  constructor(clock: Clock, retryMs: number, onError: (error: unknown) => void) {
    this.#clock = clock
    this.#retryMs = retryMs
    this.#onError = onError
  }

  get size(): number {
    return this.#waiting.size + this.#count
  }

  /** Resolves when it was tried once. */
  async add(telling: Telling): Promise<void> {
    const attempt = this.#attempt(telling)
    const others = this.#underWay.get(telling.id) ?? new Set()
    this.#underWay.set(telling.id, others.add(attempt))
    await attempt
    others.delete(attempt)
    if (others.size === 0) this.#underWay.delete(telling.id)
  }

  /** Resolves when what is being told about this id right now has been. */
  async underWay(id: string): Promise<void> {
    await Promise.all(this.#underWay.get(id) ?? [])
  }

  /** What is left after one more try of everything. */
  async flush(): Promise<number> {
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (let from = 0; from < waiting.length; from += AT_ONCE) {
      await Promise.all(waiting.slice(from, from + AT_ONCE).map((telling) => this.add(telling)))
    }
    return this.#waiting.size
  }

  drop(id: string): void {
    for (const telling of this.#waiting) if (telling.id === id) this.#waiting.delete(telling)
  }

  async #attempt(telling: Telling): Promise<void> {
    if (telling.untilMs <= this.#clock.now()) return
    this.#count++
    try {
      await telling.tell()
    } catch (error) {
      if (!isAway(error)) return this.#onError(error)
      this.#waiting.add(telling)
      this.#plan()
    } finally {
      this.#count--
    }
  }

  #plan(): void {
    if (this.#isTimed) return
    this.#isTimed = true
    this.#clock.schedule(this.#retryMs, async () => {
      await this.flush()
      this.#isTimed = false
      if (this.#waiting.size > 0) this.#plan()
    })
  }
}

export interface Telling {
  readonly id: string
  /** On this process's clock: from then on nobody needs to know. */
  readonly untilMs: number
  /** Throws when the global ledger is away; it is called again then. */
  tell(): Promise<void>
}

const AT_ONCE = 64
