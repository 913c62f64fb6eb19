import type { Clock } from '../../clock.ts'
import type {
  Awaitable,
  Claim,
  ClaimRequest,
  Labels,
  ListQuery,
  RecordState,
  Settlement,
  Store,
  StoredRecord,
} from '../../store.ts'

/**
 * The store contract, written down as plainly as it can be: every verb is one look at one row. It is the reference that
 * the engine is simulated against, shares no code with the real stores, and the planted bugs are small changes of it.
 */
export class ModelStore implements Store {
  readonly name: string = 'model'
  protected readonly clock: Clock
  protected readonly rows: Map<string, ModelRow> = new Map()
  readonly #waiting = new Map<string, Set<() => void>>()

  constructor(clock: Clock) {
    this.clock = clock
  }

  claim(request: ClaimRequest): Awaitable<Claim> {
    const row = this.live(request.id)
    if (!row) return this.insert(request)
    if (row.settlement) return this.state(row)
    if (row.token === request.token) return { state: 'acquired', attempt: row.attempt }
    const isLapsed = this.clock.now() >= row.leaseUntil
    if (!isLapsed || !request.takeover || row.fingerprint !== request.fingerprint) return this.state(row)
    return this.takeOver(row, request)
  }

  settle(id: string, token: string, settlement: Settlement): boolean {
    const row = this.live(id)
    if (!row || row.token !== token) return false
    if (!row.settlement) this.keep(row, settlement)
    return true
  }

  release(id: string, token: string): boolean {
    const row = this.live(id)
    if (!row || row.token !== token || row.settlement) return false
    // As if the request had never come: what the owner before it did is as unknown as it was.
    if (row.attempt > 1) return this.renew(id, token, 0)
    this.rows.delete(id)
    this.wake(id)
    return true
  }

  renew(id: string, token: string, leaseMs: number): boolean {
    const row = this.live(id)
    if (!row || row.token !== token || row.settlement) return false
    const unknownMs = row.goneAt - row.leaseUntil
    row.leaseUntil = this.clock.now() + leaseMs
    row.goneAt = row.leaseUntil + unknownMs
    if (leaseMs === 0) this.wake(id)
    return true
  }

  read(id: string): StoredRecord | undefined {
    const row = this.live(id)
    if (!row) return undefined
    const { attempt, createdAt, goneAt, labels } = row
    return { ...this.state(row), id, attempt, createdAt, goneAt, labels }
  }

  list(query: ListQuery = {}): readonly StoredRecord[] {
    const ids = [...this.rows.keys()].filter((id) => query.after === undefined || id > query.after).sort()
    const records = ids.flatMap((id) => this.read(id) ?? [])
    return records
      .filter(({ state }) => query.state === undefined || state === query.state)
      .slice(0, query.limit ?? 100)
  }

  forget(id: string): boolean {
    const row = this.live(id)
    this.rows.delete(id)
    this.wake(id)
    return row !== undefined
  }

  redact(id: string): boolean {
    const row = this.live(id)
    if (row?.settlement === undefined) return false
    const answer = { status: row.settlement.answer.status, headers: [], body: null }
    row.settlement = { ...row.settlement, answer }
    return true
  }

  sweep(): number {
    const gone = [...this.rows.values()].filter((row) => this.clock.now() >= row.goneAt)
    for (const row of gone) this.rows.delete(row.id)
    return gone.length
  }

  waitFor(id: string, signal: AbortSignal): Promise<void> {
    const row = this.live(id)
    if (signal.aborted || !row || this.state(row).state !== 'running') return Promise.resolve()
    return new Promise((resolve) => {
      const waiting = this.#waiting.get(id) ?? new Set()
      this.#waiting.set(id, waiting.add(resolve))
      signal.addEventListener('abort', () => resolve(), { once: true })
    })
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  protected live(id: string): ModelRow | undefined {
    const row = this.rows.get(id)
    return row && this.clock.now() < row.goneAt ? row : undefined
  }

  protected insert(request: ClaimRequest): Claim {
    const { id, token, fingerprint, leaseMs, unknownTtlMs, labels = {} } = request
    const now = this.clock.now()
    const leaseUntil = now + leaseMs
    const goneAt = leaseUntil + unknownTtlMs
    this.rows.set(id, { id, token, fingerprint, labels, attempt: 1, createdAt: now, leaseUntil, goneAt })
    return { state: 'acquired', attempt: 1 }
  }

  protected takeOver(row: ModelRow, request: ClaimRequest): Claim {
    row.token = request.token
    row.attempt += 1
    row.leaseUntil = this.clock.now() + request.leaseMs
    row.goneAt = row.leaseUntil + request.unknownTtlMs
    return { state: 'acquired', attempt: row.attempt }
  }

  protected keep(row: ModelRow, settlement: Settlement): void {
    row.settlement = settlement
    row.expiresAt = this.clock.now() + settlement.ttlMs
    row.goneAt = row.expiresAt + settlement.expiredTtlMs
    this.wake(row.id)
  }

  protected state(row: ModelRow): RecordState {
    const now = this.clock.now()
    const { fingerprint, settlement } = row
    const expiresInMs = (row.expiresAt ?? 0) - now
    if (settlement && expiresInMs > 0) {
      const { outcome, answer } = settlement
      return { state: 'settled', fingerprint, outcome, answer, expiresInMs }
    }
    if (settlement) return { state: 'expired', fingerprint, goneInMs: row.goneAt - now }
    if (now < row.leaseUntil) return { state: 'running', fingerprint, leaseLeftMs: row.leaseUntil - now }
    return { state: 'unknown', fingerprint, goneInMs: row.goneAt - now }
  }

  protected wake(id: string): void {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    for (const resolve of waiting ?? []) resolve()
  }
}

export interface ModelRow {
  readonly id: string
  token: string
  fingerprint: string
  attempt: number
  readonly createdAt: number
  leaseUntil: number
  goneAt: number
  readonly labels: Labels
  settlement?: Settlement
  expiresAt?: number
}
