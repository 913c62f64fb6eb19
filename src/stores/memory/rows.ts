import type { Answer, ClaimRequest, Labels, Outcome, RecordState, Settlement, StoredRecord } from '../../store.ts'

/** Smaller bodies are kept as strings: a byte array of its own costs more than everything else in a record. */
const STRING_BODY_BYTES_MAX = 1_024
/** Lifetimes beyond this many different ones share coarse lanes, so that a visit to all lanes stays bounded. */
const EXACT_LANES_MAX = 64

const NO_LABELS: Labels = Object.freeze({})

/** A place in a ring. The head of a ring is a plain `Link`. */
export class Link {
  prev: Link = this
  next: Link = this
}

/** Puts the link at the end of the ring, from wherever it was. */
export function append(ring: Link, link: Link): void {
  unlink(link)
  link.prev = ring.prev
  link.next = ring
  ring.prev.next = link
  ring.prev = link
}

export function unlink(link: Link): void {
  link.prev.next = link.next
  link.next.prev = link.prev
  link.prev = link
  link.next = link
}

/** A record. As a link, it stands in the lane of its lifetime. */
export class Row extends Link {
  readonly id: string
  readonly fingerprint: string
  labels: Labels
  readonly createdAt: number
  token: string
  attempt = 1
  leaseUntil = 0
  goneAt = 0
  /** When the row next changes by itself: gone, or, for an answer whose key is remembered longer, expired. */
  dueAt = 0
  answered: Answered | undefined = undefined

  constructor(request: ClaimRequest, now: number) {
    super()
    this.id = request.id
    this.fingerprint = request.fingerprint
    this.labels = request.labels === undefined ? NO_LABELS : Object.freeze({ ...request.labels })
    this.createdAt = now
    this.token = request.token
  }

  stateName(now: number): RecordState['state'] {
    if (this.answered === undefined) return now < this.leaseUntil ? 'running' : 'unknown'
    return now < this.answered.expiresAt ? 'settled' : 'expired'
  }

  state(now: number): RecordState {
    const { fingerprint, answered } = this
    if (answered === undefined) {
      if (now < this.leaseUntil) return { state: 'running', fingerprint, leaseLeftMs: this.leaseUntil - now }
      return { state: 'unknown', fingerprint, goneInMs: this.goneAt - now }
    }
    if (now >= answered.expiresAt) return { state: 'expired', fingerprint, goneInMs: this.goneAt - now }
    const { outcome, expiresAt } = answered
    return { state: 'settled', fingerprint, outcome, answer: answered.answer(), expiresInMs: expiresAt - now }
  }

  record(now: number, epochMs: number): StoredRecord {
    const { id, attempt, labels } = this
    const [createdAt, goneAt] = [epochMs + this.createdAt, epochMs + this.goneAt]
    return { ...this.state(now), id, attempt, createdAt, goneAt, labels }
  }
}

/**
 * A record's answer. As a link, it stands in the ring of uses: what is not answered is not in it, and cannot be evicted.
 * Copied on the way in and on the way out: callers and readers reuse their buffers, and the answer must not change.
 */
export class Answered extends Link {
  readonly row: Row
  expiresAt: number
  readonly outcome: Outcome
  readonly #status: number
  /** Names and values by turns. */
  #headers: readonly string[]
  #body: string | Uint8Array | null

  constructor(row: Row, { outcome, answer }: Settlement, expiresAt: number) {
    super()
    this.row = row
    this.expiresAt = expiresAt
    this.outcome = outcome
    this.#status = answer.status
    this.#headers = flat(answer.headers)
    this.#body = packed(answer.body)
  }

  answer(): Answer {
    return { status: this.#status, headers: pairs(this.#headers), body: unpacked(this.#body) }
  }

  redact(): void {
    this.row.labels = NO_LABELS
    this.#headers = []
    this.#body = null
  }

  /** Frees what an expired answer no longer needs. It stays expired, even when the clock steps back. */
  strip(): void {
    this.expiresAt = Number.NEGATIVE_INFINITY
    this.#headers = []
    this.#body = null
  }
}

/**
 * Rows by the time at which they next change by themselves. Rows of one lifetime come due in the order in which they
 * came, so each lifetime has a lane, and only the head of each lane is ever looked at. A clock that steps back, or a
 * coarse lane, makes a row wait behind another one: it is freed late, but never served late.
 */
export class Lanes {
  readonly #lanes = new Map<number, Link>()
  /** No row is due before this: most visits end here. */
  #dueFrom = Number.POSITIVE_INFINITY

  put(row: Row, lifetimeMs: number): void {
    let lane = this.#lanes.get(lifetimeMs)
    if (lane === undefined) {
      const key = this.#lanes.size < EXACT_LANES_MAX ? lifetimeMs : 2 ** Math.ceil(Math.log2(lifetimeMs + 1))
      lane = this.#lanes.get(key) ?? new Link()
      this.#lanes.set(key, lane)
    }
    append(lane, row)
    if (row.dueAt < this.#dueFrom) this.#dueFrom = row.dueAt
  }

  firstDue(now: number): Row | undefined {
    if (now < this.#dueFrom) return undefined
    let dueFrom = Number.POSITIVE_INFINITY
    for (const [lifetimeMs, lane] of this.#lanes) {
      const row = lane.next
      if (!(row instanceof Row)) this.#lanes.delete(lifetimeMs)
      else if (row.dueAt <= now) return row
      else if (row.dueAt < dueFrom) dueFrom = row.dueAt
    }
    this.#dueFrom = dueFrom
    return undefined
  }

  clear(): void {
    this.#lanes.clear()
    this.#dueFrom = Number.POSITIVE_INFINITY
  }
}

function flat(headers: Answer['headers']): readonly string[] {
  const parts: string[] = []
  for (const [name, value] of headers) parts.push(name, value)
  return parts
}

function pairs(parts: readonly string[]): Answer['headers'] {
  const headers: [string, string][] = []
  for (let i = 0; i + 1 < parts.length; i += 2) headers.push([parts[i] ?? '', parts[i + 1] ?? ''])
  return headers
}

function packed(body: Uint8Array | null): string | Uint8Array | null {
  if (body === null) return null
  if (body.byteLength > STRING_BODY_BYTES_MAX) return new Uint8Array(body)
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return bytes.toString('latin1')
}

function unpacked(body: string | Uint8Array | null): Uint8Array | null {
  if (body === null) return null
  return typeof body === 'string' ? Buffer.from(body, 'latin1') : new Uint8Array(body)
}
