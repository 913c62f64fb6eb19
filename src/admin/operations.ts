import { createHash, randomUUID } from 'node:crypto'
import type { Answer, RecordState, Store, StoredRecord } from '../store.ts'
import type { History, SeenEvent } from './history.ts'
import { bodyBytesOf, scan } from './scan.ts'

/** A record as the admin API tells it. */
export interface OperationView {
  readonly id: string
  readonly state: RecordState['state']
  readonly outcome?: string
  readonly status?: number
  readonly attempt: number
  readonly createdAt: number
  readonly goneAt: number
  readonly leaseLeftMs?: number
  readonly expiresInMs?: number
  readonly fingerprint: string
  readonly labels: Readonly<Record<string, string>>
}

export interface AnswerView {
  readonly status: number
  readonly headers: Answer['headers']
  readonly bytes: number
  /** Neither is there when bodies are not shown, or the body was not kept. */
  readonly bodyText?: string
  readonly bodyBase64?: string
  readonly isHidden: boolean
}

/** One operation with all that is known of it. */
export type OperationStory = (
  | OperationView
  /** Seen by this process, and not in the store now. */
  | { readonly id: string; readonly state: 'absent'; readonly labels: Readonly<Record<string, string>> }
) & {
  readonly answer?: AnswerView
  /** Oldest first. */
  readonly history: readonly SeenEvent[]
}

/** What the store holds, over as many records as one call may look at. */
export interface Expiry {
  /** How many records are gone `untilMs` from now; `null`, when sent as JSON, is for all that come later. */
  readonly buckets: ReadonlyArray<{ readonly untilMs: number | null; readonly count: number }>
  readonly states: Readonly<Record<RecordState['state'], number>>
  readonly bodyBytes: number
  readonly scanned: number
  /** Whether that was all of them. */
  readonly complete: boolean
}

interface KeptExpiry {
  readonly told: Promise<Expiry>
  /** When it was ready; not there while it is under way. */
  at?: number
}

export interface Search {
  readonly state?: RecordState['state'] | undefined
  /** A key, or the beginning of an id; where keys are shown also a part of one. */
  readonly q?: string | undefined
  readonly route?: string | undefined
  readonly principal?: string | undefined
  readonly after?: string | undefined
  readonly limit: number
}

/** Records looked at in one call, at most: a search through millions goes on with `next`. */
export const SCANNED_MAX = 5_000
/** And no further than this many bytes of bodies, which a store cannot leave out. */
const SCANNED_BODY_BYTES_MAX = 256 * 1024 * 1024
const EXPIRY_KEPT_MS = 5_000
const ID = /^[\da-f]{64}$/
/** Fewer characters would be right by chance. */
const ID_BEGINNING = /^[\da-f]{6,64}$/i
const FOUND_MAX = 20
const BODY_SHOWN_BYTES_MAX = 256 * 1024
/** How long an operator has, between taking over and settling. */
const OPERATOR_LEASE_MS = 10_000

export class Operations {
  readonly #store: Store
  readonly #history: History
  readonly #reveals: boolean
  readonly #now: () => number
  #expiry: KeptExpiry | undefined

  /** Unless it `reveals`, keys and principals are shown by their ends only, and bodies not at all. */
  constructor(store: Store, history: History, reveals: boolean, now: () => number = Date.now) {
    this.#store = store
    this.#history = history
    this.#reveals = reveals
    this.#now = now
  }

  async search(search: Search): Promise<{ operations: OperationView[]; next: string | null; scanned: number }> {
    const operations: OperationView[] = []
    const { after, state, limit } = search
    const recordsMax = isFiltered(search) ? SCANNED_MAX : Math.min(limit, SCANNED_MAX)
    const bounds = { after, state, recordsMax, bodyBytesMax: SCANNED_BODY_BYTES_MAX }
    const end = await scan(this.#store, bounds, (record) => {
      if (matches(record, search, this.#reveals)) operations.push(this.#view(record))
      return operations.length < limit
    })
    return { operations, next: end.complete ? null : (end.after ?? null), scanned: end.scanned }
  }

  /**
   * What an operator means by a whole id, a whole key, or the beginning of an id, in this order; several when it may be
   * each of them. Never a part of a key: what is found here may be removed. Looks through the whole store.
   */
  async find(said: string): Promise<readonly OperationView[]> {
    const whole = ID.test(said) ? await this.#store.read(said) : undefined
    if (whole !== undefined) return [this.#view(whole)]
    const beginning = ID_BEGINNING.test(said) ? said.toLowerCase() : undefined
    const byKey: OperationView[] = []
    const byId: OperationView[] = []
    await scan(this.#store, {}, (record) => {
      if (record.labels.key === said) byKey.push(this.#view(record))
      else if (beginning !== undefined && byId.length < FOUND_MAX && record.id.startsWith(beginning)) {
        byId.push(this.#view(record))
      }
      return byKey.length < FOUND_MAX
    })
    return byKey.length > 0 ? byKey : byId
  }

  async show(id: string): Promise<OperationStory | undefined> {
    const record = await this.#store.read(id)
    const history = this.#history.of(id).map((event) => this.event(event))
    if (record === undefined) return history.length === 0 ? undefined : { id, state: 'absent', labels: {}, history }
    const answer = record.state === 'settled' ? this.#answer(record.answer) : undefined
    return { ...this.#view(record), ...(answer && { answer }), history }
  }

  /** Forgets the record: the next request with this key runs. One that is running, only by force: it would run beside it. */
  async release(id: string, force = false): Promise<'done' | 'absent' | 'running'> {
    if (!force && (await this.#store.read(id))?.state === 'running') return 'running'
    if (!(await this.#store.forget(id))) return 'absent'
    this.#history.note('operator-released', id)
    return 'done'
  }

  /** Takes away what the record tells of people, and keeps the claim. */
  async redact(id: string): Promise<'done' | 'absent' | 'unanswered'> {
    if (await this.#store.redact(id)) {
      this.#history.redact(id)
      this.#history.note('operator-redacted', id)
      return 'done'
    }
    return (await this.#store.read(id)) === undefined ? 'absent' : 'unanswered'
  }

  /** Decides an outcome that nobody knows: from now on a retry is told that the operation failed. */
  async fail(id: string, status: number, note: string): Promise<'done' | 'absent' | RecordState['state']> {
    const record = await this.#store.read(id)
    if (record === undefined) return 'absent'
    if (record.state !== 'unknown') return record.state
    const token = `operator.${randomUUID()}`
    const { fingerprint, goneInMs } = record
    const claim = await this.#store.claim({
      ...{ id, token, fingerprint, takeover: true },
      leaseMs: OPERATOR_LEASE_MS,
      unknownTtlMs: goneInMs,
    })
    if (claim.state !== 'acquired') return claim.state
    const document = {
      title: 'The operation was marked as failed',
      status,
      detail: note || 'Its outcome was not known, and an operator has decided that it did not take place.',
      code: 'marked-failed',
    }
    const answer: Answer = {
      status,
      headers: [['content-type', 'application/problem+json']],
      body: new TextEncoder().encode(JSON.stringify(document)),
    }
    const kept = await this.#store.settle(id, token, { outcome: 'rejected', answer, ttlMs: goneInMs, expiredTtlMs: 0 })
    if (kept) this.#history.note('operator-failed', id, `answered with ${status}${note && `: ${note}`}`)
    return kept ? 'done' : 'running'
  }

  /**
   * When the records will be gone, over as many as one call may look at. That is much to read: whoever asks meanwhile, or
   * a little later, gets the same.
   */
  expiry(): Promise<Expiry> {
    const kept = this.#expiry
    if (kept !== undefined && (kept.at === undefined || Math.abs(this.#now() - kept.at) < EXPIRY_KEPT_MS)) {
      return kept.told
    }
    const asked: KeptExpiry = { told: this.#countExpiry() }
    this.#expiry = asked
    asked.told.then(
      () => {
        asked.at = this.#now()
      },
      () => {
        this.#expiry = undefined
      },
    )
    return asked.told
  }

  async #countExpiry(): Promise<Expiry> {
    const now = this.#now()
    const buckets = EXPIRY_STEPS_MS.map((untilMs) => ({ untilMs, count: 0 }))
    const states = { running: 0, unknown: 0, settled: 0, expired: 0 }
    let bodyBytes = 0
    const bounds = { recordsMax: SCANNED_MAX, bodyBytesMax: SCANNED_BODY_BYTES_MAX }
    const { scanned, complete } = await scan(this.#store, bounds, (record) => {
      const bucket = buckets.find(({ untilMs }) => record.goneAt - now <= untilMs)
      if (bucket) bucket.count += 1
      states[record.state] += 1
      bodyBytes += bodyBytesOf(record)
      return true
    })
    return { buckets, states, bodyBytes, scanned, complete }
  }

  event(event: SeenEvent): SeenEvent {
    if (this.#reveals) return event
    const { labels, changes } = event
    return {
      ...event,
      ...(labels !== undefined && { labels: this.#labels(labels) }),
      // The names in a body are the client's: one may be a person's.
      ...(changes !== undefined && { changes: changes.map((one) => ({ ...one, path: hidden(one.path) })) }),
    }
  }

  #view(record: StoredRecord): OperationView {
    const { id, state, attempt, createdAt, goneAt, fingerprint, labels } = record
    return {
      ...{ id, state, attempt, createdAt, goneAt, fingerprint },
      labels: this.#labels(labels),
      ...(record.state === 'running' && { leaseLeftMs: record.leaseLeftMs }),
      ...(record.state === 'settled' && {
        ...{ outcome: record.outcome, status: record.answer.status, expiresInMs: record.expiresInMs },
      }),
    }
  }

  #labels(labels: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
    if (this.#reveals) return labels
    return Object.fromEntries(
      Object.entries(labels).map(([name, value]) => [name, HIDDEN_LABELS.has(name) ? hidden(value) : value]),
    )
  }

  #answer({ status, headers, body }: Answer): AnswerView {
    const bytes = body?.byteLength ?? 0
    if (!this.#reveals || body === null || bytes > BODY_SHOWN_BYTES_MAX) {
      const shown = this.#reveals ? headers : headers.filter(([name]) => name.toLowerCase() === 'content-type')
      return { status, headers: shown, bytes, isHidden: body !== null }
    }
    const text = textOf(body)
    const shown = text === undefined ? { bodyBase64: Buffer.from(body).toString('base64') } : { bodyText: text }
    return { status, headers, bytes, ...shown, isHidden: false }
  }
}

const EXPIRY_STEPS_MS = [
  60_000,
  600_000,
  3_600_000,
  6 * 3_600_000,
  12 * 3_600_000,
  86_400_000,
  7 * 86_400_000,
  Infinity,
]
const HIDDEN_LABELS: ReadonlySet<string> = new Set(['key', 'principal'])

/** Enough to recognise what one knows, not enough to use it: the ends, and a digest for comparison. */
export function hidden(value: string): string {
  const digest = createHash('sha256').update(value).digest('hex').slice(0, 6)
  const ends = value.length > 8 ? `${value.slice(0, 2)}…${value.slice(-2)}` : '…'
  return `${ends}#${digest}`
}

function isFiltered({ q, route, principal }: Search): boolean {
  return [q, route, principal].some((part) => part !== undefined && part !== '')
}

/**
 * Whoever knows a key may look for it. Part of one finds it only where keys are shown: otherwise a key could be found out
 * letter by letter.
 */
function matches({ id, labels }: StoredRecord, { q, route, principal }: Search, reveals: boolean): boolean {
  const has = (value: string | undefined, part: string): boolean =>
    value?.toLowerCase().includes(part.toLowerCase()) ?? false
  if (route && !has(labels.route, route)) return false
  if (principal && labels.principal !== principal) return false
  return !q || id.startsWith(q) || labels.key === q || (reveals && has(labels.key, q))
}

function textOf(body: Uint8Array): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body)
  } catch {
    return undefined
  }
}
