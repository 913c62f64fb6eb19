import type { Clock } from '../../clock.ts'
import type { Store, StoredRecord } from '../../store.ts'
import { within } from '../../store-combination.ts'

/**
 * Whether the secondary has any record, so that the primary alone does not decide. It is looked at again and again, as
 * another process may have gone over to it in an outage that this one never saw.
 */
export class SecondaryRecords {
  readonly #secondary: Store
  readonly #clock: Clock
  readonly #bounds: { readonly watchEveryMs: number; readonly primaryMsMax: number }
  #lookedMs = Number.NEGATIVE_INFINITY
  #looking: Promise<void> | undefined
  #looks = 0
  mayBe = false

  constructor(
    secondary: Store,
    clock: Clock,
    bounds: { readonly watchEveryMs: number; readonly primaryMsMax: number },
  ) {
    this.#secondary = secondary
    this.#clock = clock
    this.#bounds = bounds
  }

  added(): void {
    this.mayBe = true
    // A look that began before this write may miss it.
    this.#looks++
    this.#lookedMs = this.#clock.now()
  }

  /** Never fails: when the secondary is away, what was known of it last still counts. */
  async look(): Promise<void> {
    const now = this.#clock.now()
    if (now - this.#lookedMs < this.#bounds.watchEveryMs) return this.#looking
    this.#lookedMs = now
    this.#looking = this.#lookNow(++this.#looks)
    return this.#looking
  }

  async #lookNow(turn: number): Promise<void> {
    const list = () => this.#secondary.list({ limit: 1 })
    try {
      const records = await within(this.#clock, this.#bounds.primaryMsMax, this.#secondary.name, list)
      if (turn === this.#looks) this.mayBe = records.length > 0
    } catch {
      // It is asked again at the next interval.
    }
  }
}

/** One page of two. Where both have a record, the secondary's is the later one, unless the primary has the answer. */
export function merged(
  primary: readonly StoredRecord[],
  secondary: readonly StoredRecord[],
  limit: number = LIST_LIMIT_DEFAULT,
): readonly StoredRecord[] {
  const byId = new Map(secondary.map((record) => [record.id, record]))
  for (const record of primary) {
    const isAnswer = record.state === 'settled' || record.state === 'expired'
    if (isAnswer || !byId.has(record.id)) byId.set(record.id, record)
  }
  return [...byId.values()].sort((a, b) => (a.id < b.id ? -1 : 1)).slice(0, limit)
}

const LIST_LIMIT_DEFAULT = 100
