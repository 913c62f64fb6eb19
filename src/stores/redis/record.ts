import { OncekeyError } from '../../error.ts'
import type { Answer, ClaimRequest, Labels, Outcome, RecordState, Settlement, StoredRecord } from '../../store.ts'
import { FORMAT, HEAD_BYTES } from './scripts.ts'

/** A record as a script gave it, at the server's time `now`. The layout stands in `scripts.ts`. */
export class RedisRecord {
  readonly #now: number
  readonly #bytes: Buffer

  constructor(now: number, bytes: Buffer) {
    this.#now = now
    this.#bytes = bytes
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
    const untilAt = this.#number(8, 23)
    const goneAt = this.#number(23, 38)
    const kind = this.#bytes[5]
    if (kind === RUNNING) {
      if (now < untilAt) return { state: 'running', fingerprint, leaseLeftMs: untilAt - now }
      return { state: 'unknown', fingerprint, goneInMs: goneAt - now }
    }
    if (now >= untilAt) return { state: 'expired', fingerprint, goneInMs: goneAt - now }
    const outcome: Outcome = kind === COMMITTED ? 'committed' : 'rejected'
    return { state: 'settled', fingerprint, outcome, answer: this.#answer(), expiresInMs: untilAt - now }
  }

  stored(): StoredRecord {
    const labelsText = this.#part(3)
    const labels: Labels = labelsText === '' ? NO_LABELS : JSON.parse(labelsText)
    return {
      ...this.state(),
      id: this.id,
      attempt: this.#number(61, 71),
      createdAt: this.#number(46, 61),
      goneAt: this.#number(23, 38),
      labels,
    }
  }

  #answer(): Answer {
    const [status, headers] = JSON.parse(this.#part(4)) as [number, Answer['headers']]
    const body = this.#bytes[6] === BODY_KEPT ? this.#bytes.subarray(this.#startOf(5)) : null
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
    const from = index === 4 ? 38 : 95 - 8 * index
    return this.#number(from, from + 8)
  }

  #number(from: number, to: number): number {
    let number = 0
    for (let at = from; at < to; at++) number = number * 10 + (this.#bytes[at] as number) - ZERO
    return number
  }
}

/** What CLAIM is given of a record: all that does not depend on the time, as it will be kept. */
export function claimOwn({ id, token, fingerprint, labels }: ClaimRequest): string {
  const tokenText = toText(token)
  const fingerprintText = toText(fingerprint)
  const idText = toText(id)
  const labelText = labelsText(labels)
  const lengths = digits(labelText) + digits(idText) + digits(fingerprintText) + digits(tokenText)
  return FIRST_ATTEMPT + lengths + tokenText + fingerprintText + idText + labelText
}

/** What SETTLE is given of a record, and the body that goes beside it. */
export function settleOwn(token: string, { outcome, answer }: Settlement): [own: string, body: Buffer | null] {
  const { status, headers, body } = answer
  const tokenText = toText(token)
  const state = outcome === 'committed' ? 'c' : 'x'
  const text = JSON.stringify([status, headers])
  const rest = digits(text) + digits(tokenText) + tokenText + text
  if (body === null) return [`${FORMAT}${state}--${NO_BODY}${rest}`, null]
  if (body.byteLength + text.length > ANSWER_BYTES_MAX) {
    throw new OncekeyError(
      'body-too-large',
      `The answer has ${body.byteLength} bytes; Redis holds no value of more than 512 MB. Nothing was recorded. Keep ` +
        'such a body elsewhere and answer with a reference to it, or let the contract keep answers without their body.',
    )
  }
  const bytes = Buffer.isBuffer(body) ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return [`${FORMAT}${state}b-${String(bytes.length).padStart(NO_BODY.length, '0')}${rest}`, bytes]
}

const FIRST_ATTEMPT = '0000000001'
const NO_BODY = '0000000000'
const RUNNING = 'r'.charCodeAt(0)
const COMMITTED = 'c'.charCodeAt(0)
const BODY_KEPT = 'b'.charCodeAt(0)
const ZERO = '0'.charCodeAt(0)

/** A length in the head, of what stands behind it. */
function digits(text: string): string {
  return String(Buffer.byteLength(text)).padStart(8, '0')
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
