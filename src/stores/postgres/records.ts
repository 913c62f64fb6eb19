import type { OncekeyError } from '../../error.ts'
import type { Reply } from '../../group-commit.ts'
import type { SettleOp, WriteOp } from '../../sql/operations.ts'
import { firstOfEachId, groupsBySize, heldByTransaction, untilAnswered } from '../../sql/operations.ts'
import type { Claim, ClaimRequest, Labels, Outcome, RecordState, StoredRecord } from '../../store.ts'
import { arrayOf, fromText, toText, whole } from './encoding.ts'
import { isOfOneOperation, isRecoverable, LOCK_TIMEOUT, sqlState, toOncekeyError } from './faults.ts'
import type { Row, Session } from './sessions.ts'
import { claimNewSql, claimSql, NOW, releaseSql, renewSql, settleOwnedSql, settleSql } from './statements.ts'
import { claimNewValues, claimValues, settleValues } from './values.ts'

/** How long a claim waits for a session that has the same record in an open transaction. */
const CLAIM_LOCK_MS_MAX = 250
/** The same, while the one is looked for that made its batch wait. */
const SUSPECT_LOCK_MS_MAX = 20
/** After a deadlock or a failed serialization the statement has changed nothing, and is sent again. */
const RETRIES_MAX = 10
/** A statement carries no further body beyond this; a larger one goes in a statement of its own. */
const STATEMENT_BYTES_MAX = 8 * 1024 * 1024

/** The verbs as statements. */
export class Records {
  readonly #claimNewSql: string
  readonly #claimSql: string
  readonly #settleOwnedSql: string
  readonly #settleSql: string
  readonly #settleOwnSql: string
  readonly #releaseSql: string
  readonly #renewSql: string
  /** Only a guess, for speed: whether the next claims are probably of new keys, or replays. */
  #areMostlyNew = true

  constructor(table: string) {
    this.#claimNewSql = claimNewSql(table)
    this.#claimSql = claimSql(table)
    this.#settleOwnedSql = settleOwnedSql(table)
    this.#settleSql = settleSql(table, `t.gone_at > ${NOW}`)
    this.#settleOwnSql = settleSql(table, 't.xmin = pg_current_xact_id()::xid')
    this.#releaseSql = releaseSql(table)
    this.#renewSql = renewSql(table)
  }

  async claim(session: Session, requests: readonly ClaimRequest[]): Promise<Reply<Claim>[]> {
    const sorted = requests.map((request, place) => ({ request, place }))
    if (sorted.length > 1) sorted.sort((a, b) => byId(a.request.id, b.request.id))
    const replies: Reply<Claim>[] = []
    const left = await this.#claimNew(session, sorted, replies)
    try {
      const claims = await untilAnswered(left, toFault, (asked) => this.#claimTogether(session, asked))
      for (const [index, { place }] of left.entries()) replies[place] = claims[index] as Reply<Claim>
    } catch (error) {
      if (replies.length === 0) throw error
      // What the others were told is true, and committed.
      for (const { place } of left) replies[place] = toFault(error)
    }
    this.#areMostlyNew = 2 * replies.filter(isAcquired).length > replies.length
    return replies
  }

  /** One statement. Answers those that are new, and gives back the others. */
  async #claimNew(session: Session, asked: readonly Asked[], replies: Reply<Claim>[]): Promise<readonly Asked[]> {
    if (!this.#areMostlyNew) return asked
    const values = claimNewValues(
      asked.map(({ request }) => request),
      SUSPECT_LOCK_MS_MAX,
    )
    try {
      const rows = await retried(() => session.run(this.#claimNewSql, values))
      const known = new Set(rows.map(([place]) => Number(place) - 1))
      for (const [index, { place }] of asked.entries()) if (!known.has(index)) replies[place] = FIRST_CLAIM
      return asked.filter((_, index) => known.has(index))
    } catch (error) {
      if (!isOfOneOperation(error) && sqlState(error) !== LOCK_TIMEOUT) throw error
      // Somebody holds a record, which may be one that all can see: that is for the statement that looks first.
      return asked
    }
  }

  /** When one of them is at fault, or is held by somebody, the halves go apart until it is found. */
  async #claimTogether(
    session: Session,
    claims: ReadonlyArray<{ readonly request: ClaimRequest }>,
    lockMsMax: number = CLAIM_LOCK_MS_MAX,
  ): Promise<Array<Reply<Claim> | undefined>> {
    const requests = claims.map(({ request }) => request)
    try {
      return await retried(() => this.claimOnce(session, requests, lockMsMax))
    } catch (error) {
      if (!isOfOneOperation(error) && sqlState(error) !== LOCK_TIMEOUT) throw error
      const [request] = requests
      if (request === undefined || requests.length > 1) {
        const middle = Math.ceil(claims.length / 2)
        const first = await this.#claimTogether(session, claims.slice(0, middle), SUSPECT_LOCK_MS_MAX)
        return [...first, ...(await this.#claimTogether(session, claims.slice(middle), SUSPECT_LOCK_MS_MAX))]
      }
      return [sqlState(error) === LOCK_TIMEOUT ? heldByTransaction(request) : toFault(error)]
    }
  }

  /** One statement. `undefined`: the claim has lost a race, and is to be asked again. */
  async claimOnce(
    session: Session,
    requests: readonly ClaimRequest[],
    lockMsMax: number,
    inTransaction = false,
  ): Promise<Array<Claim | undefined>> {
    const values = claimValues(requests, lockMsMax)
    const claims = new Array<Claim | undefined>(requests.length).fill(undefined)
    const rows = inTransaction
      ? await session.send(this.#claimSql, values, { extraMs: lockMsMax })
      : await session.run(this.#claimSql, values)
    for (const [place, attempt, ...columns] of rows) {
      const index = Number(place) - 1
      const [, token] = columns
      if (attempt !== null) claims[index] = { state: 'acquired', attempt: Number(attempt) }
      else if (columns[OUTCOME] === null && token === toText(requests[index]?.token ?? '')) {
        claims[index] = { state: 'acquired', attempt: Number(columns[ATTEMPT]) }
      } else claims[index] = stateOf(columns)
    }
    return claims
  }

  write(session: Session, ops: readonly WriteOp[]): Promise<Reply<boolean>[]> {
    return untilAnswered(ops, toFault, async (left) => {
      const replies: Array<Reply<boolean> | undefined> = left.map(() => undefined)
      const first = firstOfEachId(left).map((place) => ({ place, op: left[place] as WriteOp }))
      for (const verb of ['settle', 'renew', 'release'] as const) {
        const same = first.filter(({ op }) => op.verb === verb)
        for (const group of groupsBySize(same, STATEMENT_BYTES_MAX, bytesOf)) {
          const done = await this.#writeTogether(session, verb, group)
          for (const [index, { place }] of group.entries()) replies[place] = done[index]
        }
      }
      return replies
    })
  }

  async #writeTogether(
    session: Session,
    verb: WriteOp['verb'],
    entries: ReadonlyArray<{ readonly op: WriteOp }>,
  ): Promise<Array<Reply<boolean> | undefined>> {
    const ops = entries.map(({ op }) => op)
    try {
      return await retried(() => this.#writeOnce(session, verb, ops))
    } catch (error) {
      if (!isOfOneOperation(error)) throw error
      if (entries.length === 1) return [toFault(error)]
      const middle = Math.ceil(entries.length / 2)
      const first = await this.#writeTogether(session, verb, entries.slice(0, middle))
      return [...first, ...(await this.#writeTogether(session, verb, entries.slice(middle)))]
    }
  }

  async #writeOnce(
    session: Session,
    verb: WriteOp['verb'],
    ops: readonly WriteOp[],
  ): Promise<Array<boolean | undefined>> {
    if (verb === 'settle') return this.#settle(session, ops as readonly SettleOp[])
    const values = [arrayOf(ops.map(({ id }) => toText(id))), arrayOf(ops.map(({ token }) => toText(token)))]
    if (verb === 'renew') values.push(arrayOf(ops.map((op) => ('leaseMs' in op ? whole(op.leaseMs) : 0))))
    const rows = await session.run(verb === 'renew' ? this.#renewSql : this.#releaseSql, values)
    const done = new Set(rows.map(([place]) => Number(place) - 1))
    return ops.map((_, index) => done.has(index))
  }

  /** One statement for those that hold their records, and one more for the others. */
  async #settle(session: Session, ops: readonly SettleOp[]): Promise<Array<boolean | undefined>> {
    const settled = new Array<boolean | undefined>(ops.length).fill(true)
    const rows = await retried(() => session.run(this.#settleOwnedSql, settleValues(ops)))
    const others = rows.filter(([place]) => place !== null).map(([place]) => Number(place) - 1)
    if (others.length === 0) return settled
    const known = await retried(() =>
      this.settleOnce(
        session,
        others.map((index) => ops[index] as SettleOp),
      ),
    )
    for (const [at, index] of others.entries()) settled[index] = known[at]
    return settled
  }

  /** One statement. `undefined`: the settle met another change of the same record, and is to be asked again. */
  async settleOnce(
    session: Session,
    ops: readonly SettleOp[],
    scope: 'any' | 'own-transaction' = 'any',
  ): Promise<Array<boolean | undefined>> {
    const values = settleValues(ops)
    const rows =
      scope === 'any' ? await session.run(this.#settleSql, values) : await session.send(this.#settleOwnSql, values)
    const settled = new Array<boolean | undefined>(ops.length).fill(false)
    // What this statement changed comes first; then the records as they were before it.
    for (const [place, isDone, wasSettled] of rows) {
      const index = Number(place) - 1
      if (isDone === 't') settled[index] = true
      else if (settled[index] === false) settled[index] = wasSettled === 't' ? true : undefined
    }
    return settled
  }
}

interface Asked {
  readonly request: ClaimRequest
  readonly place: number
}

const FIRST_CLAIM: Claim = { state: 'acquired', attempt: 1 }

function isAcquired(reply: Reply<Claim>): boolean {
  return 'state' in reply && reply.state === 'acquired'
}

function byId(a: string, b: string): number {
  if (a === b) return 0
  return a < b ? -1 : 1
}

function bytesOf({ op }: { readonly op: WriteOp }): number {
  return op.verb === 'settle' ? (op.settlement.answer.body?.length ?? 0) : 0
}

function toFault(error: unknown): OncekeyError {
  return toOncekeyError(error, true)
}

export async function retried<T>(attempt: () => Promise<T>): Promise<T> {
  for (let retries = 0; ; retries++) {
    try {
      return await attempt()
    } catch (error) {
      if (!isRecoverable(error) || retries === RETRIES_MAX) throw error
    }
  }
}

/** Places in a row of `COLUMNS`. */
const ATTEMPT = 3
const OUTCOME = 8
const NO_LABELS: Labels = Object.freeze({})

export function recordOf(row: Row): StoredRecord {
  const [id, , , attempt, , , createdAt, goneAt, , , labels] = row
  return {
    ...stateOf(row),
    id: fromText(id ?? ''),
    attempt: Number(attempt),
    createdAt: Number(createdAt),
    goneAt: Number(goneAt),
    labels: labels ? (JSON.parse(labels) as Labels) : NO_LABELS,
  }
}

/** The state at the moment at which the statement began. */
export function stateOf(row: Row): RecordState {
  const [, , print, , state, leftMs, , , outcome, status, , headers, body] = row
  const fingerprint = fromText(print ?? '')
  if (state === 'running') return { state, fingerprint, leaseLeftMs: Number(leftMs) }
  if (state === 'unknown' || state === 'expired') return { state, fingerprint, goneInMs: Number(leftMs) }
  const answer = {
    status: Number(status),
    headers: JSON.parse(headers ?? '[]') as [string, string][],
    body: body === null || body === undefined ? null : Buffer.from(body, 'hex'),
  }
  return { state: 'settled', fingerprint, outcome: outcome as Outcome, answer, expiresInMs: Number(leftMs) }
}
