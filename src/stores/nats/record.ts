import { OncekeyError } from '../../error.ts'
import type { Answer, Labels, Outcome, RecordState, Settlement, StoredRecord } from '../../store.ts'

/**
 * One record as one value of the bucket: a line that people can read (`nats kv get`), then the body's own bytes.
 *
 *     oncekey1 {"id":"…","token":"…",…}⏎<body>
 *
 * Lifetimes are durations that count from the time that the server gave the value when it stored it, so that a write
 * needs nobody's idea of the time.
 */
export interface Kept {
  readonly id: string
  /** A record that was released, forgotten or swept: it stands for none, and keeps the revision that fences late writers. */
  readonly tombstone?: true
  readonly token: string
  readonly fingerprint: string
  readonly attempt: number
  readonly leaseMs: number
  readonly unknownTtlMs: number
  /** The first claim: a time of the server where one was known, else how long before this value it was. */
  readonly createdAt?: number
  readonly ageMs?: number
  readonly labels?: Labels
  readonly settled?: KeptAnswer
}

export interface KeptAnswer {
  readonly outcome: Outcome
  readonly ttlMs: number
  readonly expiredTtlMs: number
  readonly status: number
  readonly headers: Answer['headers']
  /** `null`: the body was not kept. */
  readonly bodyBytes: number | null
  /** The answer was expired when the sweeper took it away; this is when the record is gone. */
  readonly strippedGoneAt?: number
}

/** A value as it was read, with what the server says of it. */
export interface Entry {
  readonly revision: number
  readonly timeMs: number
  readonly kept: Kept
  readonly body: Uint8Array
}

export interface Times {
  readonly leaseUntil: number
  readonly expiresAt: number
  readonly goneAt: number
}

export function timesOf({ kept, timeMs }: Entry): Times {
  if (kept.tombstone) return { leaseUntil: timeMs, expiresAt: timeMs, goneAt: timeMs }
  const { leaseMs, unknownTtlMs, settled } = kept
  const leaseUntil = timeMs + leaseMs
  if (settled === undefined) return { leaseUntil, expiresAt: leaseUntil, goneAt: leaseUntil + unknownTtlMs }
  if (settled.strippedGoneAt !== undefined) return { leaseUntil, expiresAt: 0, goneAt: settled.strippedGoneAt }
  const expiresAt = timeMs + settled.ttlMs
  return { leaseUntil, expiresAt, goneAt: expiresAt + settled.expiredTtlMs }
}

/** Not for an entry that is gone. */
export function stateOf(entry: Entry, now: number): RecordState {
  const { kept, body } = entry
  const { fingerprint, settled } = kept
  const { leaseUntil, expiresAt, goneAt } = timesOf(entry)
  if (settled === undefined) {
    if (now < leaseUntil) return { state: 'running', fingerprint, leaseLeftMs: leaseUntil - now }
    return { state: 'unknown', fingerprint, goneInMs: goneAt - now }
  }
  if (now >= expiresAt) return { state: 'expired', fingerprint, goneInMs: goneAt - now }
  const { outcome, status, headers, bodyBytes } = settled
  const answer = { status, headers, body: bodyBytes === null ? null : body }
  return { state: 'settled', fingerprint, outcome, answer, expiresInMs: expiresAt - now }
}

export function recordOf(entry: Entry, now: number): StoredRecord {
  const { id, attempt, labels = {} } = entry.kept
  const { goneAt } = timesOf(entry)
  return { ...stateOf(entry, now), id, attempt, createdAt: createdAtOf(entry), goneAt, labels }
}

export function createdAtOf({ kept, timeMs }: Entry): number {
  return kept.createdAt ?? timeMs - (kept.ageMs ?? 0)
}

export function answerOf({ outcome, answer, ttlMs, expiredTtlMs }: Settlement): KeptAnswer {
  const { status, headers, body } = answer
  const bodyBytes = body === null ? null : body.byteLength
  return { outcome, ttlMs: whole(ttlMs), expiredTtlMs: whole(expiredTtlMs), status, headers, bodyBytes }
}

/** A tombstone keeps the id alone: nothing of what was forgotten. */
export function tombstoneOf(id: string): Kept {
  return { id, tombstone: true, token: '', fingerprint: '', attempt: 0, leaseMs: 0, unknownTtlMs: 0 }
}

/** The same record without what it tells of people. Written now, so that what is left of its lifetimes counts from now. */
export function redactedOf(entry: Entry, now: number): Kept {
  const { labels: _, ageMs: __, settled, ...rest } = entry.kept
  const { expiresAt, goneAt } = timesOf(entry)
  const kept = { ...rest, createdAt: createdAtOf(entry) }
  if (settled === undefined) return kept
  const left = now >= expiresAt ? { strippedGoneAt: goneAt } : { ttlMs: expiresAt - now }
  return { ...kept, settled: { ...settled, ...left, headers: [], bodyBytes: null } }
}

export function encode(kept: Kept, body: Uint8Array | null = null): Uint8Array {
  const line = Buffer.from(`${MAGIC}${JSON.stringify(kept)}\n`)
  return body === null ? line : Buffer.concat([line, body])
}

export function decode(id: string, data: Uint8Array, revision: number, timeMs: number): Entry {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength)
  const lineEnd = bytes.indexOf(LINE_END)
  const isOurs = lineEnd >= MAGIC.length && bytes.toString('latin1', 0, MAGIC.length) === MAGIC
  if (!isOurs) throw foreign(id, 'does not have the form of a record of this version of oncekey')
  const kept = JSON.parse(bytes.toString('utf8', MAGIC.length, lineEnd)) as Kept
  if (kept.id !== id) throw foreign(id, 'names another record in itself')
  // A copy: what the driver gave may be a part of a larger buffer, and the reader may change what it is given.
  return { revision, timeMs, kept, body: new Uint8Array(bytes.subarray(lineEnd + 1)) }
}

function foreign(id: string, what: string): OncekeyError {
  return new OncekeyError(
    'store-incompatible',
    `The value of ${id} in the NATS bucket ${what}. It was left as it is. Give oncekey a bucket of its own, or use ` +
      'the version that wrote it.',
  )
}

/** The ids that the engine makes are keys as they are; any other goes in as base64url of its UTF-16 units. */
export function keyOfId(id: string): string {
  if (HASH_HEX.test(id)) return id
  const key = OTHER_PREFIX + Buffer.from(id, 'utf16le').toString('base64url')
  if (key.length <= KEY_CHARS_MAX) return key
  throw new OncekeyError('config-invalid', `An id of ${id.length} characters is too long for a NATS subject.`)
}

/** `undefined` for a key that is none of ours. */
export function idOfKey(key: string): string | undefined {
  if (HASH_HEX.test(key)) return key
  if (!key.startsWith(OTHER_PREFIX)) return undefined
  return Buffer.from(key.slice(OTHER_PREFIX.length), 'base64url').toString('utf16le')
}

/** A part of a millisecond counts as one. */
export function whole(durationMs: number): number {
  return Math.min(Math.ceil(durationMs), DURATION_MS_MAX)
}

/** Longer is as good as for ever, and still a time that a Date can show. */
const DURATION_MS_MAX = 1_000 * 365 * 24 * 3_600_000
const MAGIC = 'oncekey1 '
const LINE_END = 10
const HASH_HEX = /^[0-9a-f]{64}$/
const OTHER_PREFIX = 'x.'
/** The server reads a subject as a part of a line of 4,096 bytes at most. */
const KEY_CHARS_MAX = 3_500
