import type { StoredRecord } from '../../store.ts'
import type { Bucket } from './bucket.ts'
import { createdAtOf, type Entry, encode, type Kept, timesOf, tombstoneOf } from './record.ts'

/** The first `limit` records after this id that `recordIn` lets through. */
export async function pageOf(
  bucket: Bucket,
  after: string | undefined,
  limit: number,
  recordIn: (entry: Entry) => Promise<StoredRecord | undefined>,
): Promise<StoredRecord[]> {
  const page: StoredRecord[] = []
  const ids = (await bucket.ids()).filter((id) => after === undefined || id > after)
  for (let from = 0; from < ids.length && page.length < limit; from += READS_AT_ONCE) {
    const read = async (id: string): Promise<StoredRecord | undefined> => {
      const entry = await bucket.read(id)
      return entry && recordIn(entry)
    }
    for (const record of await Promise.all(ids.slice(from, from + READS_AT_ONCE).map(read))) {
      if (record !== undefined && page.length < limit) page.push(record)
    }
  }
  return page
}

/**
 * Frees space. A record that is gone becomes a tombstone, and an expired answer loses its body, both by their revision;
 * what has been gone for `purgeAfterMs` is purged up to its revision, so that whatever was written since then stays.
 */
export class Sweeper {
  readonly #bucket: Bucket
  readonly #purgeAfterMs: number
  /** Where the next sweep goes on: a sweep that reached its limit does not look at the same records again. */
  #after: string | undefined

  constructor(bucket: Bucket, purgeAfterMs: number) {
    this.#bucket = bucket
    this.#purgeAfterMs = purgeAfterMs
  }

  /** Looks at every key once at most, and gives the number of records that went. */
  async sweep(limit: number, now: number): Promise<number> {
    const ids = await this.#bucket.ids()
    const from = this.#after
    this.#after = undefined
    const later = from === undefined ? ids : ids.filter((id) => id > from)
    const order = from === undefined ? later : [...later, ...ids.filter((id) => id <= from)]
    let freed = 0
    for (let at = 0; at < order.length && freed < limit; ) {
      const step = order.slice(at, at + Math.min(READS_AT_ONCE, limit - freed))
      const steps = await Promise.all(step.map((id) => this.#free(id, now)))
      freed += steps.filter(Boolean).length
      at += step.length
      if (freed >= limit) this.#after = step.at(-1)
    }
    return freed
  }

  /** Whether a record went. When a compare-and-set is lost the record lives again, and is left. */
  async #free(id: string, now: number): Promise<boolean> {
    const entry = await this.#bucket.read(id)
    if (entry === undefined) return false
    const { goneAt, expiresAt } = timesOf(entry)
    if (now >= goneAt + this.#purgeAfterMs) {
      await this.#bucket.purge(id, entry.revision)
      return entry.kept.tombstone !== true
    }
    if (entry.kept.tombstone) return false
    if (now >= goneAt) return this.#replace(entry, tombstoneOf(id))
    if (now >= expiresAt && entry.kept.settled && entry.body.byteLength > 0) {
      const settled = { ...entry.kept.settled, headers: [], bodyBytes: null, strippedGoneAt: goneAt }
      await this.#replace(entry, { ...entry.kept, createdAt: createdAtOf(entry), settled })
    }
    return false
  }

  async #replace(entry: Entry, kept: Kept): Promise<boolean> {
    return (await this.#bucket.write(kept.id, encode(kept), entry.revision)) !== undefined
  }
}

const READS_AT_ONCE = 64
