import { hash } from 'node:crypto'
import { canonicalBytes, canonicalValue } from '../../operation/canonical.ts'

/** One line of the log, under the names that it has in the file. */
export interface AuditEntry {
  /** 0, 1, 2, …: the line's number, less one. */
  readonly seq: number
  /** ISO 8601, by the clock of the log. */
  readonly time: string
  /** `genesis`, `repair` and `retry` are the log's own; the others are the application's. */
  readonly kind: string
  /** The operation's id, or empty on the log's own lines. */
  readonly operation: string
  /** SHA-256 of the request's RFC 8785 form, or empty on the log's own lines. */
  readonly request_hash: string
  readonly data: AuditData
  /** The `hash` of the line before; 64 zeros on the first. */
  readonly prev: string
  /** SHA-256 of the RFC 8785 form of this line without `hash`. */
  readonly hash: string
}

/** What JSON can carry without loss. */
export type AuditData = Readonly<Record<string, unknown>>

/** Where the chain is broken, and how that shows. Lines are counted from 1. */
export interface AuditBreak {
  readonly line: number
  readonly problem: /** The line's bytes are not what its hash was made of. */
    | 'changed'
    /** Lines that belong before it are not there. */
    | 'missing'
    /** It stands later than it belongs: a line was inserted before it, or it is here twice. */
    | 'moved'
    /** It is whole and in its place, but was linked to another line than the one before it. */
    | 'replaced'
    /** The last line has no end. */
    | 'torn'
    /** The expected head is nowhere in the chain. */
    | 'truncated'
    /** There is no line at all. */
    | 'empty'
  readonly reason: string
}

export const GENESIS_PREV: string = '0'.repeat(64)
export const FORMAT = 'oncekey-audit/1'
/** The line feed not counted. */
export const LINE_BYTES_MAX = 65_536

/** What a line says, before it is linked to the one before. */
export interface Content {
  readonly kind: string
  readonly operation: string
  readonly requestHash: string
  readonly data: AuditData
}

/** The entry that follows `previous`, and its line. The line is in RFC 8785 form: there is one way only to write it. */
export function link(
  previous: AuditEntry | undefined,
  time: string,
  content: Content,
): { readonly entry: AuditEntry; readonly line: string } {
  const { kind, operation, requestHash, data } = content
  const seq = previous === undefined ? 0 : previous.seq + 1
  const prev = previous?.hash ?? GENESIS_PREV
  const unhashed = { seq, time, kind, operation, request_hash: requestHash, data, prev }
  const entry = { ...unhashed, hash: hash('sha256', canonicalValue(unhashed), 'hex') }
  return { entry, line: canonicalValue(entry) }
}

/** The entry, if it is whole and follows `previous`; else the way in which it does not. */
export function follow(previous: AuditEntry | undefined, bytes: Buffer): AuditEntry | Omit<AuditBreak, 'line'> {
  const entry = readEntry(bytes)
  if (typeof entry === 'string') return { problem: 'changed', reason: entry }
  const expected = previous === undefined ? 0 : previous.seq + 1
  const { seq } = entry
  if (seq > expected) {
    return {
      problem: 'missing',
      reason: `its seq is ${seq} where ${expected} belongs: ${seq - expected} of the lines before it were removed, or it was moved up`,
    }
  }
  if (seq < expected) {
    return {
      problem: 'moved',
      reason: `its seq is ${seq} where ${expected} belongs: a line was inserted before it, or it was moved down or copied`,
    }
  }
  if (entry.prev !== (previous?.hash ?? GENESIS_PREV)) {
    return {
      problem: 'replaced',
      reason: 'it is whole, but was written after another line than the one that stands before it now',
    }
  }
  return entry
}

export function isEntry(followed: AuditEntry | Omit<AuditBreak, 'line'>): followed is AuditEntry {
  return 'hash' in followed
}

/** A text says what is wrong. */
function readEntry(bytes: Buffer): AuditEntry | string {
  const text = bytes.toString('utf8')
  // Compared as a whole, so that no byte can be changed unseen, not even white space.
  if (canonicalBytes(bytes) !== text) return 'it is not JSON in the form of RFC 8785, in which every line was written'
  const value: unknown = JSON.parse(text)
  if (!hasShape(value)) return 'it does not have the fields of an audit entry'
  const { hash: expected, ...unhashed } = value
  const actual = hash('sha256', canonicalValue(unhashed), 'hex')
  return actual === expected ? value : `its content has the hash ${actual}, but it says ${expected}`
}

function hasShape(value: unknown): value is AuditEntry {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const entry = value as Record<string, unknown>
  const { seq, data } = entry
  return (
    Object.keys(entry).length === FIELDS &&
    Number.isSafeInteger(seq) &&
    TEXT_FIELDS.every((name) => typeof entry[name] === 'string') &&
    typeof data === 'object' &&
    data !== null &&
    !Array.isArray(data)
  )
}

const TEXT_FIELDS = ['time', 'kind', 'operation', 'request_hash', 'prev', 'hash'] as const
const FIELDS = TEXT_FIELDS.length + 2
