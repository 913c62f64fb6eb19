import { OncekeyError } from '../../error.ts'
import type { Answer, ClaimRequest, Labels, Outcome, RecordState, StoredRecord } from '../../store.ts'

/** A record as operators see it in the collection. An answered one has `outcome`, until then it is running or unknown. */
export interface RecordDocument {
  readonly _id: string
  readonly token: string
  readonly fingerprint: string
  readonly attempt: number
  readonly createdAt: Date
  readonly leaseUntil: Date
  /** When it counts as absent; the TTL index is on it. */
  readonly goneAt: Date
  /** Names are encoded by `toFieldName`. */
  readonly labels: Readonly<Record<string, string>>
  readonly outcome?: Outcome
  readonly status?: number
  readonly headers?: ReadonlyArray<readonly [string, string]>
  readonly body?: Bytes | null
  readonly expiresAt?: Date
  /** When body and headers may be freed, of a record that is remembered for longer than its answer. */
  readonly stripAt?: Date
}

/** With the server's time of the command that read it. */
export type SeenDocument = RecordDocument & { readonly now: Date }

/** `promoteBuffers` gives the first; a driver that does not know the option gives its `Binary`. */
type Bytes = Uint8Array | { readonly buffer: Uint8Array; readonly position: number }

/** Everything of a record, and the server's clock: an expression in a projection needs MongoDB 4.4. */
export const PROJECTION = {
  _id: 1,
  token: 1,
  fingerprint: 1,
  attempt: 1,
  createdAt: 1,
  leaseUntil: 1,
  goneAt: 1,
  labels: 1,
  outcome: 1,
  status: 1,
  headers: 1,
  body: 1,
  expiresAt: 1,
  now: '$$NOW',
} as const

export function isGone({ goneAt, now }: SeenDocument): boolean {
  return goneAt <= now
}

export function isRunning({ outcome, leaseUntil, now }: SeenDocument): boolean {
  return outcome === undefined && now < leaseUntil
}

export function stateOf(seen: SeenDocument): RecordState {
  const { fingerprint, outcome, leaseUntil, expiresAt, goneAt, now, status = 0, headers } = seen
  const goneInMs = Number(goneAt) - Number(now)
  if (outcome === undefined || expiresAt === undefined) {
    if (now < leaseUntil) return { state: 'running', fingerprint, leaseLeftMs: Number(leaseUntil) - Number(now) }
    return { state: 'unknown', fingerprint, goneInMs }
  }
  // Without headers it was stripped: it stays expired, even when a new primary's clock is behind.
  if (expiresAt <= now || headers === undefined) return { state: 'expired', fingerprint, goneInMs }
  const answer = { status, headers, body: bytesOf(seen.body ?? null) }
  return { state: 'settled', fingerprint, outcome, answer, expiresInMs: Number(expiresAt) - Number(now) }
}

export function recordOf(seen: SeenDocument): StoredRecord {
  const { _id, attempt, createdAt, goneAt, labels } = seen
  const names = Object.entries(labels).map(([name, value]) => [fromFieldName(name), value])
  return {
    ...stateOf(seen),
    id: _id,
    attempt,
    createdAt: Number(createdAt),
    goneAt: Number(goneAt),
    labels: Object.fromEntries(names) as Labels,
  }
}

export function labelsOf(labels: Labels = {}): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(labels).map(([name, value]) => [toFieldName(name), value]))
}

/** Fields of the document by their names, each with what it is a copy of: a label's name, or `fingerprint`. */
export type RecordFields = Readonly<Record<string, string>>

/** What a claim writes besides the record itself, for people and indexes. Nothing here ever decides anything. */
export function fieldsOf({ fingerprint, labels = {} }: ClaimRequest, fields: RecordFields): object {
  const entries = Object.entries(fields).map(([field, source]) => {
    const value = source === 'fingerprint' ? fingerprint : labels[source]
    if (value !== undefined) return [field, { $literal: value }]
    throw new OncekeyError(
      'config-invalid',
      `The field ${JSON.stringify(field)} is to hold the label ${JSON.stringify(source)}, which this operation does not ` +
        'have, so it was not claimed. Pass labels: true to idempotency(), or take the field out of mongodbStore.',
    )
  })
  return Object.fromEntries(entries) as object
}

export function checkFields(fields: RecordFields, unique: readonly string[]): void {
  for (const field of Object.keys(fields)) {
    if (OWN_FIELDS.has(field) || !/^[A-Za-z][A-Za-z0-9_]*$/.test(field)) {
      throw new OncekeyError(
        'config-invalid',
        `fields has ${JSON.stringify(field)}, which is ${OWN_FIELDS.has(field) ? 'a field of the record itself' : 'not a plain name'}; choose another.`,
      )
    }
  }
  for (const field of unique) {
    if (Object.hasOwn(fields, field)) continue
    throw new OncekeyError('config-invalid', `unique has ${JSON.stringify(field)}, which is not among fields.`)
  }
}

const OWN_FIELDS: ReadonlySet<string> = new Set([...Object.keys(PROJECTION), 'stripAt', 'schema'])

/** A dot, a dollar or a NUL would mean something to MongoDB. */
function toFieldName(name: string): string {
  return name.replace(/[%.$\0]/g, (char) => `%${char.charCodeAt(0).toString(16).padStart(2, '0')}`)
}

function fromFieldName(name: string): string {
  return name.replace(/%([0-9a-f]{2})/g, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)))
}

function bytesOf(body: Bytes | null): Uint8Array | null {
  if (body === null) return null
  // Copied: the driver's bytes lie in the buffer of the whole reply.
  return new Uint8Array(body instanceof Uint8Array ? body : body.buffer.subarray(0, body.position))
}

/** The server's own limit for one document. */
export const DOCUMENT_BYTES_MAX: number = 16 * 1024 * 1024
/** Of these, what the record itself, its labels and the command around it may need. */
const RESERVED_BYTES = 64 * 1024
/** What BSON adds to one header: two lengths, types and indexes, and those of the pair itself. */
const HEADER_EXTRA_BYTES = 40

export function assertFits({ headers, body }: Answer): void {
  let bytes = body?.byteLength ?? 0
  for (const [name, value] of headers) bytes += Buffer.byteLength(name) + Buffer.byteLength(value) + HEADER_EXTRA_BYTES
  if (bytes > DOCUMENT_BYTES_MAX - RESERVED_BYTES) throw tooLarge(`The answer has ${bytes} bytes`)
}

export function tooLarge(what: string, cause?: unknown): OncekeyError {
  return new OncekeyError(
    'body-too-large',
    `${what}; MongoDB keeps at most ${DOCUMENT_BYTES_MAX} bytes (16 MB) in one document, of which ${RESERVED_BYTES} are ` +
      'for the record itself. It was not recorded; keep large results elsewhere, and answer with where they are.',
    { cause },
  )
}
