import type { RecordState, Store, StoredRecord } from '../store.ts'

export interface ScanBounds {
  readonly after?: string | undefined
  readonly state?: RecordState['state'] | undefined
  /** As many records at most. */
  readonly recordsMax?: number
  /** Goes no further once the bodies together have this size. */
  readonly bodyBytesMax?: number
}

export interface Scanned {
  readonly scanned: number
  /** The last one that was visited: where another scan goes on. */
  readonly after: string | undefined
  /** Whether there is nothing after it. */
  readonly complete: boolean
}

const PAGE_MIN = 20
const PAGE_MAX = 500
/** Up to here a page counts as small, and the next one may be larger. */
const PAGE_BODY_BYTES_SMALL = 1024 * 1024

/**
 * Visits records in the order of their ids, until `visit` gives `false`, a bound is reached, or there are no more. A store
 * lists whole records, answers and all: pages begin small, grow only while what comes is small, and one at a time is held.
 */
export async function scan(
  store: Store,
  { after: first, state, recordsMax = Infinity, bodyBytesMax = Infinity }: ScanBounds,
  visit: (record: StoredRecord) => boolean,
): Promise<Scanned> {
  let [after, scanned, bodyBytes, size] = [first, 0, 0, PAGE_MIN]
  while (scanned < recordsMax && bodyBytes < bodyBytesMax) {
    const limit = Math.min(size, recordsMax - scanned)
    const page = await visitPage(store, after, limit, state, visit)
    after = page.after
    scanned += page.visited
    bodyBytes += page.bodyBytes
    if (page.end === 'stopped') break
    if (page.end === 'last') return { scanned, after, complete: true }
    size = page.bodyBytes < PAGE_BODY_BYTES_SMALL ? Math.min(2 * size, PAGE_MAX) : PAGE_MIN
  }
  return { scanned, after, complete: false }
}

/** A function of its own: when it has returned, nothing holds the page while the next one is fetched. */
async function visitPage(
  store: Store,
  from: string | undefined,
  limit: number,
  state: RecordState['state'] | undefined,
  visit: (record: StoredRecord) => boolean,
) {
  const page = await store.list({
    limit,
    ...(from !== undefined && { after: from }),
    ...(state !== undefined && { state }),
  })
  let [after, visited, bodyBytes] = [from, 0, 0]
  for (const record of page) {
    after = record.id
    visited += 1
    bodyBytes += bodyBytesOf(record)
    if (!visit(record)) return { after, visited, bodyBytes, end: 'stopped' as const }
  }
  return { after, visited, bodyBytes, end: page.length < limit ? ('last' as const) : ('more' as const) }
}

export function bodyBytesOf(record: StoredRecord): number {
  return record.state === 'settled' ? (record.answer.body?.byteLength ?? 0) : 0
}
