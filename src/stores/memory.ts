import type { Clock } from '../clock.ts'
import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../store.ts'
import { assertClaimTimes, assertDuration, assertSettlementTimes } from '../store-checks.ts'
import { Answered, append, Lanes, Link, Row, unlink } from './memory/rows.ts'

export interface MemoryStoreOptions {
  /** How many records are held at most. Default 100,000. */
  readonly recordsMax?: number
  readonly clock?: Clock
}

/**
 * Records in this process's memory: as fast as a Map, and gone when the process ends. Right for one process whose
 * effects end with it, for tests, and as the cache before a durable store.
 *
 * At `recordsMax` the least recently used answer makes room; a record that is running or unknown never does, and when
 * only such records are left a new claim is refused with `store-full`. No verb but `list` looks at more than a bounded
 * number of records, however many there are.
 */
export function memoryStore(options: MemoryStoreOptions = {}): Store {
  const { recordsMax = RECORDS_MAX_DEFAULT, clock = systemClock } = options
  if (!Number.isSafeInteger(recordsMax) || recordsMax < 1) {
    throw new OncekeyError('config-invalid', `recordsMax is ${recordsMax}; it must be a whole number of at least 1.`)
  }
  return new MemoryStore(recordsMax, clock)
}

const RECORDS_MAX_DEFAULT = 100_000
const LIST_LIMIT_DEFAULT = 100
const SWEEP_LIMIT_DEFAULT = 1_000
/** How many records that are due one claim may look at when the store is full. */
const DUE_STEPS_MAX = 8
class MemoryStore implements Store {
  readonly name = 'memory'
  readonly #recordsMax: number
  readonly #clock: Clock
  /** Times are counted from here: small numbers cost no object of their own, and there are several in each record. */
  readonly #epochMs: number
  readonly #rows = new Map<string, Row>()
  readonly #lanes = new Lanes()
  /** Answered rows, least recently used first. */
  readonly #uses = new Link()
  readonly #waiters = new Map<string, Set<() => void>>()
  #closed = false

  constructor(recordsMax: number, clock: Clock) {
    this.#recordsMax = recordsMax
    this.#clock = clock
    this.#epochMs = clock.now()
  }

  claim(request: ClaimRequest): Claim {
    this.#assertOpen()
    assertClaimTimes(request)
    const now = this.#now()
    const row = this.#live(request.id, now)
    if (row === undefined) {
      this.#insert(request, now)
      return { state: 'acquired', attempt: 1 }
    }
    if (row.answered !== undefined) {
      append(this.#uses, row.answered)
      return row.state(now)
    }
    if (row.token === request.token) return { state: 'acquired', attempt: row.attempt }
    if (!request.takeover || now < row.leaseUntil || row.fingerprint !== request.fingerprint) return row.state(now)
    row.token = request.token
    row.attempt += 1
    this.#lease(row, now, request.leaseMs, request.unknownTtlMs)
    return { state: 'acquired', attempt: row.attempt }
  }

  settle(id: string, token: string, settlement: Settlement): boolean {
    this.#assertOpen()
    const { ttlMs, expiredTtlMs } = settlement
    assertSettlementTimes(settlement)
    const now = this.#now()
    const row = this.#live(id, now)
    if (row === undefined || row.token !== token) return false
    if (row.answered !== undefined) return true
    row.answered = new Answered(row, settlement, now + ttlMs)
    row.dueAt = now + ttlMs
    row.goneAt = row.dueAt + expiredTtlMs
    this.#lanes.put(row, ttlMs)
    append(this.#uses, row.answered)
    this.#wake(id)
    return true
  }

  release(id: string, token: string): boolean {
    this.#assertOpen()
    const now = this.#now()
    const row = this.#pending(id, token, now)
    if (row === undefined) return false
    if (row.attempt > 1) this.#lease(row, now, 0, row.goneAt - row.leaseUntil)
    else this.#drop(row)
    this.#wake(id)
    return true
  }

  renew(id: string, token: string, leaseMs: number): boolean {
    this.#assertOpen()
    assertDuration('leaseMs', leaseMs)
    const now = this.#now()
    const row = this.#pending(id, token, now)
    if (row === undefined) return false
    this.#lease(row, now, leaseMs, row.goneAt - row.leaseUntil)
    if (leaseMs === 0) this.#wake(id)
    return true
  }

  read(id: string): StoredRecord | undefined {
    this.#assertOpen()
    const now = this.#now()
    const row = this.#live(id, now)
    if (row?.answered !== undefined) append(this.#uses, row.answered)
    return row?.record(now, this.#epochMs)
  }

  /** The one verb that visits every record. */
  list(query: ListQuery = {}): readonly StoredRecord[] {
    this.#assertOpen()
    const { after, limit = LIST_LIMIT_DEFAULT, state } = query
    const now = this.#now()
    const rows = [...this.#rows.values()].filter(
      (row) =>
        now < row.goneAt &&
        (after === undefined || row.id > after) &&
        (state === undefined || row.stateName(now) === state),
    )
    rows.sort((a, b) => (a.id < b.id ? -1 : 1))
    return rows.slice(0, limit).map((row) => row.record(now, this.#epochMs))
  }

  forget(id: string): boolean {
    this.#assertOpen()
    const row = this.#live(id, this.#now())
    if (row === undefined) return false
    this.#drop(row)
    this.#wake(id)
    return true
  }

  redact(id: string): boolean {
    this.#assertOpen()
    const answered = this.#live(id, this.#now())?.answered
    answered?.redact()
    return answered !== undefined
  }

  sweep(limit: number = SWEEP_LIMIT_DEFAULT): number {
    this.#assertOpen()
    return this.#expire(this.#now(), limit)
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    const now = this.#now()
    const row = this.#live(id, now)
    if (signal.aborted || row === undefined || row.stateName(now) !== 'running') return
    await new Promise<void>((resolve) => {
      const waiters = this.#waiters.get(id) ?? new Set()
      this.#waiters.set(id, waiters)
      const wake = () => {
        signal.removeEventListener('abort', wake)
        waiters.delete(wake)
        if (waiters.size === 0) this.#waiters.delete(id)
        resolve()
      }
      waiters.add(wake)
      signal.addEventListener('abort', wake)
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const id of [...this.#waiters.keys()]) this.#wake(id)
    this.#rows.clear()
    this.#lanes.clear()
    unlink(this.#uses)
  }

  /** The row, unless it is gone: then it is removed on sight, whether or not a sweeper has come by. */
  #live(id: string, now: number): Row | undefined {
    const row = this.#rows.get(id)
    if (row === undefined || now < row.goneAt) return row
    this.#drop(row)
    return undefined
  }

  #pending(id: string, token: string, now: number): Row | undefined {
    const row = this.#live(id, now)
    return row !== undefined && row.token === token && row.answered === undefined ? row : undefined
  }

  #insert(request: ClaimRequest, now: number): void {
    if (this.#rows.size >= this.#recordsMax) this.#makeRoom(now)
    const row = new Row(request, now)
    this.#rows.set(row.id, row)
    this.#lease(row, now, request.leaseMs, request.unknownTtlMs)
  }

  #lease(row: Row, now: number, leaseMs: number, unknownTtlMs: number): void {
    row.leaseUntil = now + leaseMs
    row.goneAt = row.leaseUntil + unknownTtlMs
    row.dueAt = row.goneAt
    this.#lanes.put(row, leaseMs + unknownTtlMs)
  }

  #makeRoom(now: number): void {
    if (this.#expire(now, DUE_STEPS_MAX) > 0) return
    const leastUsed = this.#uses.next
    if (!(leastUsed instanceof Answered)) {
      throw new OncekeyError(
        'store-full',
        `The memory store holds ${this.#rows.size} records, all of them running or of unknown outcome, and it never ` +
          'forgets such a record to make room. Nothing was claimed. Try again when some are answered, raise recordsMax, ' +
          'or use a store on disk.',
      )
    }
    this.#drop(leastUsed.row)
  }

  /** Drops rows that are gone, and the bodies of those that have expired; `stepsMax` of both together. */
  #expire(now: number, stepsMax: number): number {
    let dropped = 0
    for (let step = 0; step < stepsMax; step++) {
      const row = this.#lanes.firstDue(now)
      if (row === undefined) break
      if (now >= row.goneAt) {
        this.#drop(row)
        dropped += 1
      } else if (row.answered !== undefined) {
        row.answered.strip()
        const expiredTtlMs = row.goneAt - row.dueAt
        row.dueAt = row.goneAt
        this.#lanes.put(row, expiredTtlMs)
      }
    }
    return dropped
  }

  #drop(row: Row): void {
    this.#rows.delete(row.id)
    unlink(row)
    if (row.answered !== undefined) unlink(row.answered)
  }

  #wake(id: string): void {
    for (const wake of this.#waiters.get(id) ?? []) wake()
  }

  #now(): number {
    return this.#clock.now() - this.#epochMs
  }

  #assertOpen(): void {
    if (this.#closed) {
      throw new OncekeyError(
        'store-closed',
        'This memory store was closed, and its records went with it. Open another.',
      )
    }
  }
}
