import type { Clock } from '../../clock.ts'
import type { AuditEntry, Content } from './chain.ts'
import type { Place } from './verify.ts'

/**
 * Which operations have entries, and where: those of the last `keyTtlMs`. An older operation's key is new again, so that
 * what happens under it is another event; and so memory is bounded by what comes in that time, not by the log's length.
 */
export class Known {
  readonly #clock: Clock
  readonly #keyTtlMs: number
  /** In the order of their last entry. */
  readonly #entries = new Map<string, readonly KnownEntry[]>()

  constructor(clock: Clock, keyTtlMs: number) {
    this.#clock = clock
    this.#keyTtlMs = keyTtlMs
  }

  add({ operation, kind, request_hash: requestHash, time }: AuditEntry, { offset, bytes }: Place): void {
    if (operation === '' || kind === 'retry') return
    const sinceMs = this.#clock.now() - this.#keyTtlMs
    const timeMs = Date.parse(time)
    this.#forget(sinceMs)
    if (timeMs <= sinceMs) return
    const before = this.#entries.get(operation)?.filter((entry) => entry.timeMs > sinceMs) ?? []
    this.#entries.delete(operation)
    this.#entries.set(operation, [...before, { kind, requestHash, timeMs, offset, bytes }])
  }

  /** The request that the operation's last entry was about. */
  requestOf(operation: string): string | undefined {
    return this.#live(operation).at(-1)?.requestHash
  }

  placeOf({ operation, kind, requestHash }: Content): Place | undefined {
    return this.#live(operation).find((entry) => entry.kind === kind && entry.requestHash === requestHash)
  }

  #live(operation: string): readonly KnownEntry[] {
    const sinceMs = this.#clock.now() - this.#keyTtlMs
    return this.#entries.get(operation)?.filter(({ timeMs }) => timeMs > sinceMs) ?? []
  }

  #forget(sinceMs: number): void {
    for (const [operation, entries] of this.#entries) {
      if ((entries.at(-1)?.timeMs ?? 0) > sinceMs) return
      this.#entries.delete(operation)
    }
  }
}

interface KnownEntry extends Place {
  readonly kind: string
  readonly requestHash: string
  readonly timeMs: number
}
