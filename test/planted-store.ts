import { OncekeyError } from '../src/error.ts'
import type {
  Answer,
  Claim,
  ClaimRequest,
  Labels,
  ListQuery,
  RecordState,
  Settlement,
  Store,
  StoredRecord,
} from '../src/store.ts'
import type { StoreHarness } from '../src/testing/store-suite.ts'

/** Two handles on one set of records, on a clock that moves only when told. */
export function harnessWith(bug: Bug | undefined): StoreHarness {
  const shared: Shared = { rows: new Map(), waiters: new Map(), now: Date.UTC(2026, 0, 1), lastAnswer: undefined }
  const handles = [new PlantedStore(shared, bug), new PlantedStore(shared, bug)] as const
  return {
    store: handles[0],
    another: async () => handles[1],
    elapse: async (ms) => {
      shared.now += ms
    },
    dispose: async () => {
      for (const handle of handles) await handle.close()
    },
  }
}

export type Bug =
  | 'claim reads, waits and then writes'
  | 'claim refreshes the fingerprint'
  | 'a lease of 0 is accepted'
  | 'a lifetime that is no number is accepted'
  | 'ids are property names'
  | 'ids are compared without case'
  | 'tokens are compared without case'
  | 'pending records are evicted'
  | 'labels are lost'
  | "the caller's labels are kept"
  | 'a live lease is taken over'
  | 'takeover with another fingerprint'
  | 'takeover without being asked'
  | 'a takeover has two winners'
  | 'a settled record is taken over'
  | 'the attempt is not counted'
  | 'a lapsed lease alone takes the record away'
  | 'settle is not fenced'
  | 'release is not fenced'
  | 'the lifetime left is that of the key'
  | 'release after a takeover forgets the owner of before'
  | 'renew is not fenced'
  | 'settle works on a record that is gone'
  | 'settle creates an absent record'
  | 'release removes a settled record'
  | 'renew revives a settled record'
  | 'renew leaves goneAt behind'
  | 'renew moves goneAt twice'
  | 'renew with 0 does nothing'
  | 'a claim asked again collides with itself'
  | 'a takeover asked again counts again'
  | 'a settle asked again overwrites'
  | 'a settle asked again is refused'
  | 'an expired row blocks the claim'
  | 'an expired answer is served'
  | 'a row that is gone is listed'
  | 'a row that is gone is forgotten again'
  | 'the lease ends 1 ms late'
  | 'the lease ends 1 ms early'
  | 'records are gone 1 ms late'
  | 'records are gone 1 ms early'
  | 'answers expire 1 ms late'
  | 'answers expire 1 ms early'
  | 'the lifetime counts from the claim'
  | 'an empty body becomes null'
  | 'a null body becomes empty'
  | 'bodies pass through text'
  | 'bodies are cut off at 1 MB'
  | 'a part of a buffer is kept as the whole'
  | 'headers are kept in an object'
  | "the caller's buffer is kept"
  | 'readers share one buffer'
  | 'rejected is kept as committed'
  | 'list is in the order of arrival'
  | 'list repeats the last of the page before'
  | 'list filters after it cut the page'
  | 'forget spares what is settled'
  | 'redact reaches what is running'
  | 'redact leaves the labels'
  | 'redact leaves the headers'
  | 'redact leaves the body'
  | 'redact forgets the claim'
  | 'sweep eats unknown records'
  | 'sweep eats keys that are remembered'
  | 'sweep ignores its limit'
  | 'a waiter misses a settle from before'
  | 'giving up wakes nobody'
  | 'release wakes nobody'
  | 'waiters hear only their own handle'
  | 'an abort rejects'
  | 'one waiter for each record'
  | 'close drops accepted work'
  | 'verbs work after close'
  | 'close leaves its waiters'
  | 'close takes the records along'
  | 'a record that vanishes in the middle of a claim counts as claimed'
  | 'the first attempt is 0'
  | "a running record is reported with the caller's fingerprint"
  | 'release leaves the fingerprint behind'
  | 'list leaves the bodies out'
  | 'a body of zeros is taken for none'
  | 'the answer of the last settle is given for all'
  | 'the status is kept in one byte'
  | 'headers beyond the hundredth are lost'
  | 'an absent record is read as an empty one'
  | 'list has no bound of its own'
  | 'forget removes everything'
  | 'the store forgets to say how much it swept'
  | 'settle wakes nobody'
  | 'forget wakes nobody'
  | 'a second close throws'

interface Row {
  id: string
  token: string
  fingerprint: string
  attempt: number
  createdAt: number
  leaseUntil: number
  goneAt: number
  labels: Labels
  settled: { outcome: Settlement['outcome']; answer: Answer; expiresAt: number } | undefined
}

interface Shared {
  readonly rows: Map<string, Row>
  readonly waiters: Map<string, Set<() => void>>
  now: number
  lastAnswer: Answer | undefined
}

/** The plainest store there can be, right but for the one bug that it is asked to have. */
class PlantedStore implements Store {
  readonly name = 'planted'
  readonly #shared: Shared
  readonly #bug: Bug | undefined
  readonly #ownWaiters: Shared['waiters'] = new Map()
  #closed = false

  constructor(shared: Shared, bug: Bug | undefined) {
    this.#shared = shared
    this.#bug = bug
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    await this.#enter()
    if (!(request.leaseMs > 0 && request.leaseMs < 1e15) && !this.#has('a lease of 0 is accepted')) this.#invalid()
    this.#lifetime(request.unknownTtlMs)
    const row = this.#has('an expired row blocks the claim') ? this.#row(request.id) : this.#live(request.id)
    if (this.#has('claim reads, waits and then writes')) await turn()
    if (row && this.#has('a record that vanishes in the middle of a claim counts as claimed')) {
      await turn()
      if (this.#row(request.id) !== row) return { state: 'acquired', attempt: 1 }
    }
    if (row === undefined) return this.#insert(request)
    if (row.settled && !this.#has('a settled record is taken over')) {
      if (this.#has('claim refreshes the fingerprint')) row.fingerprint = request.fingerprint
      return this.#state(row)
    }
    if (row.token === request.token && !this.#has('a claim asked again collides with itself')) {
      if (this.#has('a takeover asked again counts again') && request.takeover) row.attempt += 1
      return { state: 'acquired', attempt: row.attempt }
    }
    if (!this.#mayTakeOver(row, request)) {
      const mistaken = this.#has("a running record is reported with the caller's fingerprint")
      return mistaken ? { ...this.#state(row), fingerprint: request.fingerprint } : this.#state(row)
    }
    if (this.#has('a takeover has two winners')) await turn()
    row.token = request.token
    if (!this.#has('the attempt is not counted')) row.attempt += 1
    row.settled = undefined
    row.leaseUntil = this.#shared.now + request.leaseMs
    row.goneAt = row.leaseUntil + request.unknownTtlMs
    return { state: 'acquired', attempt: row.attempt }
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    await this.#enter()
    this.#lifetime(settlement.ttlMs)
    this.#lifetime(settlement.expiredTtlMs)
    let row = this.#has('settle works on a record that is gone') ? this.#row(id) : this.#live(id)
    if (row === undefined && this.#has('settle creates an absent record')) {
      this.#insert({ id, token, fingerprint: '', leaseMs: 1, unknownTtlMs: 0, takeover: false })
      row = this.#row(id)
    }
    if (row === undefined) return false
    if (!this.#sameToken(row, token) && !this.#has('settle is not fenced')) return false
    if (row.settled && !this.#has('a settle asked again overwrites'))
      return !this.#has('a settle asked again is refused')
    if (this.#state(row).state === 'unknown' && this.#has('a lapsed lease alone takes the record away')) return false
    const from = this.#has('the lifetime counts from the claim') ? row.createdAt : this.#shared.now
    const outcome = this.#has('rejected is kept as committed') ? 'committed' : settlement.outcome
    row.settled = { outcome, answer: this.#kept(settlement.answer), expiresAt: from + settlement.ttlMs }
    row.goneAt = row.settled.expiresAt + settlement.expiredTtlMs
    this.#shared.lastAnswer = row.settled.answer
    if (!this.#has('settle wakes nobody')) this.#wake(id)
    return true
  }

  async release(id: string, token: string): Promise<boolean> {
    await this.#enter()
    const row = this.#live(id)
    if (row === undefined) return false
    if (!this.#sameToken(row, token) && !this.#has('release is not fenced')) return false
    if (row.settled && !this.#has('release removes a settled record')) return false
    const takenOver = row.attempt > 1 && !this.#has('release after a takeover forgets the owner of before')
    if (takenOver || this.#has('release leaves the fingerprint behind')) row.leaseUntil = this.#shared.now
    else this.#shared.rows.delete(this.#key(id))
    if (!this.#has('release wakes nobody')) this.#wake(id)
    return true
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    await this.#enter()
    this.#lifetime(leaseMs)
    const row = this.#live(id)
    if (row === undefined) return false
    if (!this.#sameToken(row, token) && !this.#has('renew is not fenced')) return false
    if (row.settled && !this.#has('renew revives a settled record')) return false
    if (leaseMs === 0 && this.#has('renew with 0 does nothing')) return true
    const movedMs = this.#shared.now + leaseMs - row.leaseUntil
    row.leaseUntil += movedMs
    if (!this.#has('renew leaves goneAt behind')) row.goneAt += movedMs
    if (this.#has('renew moves goneAt twice')) row.goneAt += movedMs
    if (leaseMs === 0 && !this.#has('giving up wakes nobody')) this.#wake(id)
    return true
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    await this.#enter()
    const row = this.#live(id)
    if (row === undefined && this.#has('an absent record is read as an empty one')) {
      return { state: 'unknown', id, fingerprint: '', attempt: 0, createdAt: 0, goneAt: 0, goneInMs: 0, labels: {} }
    }
    return row && this.#record(row)
  }

  async list({ after = '', limit = this.#listLimit(), state }: ListQuery = {}): Promise<readonly StoredRecord[]> {
    await this.#enter()
    let rows = [...this.#shared.rows.values()]
    if (!this.#has('a row that is gone is listed')) rows = rows.filter(({ id }) => this.#live(id))
    if (!this.#has('list is in the order of arrival')) rows.sort((a, b) => (a.id < b.id ? -1 : 1))
    rows = rows.filter(
      ({ id }) => id > after || (id === after && this.#has('list repeats the last of the page before')),
    )
    const records = rows.map((row) => this.#listed(row))
    const ofState = (list: StoredRecord[]) => list.filter((record) => state === undefined || record.state === state)
    if (this.#has('list filters after it cut the page')) return ofState(records.slice(0, limit))
    return ofState(records).slice(0, limit)
  }

  async forget(id: string): Promise<boolean> {
    await this.#enter()
    const row = this.#has('a row that is gone is forgotten again') ? this.#row(id) : this.#live(id)
    if (row?.settled && this.#has('forget spares what is settled')) return false
    if (!this.#has('forget wakes nobody')) this.#wake(id)
    if (this.#has('forget removes everything')) this.#shared.rows.clear()
    else this.#shared.rows.delete(this.#key(id))
    return row !== undefined
  }

  async redact(id: string): Promise<boolean> {
    await this.#enter()
    const row = this.#live(id)
    if (row === undefined) return false
    if (row.settled === undefined) {
      if (this.#has('redact reaches what is running')) row.labels = {}
      return this.#has('redact reaches what is running')
    }
    const { answer } = row.settled
    if (!this.#has('redact leaves the labels')) row.labels = {}
    if (!this.#has('redact leaves the headers')) row.settled.answer = { ...answer, headers: [] }
    if (!this.#has('redact leaves the body')) row.settled.answer = { ...row.settled.answer, body: null }
    if (this.#has('redact forgets the claim')) this.#shared.rows.delete(this.#key(id))
    return true
  }

  async sweep(limit = 1_000): Promise<number> {
    await this.#enter()
    const gone = [...this.#shared.rows.values()].filter((row) => {
      const { state } = this.#state(row)
      if (state === 'unknown' && this.#has('sweep eats unknown records')) return true
      if (state === 'expired' && this.#has('sweep eats keys that are remembered')) return true
      return this.#shared.now >= row.goneAt
    })
    const swept = this.#has('sweep ignores its limit') ? gone : gone.slice(0, limit)
    for (const { id } of swept) this.#shared.rows.delete(this.#key(id))
    return this.#has('the store forgets to say how much it swept') ? 0 : swept.length
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    await this.#enter()
    const row = this.#live(id)
    const running = row && this.#state(row).state === 'running'
    if (signal.aborted || (!running && !this.#has('a waiter misses a settle from before'))) return
    await new Promise<void>((resolve, reject) => {
      const end = () => resolve()
      const everywhere = this.#has('waiters hear only their own handle') ? [] : [this.#shared.waiters]
      for (const waiters of [this.#ownWaiters, ...everywhere]) {
        const alone = this.#has('one waiter for each record')
        waiters.set(id, alone ? new Set([end]) : (waiters.get(id) ?? new Set()).add(end))
      }
      signal.addEventListener('abort', this.#has('an abort rejects') ? () => reject(signal.reason) : end)
      if (this.#closed) end()
    })
  }

  async close(): Promise<void> {
    if (this.#closed && this.#has('a second close throws')) throw new Error('it is closed already')
    this.#closed = true
    if (this.#has('close takes the records along')) this.#shared.rows.clear()
    if (this.#has('close leaves its waiters')) return
    for (const waiters of this.#ownWaiters.values()) for (const end of waiters) end()
  }

  #has(bug: Bug): boolean {
    return this.#bug === bug
  }

  async #enter(): Promise<void> {
    this.#assertOpen()
    if (!this.#has('close drops accepted work')) return
    await turn()
    this.#assertOpen()
  }

  #assertOpen(): void {
    if (this.#closed && !this.#has('verbs work after close')) throw new OncekeyError('store-closed', 'closed')
  }

  #invalid(): never {
    throw new OncekeyError('config-invalid', 'not a lifetime')
  }

  #lifetime(ms: number): void {
    if (!(ms >= 0 && ms < 1e15) && !this.#has('a lifetime that is no number is accepted')) this.#invalid()
  }

  #key(id: string): string {
    if (this.#has('ids are property names') && id in {}) return 'something inherited'
    return this.#has('ids are compared without case') ? id.toLowerCase() : id
  }

  #row(id: string): Row | undefined {
    return this.#shared.rows.get(this.#key(id))
  }

  #live(id: string): Row | undefined {
    const row = this.#row(id)
    const late = this.#has('records are gone 1 ms late') ? 1 : this.#has('records are gone 1 ms early') ? -1 : 0
    return row && this.#shared.now < row.goneAt + late ? row : undefined
  }

  #insert({ id, token, fingerprint, leaseMs, unknownTtlMs, labels }: ClaimRequest): Claim {
    const { rows, now } = this.#shared
    const leaseUntil = now + leaseMs
    const own = this.#has("the caller's labels are kept") && labels ? labels : { ...labels }
    const kept = this.#has('labels are lost') ? {} : own
    const times = { createdAt: now, leaseUntil, goneAt: leaseUntil + unknownTtlMs }
    rows.set(this.#key(id), { id, token, fingerprint, attempt: 1, ...times, labels: kept, settled: undefined })
    const oldest = rows.keys().next().value
    if (this.#has('pending records are evicted') && rows.size > 1_000 && oldest !== undefined) rows.delete(oldest)
    return { state: 'acquired', attempt: this.#has('the first attempt is 0') ? 0 : 1 }
  }

  #mayTakeOver(row: Row, request: ClaimRequest): boolean {
    if (!request.takeover && !this.#has('takeover without being asked')) return false
    if (row.fingerprint !== request.fingerprint && !this.#has('takeover with another fingerprint')) return false
    if (row.settled) return true
    return this.#state(row).state === 'unknown' || this.#has('a live lease is taken over')
  }

  #sameToken(row: Row, token: string): boolean {
    if (this.#has('tokens are compared without case')) return row.token.toLowerCase() === token.toLowerCase()
    return row.token === token
  }

  #state(row: Row): RecordState {
    const { now } = this.#shared
    const { fingerprint, settled } = row
    const goneInMs = row.goneAt - now
    if (settled === undefined) {
      const late = this.#has('the lease ends 1 ms late') ? 1 : this.#has('the lease ends 1 ms early') ? -1 : 0
      const leaseLeftMs = row.leaseUntil - now
      return leaseLeftMs + late > 0
        ? { state: 'running', fingerprint, leaseLeftMs }
        : { state: 'unknown', fingerprint, goneInMs }
    }
    const late = this.#has('answers expire 1 ms late') ? 1 : this.#has('answers expire 1 ms early') ? -1 : 0
    const expired = now >= settled.expiresAt + late && !this.#has('an expired answer is served')
    if (expired) return { state: 'expired', fingerprint, goneInMs }
    const latest = this.#has('the answer of the last settle is given for all') && this.#shared.lastAnswer
    const answer = this.#has('readers share one buffer') ? settled.answer : this.#kept(latest || settled.answer)
    const expiresInMs = this.#has('the lifetime left is that of the key') ? goneInMs : settled.expiresAt - now
    return { state: 'settled', fingerprint, outcome: settled.outcome, answer, expiresInMs }
  }

  #record(row: Row): StoredRecord {
    const { id, attempt, createdAt, goneAt, labels } = row
    return { ...this.#state(row), id, attempt, createdAt, goneAt, labels: { ...labels } }
  }

  #listLimit(): number {
    return this.#has('list has no bound of its own') ? Number.POSITIVE_INFINITY : 100
  }

  #listed(row: Row): StoredRecord {
    const record = this.#record(row)
    if (record.state !== 'settled' || !this.#has('list leaves the bodies out')) return record
    return { ...record, answer: { ...record.answer, body: null } }
  }

  #kept({ status, headers, body }: Answer): Answer {
    if (this.#has("the caller's buffer is kept")) return { status, headers, body }
    const bound = this.#has('headers beyond the hundredth are lost') ? 100 : headers.length
    const list = headers.slice(0, bound).map(([name, value]) => [name, value] as const)
    return {
      status: this.#has('the status is kept in one byte') ? status & 0xff : status,
      headers: this.#has('headers are kept in an object') ? Object.entries(Object.fromEntries(list)) : list,
      body: this.#keptBody(body),
    }
  }

  #keptBody(body: Uint8Array | null): Uint8Array | null {
    if (body === null) return this.#has('a null body becomes empty') ? new Uint8Array(0) : null
    if (body.length === 0 && this.#has('an empty body becomes null')) return null
    if (this.#has('a body of zeros is taken for none') && !body.some((byte) => byte !== 0)) return new Uint8Array(0)
    if (this.#has('bodies pass through text')) return Buffer.from(Buffer.from(body).toString('utf8'), 'utf8')
    if (this.#has('bodies are cut off at 1 MB')) return body.slice(0, 1_024 * 1_024)
    if (this.#has('a part of a buffer is kept as the whole')) return new Uint8Array(body.buffer.slice(0))
    return new Uint8Array(body)
  }

  #wake(id: string): void {
    for (const waiters of [this.#ownWaiters, this.#shared.waiters]) {
      for (const end of waiters.get(id) ?? []) end()
      waiters.delete(id)
    }
  }
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
