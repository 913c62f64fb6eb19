import type { ErrorCode } from '../../error.ts'
import type { Outcome, RecordState } from '../../store.ts'

/**
 * What the event loop and the worker say to each other. One message carries a whole batch, as tuples of strings and
 * numbers: cloning a tuple costs a third of cloning an object, and an acquired claim is answered by one small number.
 *
 * Every operation starts with its verb and its time.
 */
export type Op =
  | readonly [verb: 'claim', now: Stamp, id: string, claim: ClaimFields]
  | readonly [verb: 'settle', now: Stamp, id: string, token: string, settlement: SettleFields]
  | readonly [verb: 'release', now: Stamp, id: string, token: string]
  | readonly [verb: 'renew', now: Stamp, id: string, token: string, leaseMs: number]
  | readonly [verb: 'read', now: Stamp, id: string]
  | readonly [verb: 'list', now: Stamp, after: string | null, limit: number, state: RecordState['state'] | null]
  | readonly [verb: 'forget', now: Stamp, id: string]
  | readonly [verb: 'redact', now: Stamp, id: string]
  | readonly [verb: 'sweep', now: Stamp, limit: number]
  | readonly [verb: 'leaseLeft', now: Stamp, id: string]

/** The time by an injected clock; without one the worker reads the system's, when it holds the lock. */
export type Stamp = number | null

export type ClaimFields = readonly [
  token: string,
  fingerprint: string,
  leaseMs: number,
  unknownTtlMs: number,
  takeover: boolean,
  /** JSON, or null when there are none. */
  labels: string | null,
]

export type SettleFields = readonly [
  outcome: Outcome,
  ttlMs: number,
  expiredTtlMs: number,
  status: number,
  /** JSON. */
  headers: string,
  /** The bodies of a batch lie one behind the other in its bytes. -1: there is none, it was too large to keep. */
  bodyLength: number,
]

/**
 * A number: an acquired claim's attempt, or a count, or 1 and 0 for true and false. `null`: no such record.
 * A row: the record as it stood. Objects, so that they can be told from a row: a list, or a failure.
 */
export type Reply = number | null | Row | { readonly rows: readonly Row[] } | Fault

/** A record as one row of the table; `now` is when it was read. Times are milliseconds since the epoch. */
export type Row = readonly [
  now: number,
  id: Uint8Array | string,
  token: string,
  fingerprint: string,
  attempt: number,
  createdAt: number,
  leaseUntil: number,
  goneAt: number,
  outcome: Outcome | null,
  expiresAt: number | null,
  status: number | null,
  labels: string | null,
  headers: string | null,
  body: Uint8Array | null,
]

export interface Fault {
  readonly fault: ErrorCode
  readonly message: string
  readonly cause: unknown
}

export type ToWorker =
  | { readonly ops: readonly Op[]; readonly bytes: Uint8Array | null }
  /** Whether to look out for commits of other processes. */
  | { readonly watch: boolean }
  | { readonly close: true }

export type FromWorker =
  /** The answers to one or more batches, in order. Sent after the commit. */
  | { readonly batches: ReadonlyArray<readonly Reply[]> }
  /** Another process has committed something. */
  | { readonly changed: true }

export interface WorkerSettings {
  readonly path: string
  readonly synchronous: 'full' | 'normal'
}
