import { AwaitedRecords, lookTogether } from '../../awaited-records.ts'

/** How soon the end of an operation in another process is seen. */
const POLL_MS = 50

/** Those of these ids that run. */
export type Look = (ids: readonly string[]) => Promise<ReadonlySet<string>>

/**
 * MySQL announces nothing, so whoever ends an operation in this process wakes its waiters at once, and for all others one
 * statement every 50 ms looks at everything that is waited for. That costs less than each of them looking for itself.
 */
export class Waiters extends AwaitedRecords {
  constructor(look: Look) {
    // Polled, a lease that ends needs no look of its own.
    const running = async (ids: readonly string[]) => new Map([...(await look(ids))].map((id) => [id, Infinity]))
    super({ look: lookTogether(running), pollMs: POLL_MS })
  }
}
