import type { Claim, ClaimRequest, Labels, Outcome, RecordState, StoredRecord } from '../../store.ts'
import { fromText } from './encoding.ts'
import type { Row } from './sessions.ts'

/** Places in a row of `COLUMNS`. */
const ID = 0
const TOKEN = 1
const ATTEMPT = 3
const OUTCOME = 8
const TURN = 13
const NO_LABELS: Labels = Object.freeze({})

/** The record carries its own id: what was asked for is compared with it. */
export function idOf(row: Row): string {
  return fromText(row[ID] ?? null)
}

/** What a row says to a claim. `undefined`: it could have the record now, and is to ask again. */
export function claimed(row: Row | undefined, request: ClaimRequest, turn: Buffer | undefined): Claim | undefined {
  if (row === undefined) return undefined
  const isOwn = row[OUTCOME] === null && fromText(row[TOKEN] ?? null) === request.token
  if (isOwn || (turn !== undefined && row[TURN]?.equals(turn))) {
    return { state: 'acquired', attempt: Number(row[ATTEMPT]) }
  }
  const found = stateOf(row)
  const isForTakeover = request.takeover && found.state === 'unknown' && found.fingerprint === request.fingerprint
  return isForTakeover ? undefined : found
}

export function recordOf(row: Row): StoredRecord {
  const [, , , attempt, , , createdAt, goneAt, , , labels] = row
  return {
    ...stateOf(row),
    id: idOf(row),
    attempt: Number(attempt),
    createdAt: Number(createdAt),
    goneAt: Number(goneAt),
    labels: labels ? (JSON.parse(String(labels)) as Labels) : NO_LABELS,
  }
}

/** The state at the moment at which the statement began. */
function stateOf(row: Row): RecordState {
  const [, , print, , itsState, leftMs, , , outcome, status, , headers, body] = row
  const fingerprint = fromText(print ?? null)
  const state = String(itsState)
  if (state === 'running') return { state, fingerprint, leaseLeftMs: Number(leftMs) }
  if (state === 'unknown' || state === 'expired') return { state, fingerprint, goneInMs: Number(leftMs) }
  const answer = {
    status: Number(status),
    headers: JSON.parse(String(headers ?? '[]')) as [string, string][],
    // A copy: the driver's own buffer holds the whole reply.
    body: body === null || body === undefined ? null : Buffer.from(body),
  }
  return { state: 'settled', fingerprint, outcome: String(outcome) as Outcome, answer, expiresInMs: Number(leftMs) }
}
