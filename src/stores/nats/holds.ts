import type { Kept } from './record.ts'

/** What this process claimed and at which revision, so that it can write again without reading. Bounded: others read. */
export class Holds {
  readonly #holds = new Map<string, Hold>()

  keep(kept: Kept, revision: number, sentMs: number): void {
    if (this.#holds.size >= HOLDS_MAX) {
      const [oldest] = this.#holds.keys()
      if (oldest !== undefined) this.#holds.delete(oldest)
    }
    this.#holds.set(kept.token, { kept, revision, sentMs })
  }

  /**
   * Nothing when the record might be gone. It was stored after it was sent: as long as less than its lifetime has passed
   * since then it is surely not. With it comes how old the first claim is, for this process was never told its time.
   */
  find(id: string, token: string): { readonly kept: Kept; readonly revision: number } | undefined {
    const hold = this.#holds.get(token)
    if (hold === undefined || hold.kept.id !== id) return undefined
    const { kept, revision, sentMs } = hold
    const passedMs = performance.now() - sentMs
    if (passedMs >= kept.leaseMs + kept.unknownTtlMs) return undefined
    if (kept.createdAt !== undefined) return { kept, revision }
    return { kept: { ...kept, ageMs: Math.round((kept.ageMs ?? 0) + passedMs) }, revision }
  }

  drop(token: string): void {
    this.#holds.delete(token)
  }
}

interface Hold {
  readonly kept: Kept
  readonly revision: number
  /** On the local clock that only runs forward. */
  readonly sentMs: number
}

const HOLDS_MAX = 10_000
