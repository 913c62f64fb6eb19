import { randomBytes } from 'node:crypto'
import { systemClock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import type { Reply } from '../../group-commit.ts'
import type { SettleOp, WriteOp } from '../../sql/operations.ts'
import { firstOfEachId, groupsBySize, heldByTransaction, untilAnswered } from '../../sql/operations.ts'
import type { Claim, ClaimRequest } from '../../store.ts'
import { blob, fromText, hex, hexOf, json, list, micros } from './encoding.ts'
import { errorNumber, isOfOneOperation, isRecoverable, LOCK_TIMEOUT, toOncekeyError } from './faults.ts'
import { claimed, idOf } from './rows.ts'
import type { Row, Session } from './sessions.ts'
import type { SettleValues } from './statements.ts'
import {
  claimSql,
  giveUpSql,
  insertSql,
  NOW,
  recordsSql,
  releaseSql,
  renewSql,
  settledSql,
  settleManySql,
  settleSql,
} from './statements.ts'

/** After a deadlock or the like the statement has changed nothing, and is sent again. */
const RETRIES_MAX = 10
/** A batch that met so many goes on one by one: a statement of one row has nothing to cross. */
const BATCH_RETRIES_MAX = 3
const RETRY_MS_MAX = 50
/** A statement carries no further answer beyond this; a larger one goes in a statement of its own. */
const STATEMENT_BYTES_MAX = 1_024 * 1_024

/** The verbs as statements. */
export class Records {
  readonly #table: string
  /** The server's own bound for a statement, as it was when the table was looked at. */
  packetBytesMax: number = Number.POSITIVE_INFINITY

  constructor(table: string) {
    this.#table = table
  }

  claim(session: Session, requests: readonly ClaimRequest[]): Promise<Reply<Claim>[]> {
    return untilAnswered(requests, toFault, async (left) => {
      const claims: Array<Reply<Claim> | undefined> = []
      for (const group of groupsBySize(left, this.#bytesMax, claimBytes)) {
        claims.push(...(await this.#claimTogether(session, group)))
      }
      return claims
    })
  }

  async #claimTogether(session: Session, requests: readonly ClaimRequest[]): Promise<Array<Reply<Claim> | undefined>> {
    try {
      return await retried(() => this.claimOnce(session, requests, 'briefly'), retriesMax(requests))
    } catch (error) {
      const isHeld = errorNumber(error) === LOCK_TIMEOUT
      if (!isHeld && !isRecoverable(error) && !isOfOneOperation(error)) throw error
      const [request] = requests
      if (requests.length === 1 && request !== undefined) {
        return [isHeld ? heldByTransaction(request) : toFault(error)]
      }
      const alone: Array<Reply<Claim> | undefined> = []
      for (const each of requests) alone.push(...(await this.#claimTogether(session, [each])))
      return alone
    }
  }

  /**
   * One statement when all of them are new; a second one reads those that are not. What it reads can be newer than what
   * the first one decided on, so a record that this claim could have now is `undefined`: the claim is to be asked again.
   */
  async claimOnce(
    session: Session,
    requests: readonly ClaimRequest[],
    patience: 'briefly' | 'as-set',
  ): Promise<Array<Claim | undefined>> {
    const sent = firstOfEachId(requests).map((place) => requests[place] as ClaimRequest)
    const turns = new Map(sent.map((request) => [request, randomBytes(TURN_BYTES)]))
    const values = [...turns].map(([request, turn]) => ({
      id: hex(request.id),
      token: hex(request.token),
      fingerprint: hex(request.fingerprint),
      turn: hexOf(turn),
      leaseMicros: micros(request.leaseMs),
      unknownMicros: micros(request.unknownTtlMs),
      labels: json(request.labels),
    }))
    values.sort((a, b) => (a.id < b.id ? -1 : 1))
    const mayTakeOver = list([...turns.keys()].filter(({ takeover }) => takeover).map(({ id }) => id))
    const sql = (patience === 'briefly' ? claimSql : insertSql)(this.#table, values, mayTakeOver)
    const { mark } = await session.write(sql)
    const isAllNew = mark === 0
    const seen = requests.filter((request) => !isAllNew || !turns.has(request)).map(({ id }) => id)
    const rows = await this.#rowsOf(session, seen)
    return requests.map((request) => {
      const turn = turns.get(request)
      if (isAllNew && turn !== undefined) return { state: 'acquired', attempt: 1 }
      return claimed(rows.get(request.id), request, turn)
    })
  }

  /** Each by the id that the record itself carries. */
  async #rowsOf(session: Session, ids: readonly string[]): Promise<ReadonlyMap<string, Row>> {
    if (ids.length === 0) return new Map()
    const rows = await session.rows(recordsSql(this.#table, list(new Set(ids))))
    return new Map(rows.map((row) => [idOf(row), row]))
  }

  write(session: Session, ops: readonly WriteOp[]): Promise<Reply<boolean>[]> {
    return untilAnswered(ops, toFault, async (left) => {
      const replies: Array<Reply<boolean> | undefined> = left.map(() => undefined)
      const settles: Array<{ op: SettleOp; place: number }> = []
      for (const place of firstOfEachId(left)) {
        const op = left[place] as WriteOp
        if (op.verb === 'settle') settles.push({ op, place })
        else replies[place] = await this.#writeOne(session, op)
      }
      for (const group of groupsBySize(settles, this.#bytesMax, ({ op }) => settleBytes(op))) {
        const done = await this.#settleTogether(
          session,
          group.map(({ op }) => op),
        )
        for (const [index, { place }] of group.entries()) replies[place] = done[index]
      }
      return replies
    })
  }

  async #writeOne(session: Session, op: Exclude<WriteOp, SettleOp>): Promise<boolean> {
    const [id, token] = [hex(op.id), hex(op.token)]
    if (op.verb === 'renew') {
      const { mark } = await retried(() => session.write(renewSql(this.#table, id, token, micros(op.leaseMs))))
      return mark > 0
    }
    const { affectedRows } = await retried(() => session.write(releaseSql(this.#table, id, token)))
    if (affectedRows > 0) return true
    return (await retried(() => session.write(giveUpSql(this.#table, id, token)))).mark > 0
  }

  async #settleTogether(session: Session, ops: readonly SettleOp[]): Promise<Array<Reply<boolean> | undefined>> {
    try {
      return await retried(() => this.#settleOnce(session, ops), retriesMax(ops))
    } catch (error) {
      if (!isOfOneOperation(error) && !isRecoverable(error) && !isTooLarge(error)) throw error
      if (ops.length === 1) return [toFault(error)]
      const alone: Array<Reply<boolean> | undefined> = []
      for (const op of ops) alone.push(...(await this.#settleTogether(session, [op])))
      return alone
    }
  }

  /** One statement, and a second one to learn who was refused. `undefined`: to be asked again. */
  async #settleOnce(session: Session, ops: readonly SettleOp[]): Promise<Array<boolean | undefined>> {
    const turn = randomBytes(TURN_BYTES)
    const values = ops.map((op) => settleValues(op, turn))
    const [alone] = values
    const sql =
      values.length === 1 && alone !== undefined
        ? settleSql(this.#table, alone, `gone_at > ${NOW}`)
        : settleManySql(
            this.#table,
            values.sort((a, b) => (a.id < b.id ? -1 : 1)),
          )
    await this.#assertFits(session, sql, ops)
    const { affectedRows } = await session.write(sql)
    if (affectedRows === ops.length) return ops.map(() => true)
    const rows = await session.rows(settledSql(this.#table, list(ops.map(({ id }) => id))))
    const found = new Map(rows.map(([id, ...columns]) => [fromText(id ?? null), columns]))
    return ops.map((op) => {
      const [token, itsTurn, isSettled, isLive] = found.get(op.id) ?? []
      if (itsTurn?.equals(turn)) return true
      if (String(isLive) !== '1' || fromText(token ?? null) !== op.token) return false
      return String(isSettled) === '1' ? true : undefined
    })
  }

  /** In the transaction that made the claim: only there, nobody else can have touched it. */
  async settleOwn(session: Session, op: SettleOp): Promise<boolean> {
    const sql = settleSql(this.#table, settleValues(op, randomBytes(TURN_BYTES)), 'TRUE')
    await this.#assertFits(session, sql, [op])
    return (await session.write(sql)).affectedRows === 1
  }

  async #assertFits(session: Session, sql: string, ops: readonly SettleOp[]): Promise<void> {
    // All of it is ASCII; one byte in front says that it is a query.
    const bytes = sql.length + 1
    if (bytes <= this.packetBytesMax) return
    // It may have been raised since, for connections that were opened after that.
    const [row] = await session.rows('SELECT @@SESSION.max_allowed_packet')
    this.packetBytesMax = Number(row?.[0])
    if (bytes <= this.packetBytesMax) return
    const [body] = ops.map(({ settlement }) => settlement.answer.body?.length ?? 0).sort((a, b) => b - a)
    throw new OncekeyError(
      'body-too-large',
      `The answer has a body of ${body} bytes, which takes a statement of ${bytes} bytes; max_allowed_packet of MySQL ` +
        `is ${this.packetBytesMax}. Nothing was recorded. Raise max_allowed_packet, or keep large results elsewhere and ` +
        'answer with where they are.',
    )
  }

  get #bytesMax(): number {
    return Math.min(STATEMENT_BYTES_MAX, this.packetBytesMax / 2)
  }
}

/** Names one claim or one settle among all: which of them a record is from is seen by it. */
const TURN_BYTES = 8
/** Roughly what an operation takes in a statement besides its own values. */
const FRAME_BYTES = 512

/** Hexadecimal is twice as long as what it says. The id comes a second time when the record is read or taken over. */
function claimBytes({ id, token, fingerprint, labels }: ClaimRequest): number {
  return 4 * id.length + 2 * (token.length + fingerprint.length) + 2 * jsonChars(labels) + FRAME_BYTES
}

function settleBytes({ id, token, settlement: { answer } }: SettleOp): number {
  return 2 * (id.length + token.length) + 2 * jsonChars(answer.headers) + 1.4 * (answer.body?.length ?? 0) + FRAME_BYTES
}

function jsonChars(value: unknown): number {
  return value === undefined ? 0 : JSON.stringify(value).length
}

function settleValues({ id, token, settlement }: SettleOp, turn: Buffer): SettleValues {
  const { outcome, ttlMs, expiredTtlMs, answer } = settlement
  return {
    id: hex(id),
    token: hex(token),
    turn: hexOf(turn),
    outcome: outcome === 'committed' ? "'committed'" : "'rejected'",
    ttlMicros: micros(ttlMs),
    expiredMicros: micros(expiredTtlMs),
    status: String(answer.status),
    headers: json(answer.headers),
    body: blob(answer.body),
  }
}

function isTooLarge(error: unknown): boolean {
  return error instanceof OncekeyError && error.code === 'body-too-large'
}

/** Waits a little more each time, and at random, so that those who crossed do not cross again. */
export async function retried<T>(attempt: () => Promise<T>, retriesMax: number = RETRIES_MAX): Promise<T> {
  for (let retries = 0; ; retries++) {
    try {
      return await attempt()
    } catch (error) {
      if (!isRecoverable(error) || retries === retriesMax) throw error
    }
    const delayMs = Math.random() * Math.min(2 ** retries, RETRY_MS_MAX)
    await new Promise<void>((resolve) => systemClock.schedule(delayMs, resolve))
  }
}

function retriesMax(batch: readonly unknown[]): number {
  return batch.length > 1 ? BATCH_RETRIES_MAX : RETRIES_MAX
}

function toFault(error: unknown): OncekeyError {
  return toOncekeyError(error, true)
}
