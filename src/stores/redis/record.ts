import { OncekeyError } from '../../error.ts'
import type { Answer, ClaimRequest, Labels, Outcome, RecordState, Settlement, StoredRecord } from '../../store.ts'
import { HEAD_BYTES } from './scripts.ts'

/** A record as a script gave it, at the server's time `now`. The layout stands in `scripts.ts`. */
export class RedisRecord {
  readonly #now: number
  readonly #bytes: Buffer
  readonly #head: string

  constructor(now: number, bytes: Buffer) {
    this.#now = now
    this.#bytes = bytes
    this.#head = bytes.toString('latin1', 0, HEAD_BYTES)
  }

  /** The reply of CLAIM and READ. A record under the name of another is never believed. */
  static from(reply: unknown, id: string): RedisRecord {
    const [now, bytes] = Array.isArray(reply) ? reply : []
    if (!Buffer.isBuffer(bytes) || bytes.length < HEAD_BYTES) {
      throw new OncekeyError(
        'store-incompatible',
        `Redis answered with something that is not a record (${typeof reply}). A proxy or a changed script is in the way.`,
      )
    }
    const record = new RedisRecord(Number(now), bytes)
    if (record.id !== id) {
      throw new OncekeyError(
        'store-incompatible',
        `The Redis key of record ${id} holds the record ${record.id}. Keys were renamed or copied by hand; nothing was ` +
          'taken from it. Remove the key, or give this store a prefix of its own.',
      )
    }
    return record
  }

  get id(): string {
    return fromText(this.#part(2))
  }

  state(): RecordState {
    const now = this.#now
    const fingerprint = fromText(this.#part(1))
    const untilAt = this.#number(23, 38)
    const goneAt = this.#number(38, 53)
    const kind = this.#head[5]
    if (kind === 'r') {
      if (now < untilAt) return { state: 'running', fingerprint, leaseLeftMs: untilAt - now }
      return { state: 'unknown', fingerprint, goneInMs: goneAt - now }
    }
    if (now >= untilAt) return { state: 'expired', fingerprint, goneInMs: goneAt - now }
    const outcome: Outcome = kind === 'c' ? 'committed' : 'rejected'
    return { state: 'settled', fingerprint, outcome, answer: this.#answer(), expiresInMs: untilAt - now }
  }

  stored(): StoredRecord {
    const labelsText = this.#part(3)
    const labels: Labels = labelsText === '' ? NO_LABELS : JSON.parse(labelsText)
    return {
      ...this.state(),
      id: this.id,
      attempt: this.#number(53, 63),
      createdAt: this.#number(8, 23),
      goneAt: this.#number(38, 53),
      labels,
    }
  }

  #answer(): Answer {
    const [status, headers] = JSON.parse(this.#part(4)) as [number, Answer['headers']]
    const body = this.#head[6] === 'b' ? this.#bytes.subarray(this.#startOf(5)) : null
    return { status, headers, body }
  }

  /** Token, fingerprint, id, labels, answer. */
  #part(index: number): string {
    const start = this.#startOf(index)
    return this.#bytes.toString('utf8', start, start + this.#lengthOf(index))
  }

  #startOf(index: number): number {
    let start = HEAD_BYTES
    for (let before = 0; before < index; before++) start += this.#lengthOf(before)
    return start
  }

  #lengthOf(index: number): number {
    return this.#number(63 + index * 8, 71 + index * 8)
  }

  #number(from: number, to: number): number {
    return Number(this.#head.slice(from, to))
  }
}

/** What CLAIM is given of a record: all that does not depend on the time, as it will be kept. */
export function claimOwn({ id, token, fingerprint, labels }: ClaimRequest): string {
  const parts = [toText(token), toText(fingerprint), toText(id), labelsText(labels)]
  let lengths = FIRST_ATTEMPT
  for (const part of parts) lengths += digits(Buffer.byteLength(part))
  return lengths + NO_ANSWER + parts.join('')
}

/** What SETTLE is given of a record, and the body that goes beside it. */
export function settleOwn(token: string, { outcome, answer }: Settlement): [own: string, body: Buffer | null] {
  const { status, headers, body } = answer
  const tokenText = toText(token)
  const state = outcome === 'committed' ? 'c' : 'x'
  const text = JSON.stringify([status, headers])
  const head = digits(Buffer.byteLength(tokenText)) + tokenText + text
  if (body === null) return [`${state}-${NO_BODY}${head}`, null]
  if (body.byteLength + text.length > ANSWER_BYTES_MAX) {
    throw new OncekeyError(
      'body-too-large',
      `The answer has ${body.byteLength} bytes; Redis holds no value of more than 512 MB. Nothing was recorded. Keep ` +
        'such a body elsewhere and answer with a reference to it, or let the contract keep answers without their body.',
    )
  }
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return [`${state}b${String(bytes.length).padStart(NO_BODY.length, '0')}${head}`, bytes]
}

const FIRST_ATTEMPT = '0000000001'
const NO_ANSWER = '00000000'
const NO_BODY = '0000000000'

/** A length in the head. */
function digits(length: number): string {
  return String(length).padStart(8, '0')
}

function labelsText(labels: Labels | undefined): string {
  if (labels !== undefined) for (const _ in labels) return JSON.stringify(labels)
  return ''
}

/** Ids, tokens and fingerprints: as they are, unless UTF-8 could not hold them and two would become one. */
export function toText(value: string): string {
  return value.isWellFormed() && value[0] !== ESCAPED ? value : ESCAPED + JSON.stringify(value)
}

export function fromText(text: string): string {
  return text[0] === ESCAPED ? String(JSON.parse(text.slice(1))) : text
}

/** Redis's own limit for one value (`proto-max-bulk-len`), less what stands beside the answer. */
export const ANSWER_BYTES_MAX: number = 512 * 1_024 * 1_024 - 64 * 1_024

const ESCAPED = '\u0001'
const NO_LABELS: Labels = Object.freeze({})
