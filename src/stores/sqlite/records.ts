import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { idOfKey, keyOfId, textKeyOf, toText } from './encoding.ts'
import type { ClaimFields, Op, Reply, Row, SettleFields } from './wire.ts'

/** In the order of `Row`. A body that has expired is not read. */
const selectAt = (now: string): string => `
  SELECT ${now}, id, token, fingerprint, attempt, created_at, lease_until, gone_at, outcome, expires_at, status, labels,
    headers, CASE WHEN expires_at > ${now} THEN body END
  FROM oncekey_record`

const INSERT = `
  INSERT INTO oncekey_record (id, token, fingerprint, attempt, created_at, lease_until, gone_at, labels)
  VALUES (?, ?, ?, 1, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`

/** A record that is gone counts as absent, whether or not the sweeper has been there. */
const REPLACE_GONE = `
  UPDATE oncekey_record SET token = ?, fingerprint = ?, attempt = 1, created_at = ?, lease_until = ?, gone_at = ?, labels = ?,
    outcome = NULL, expires_at = NULL, status = NULL, headers = NULL, body = NULL
  WHERE id = ? AND gone_at <= ?`

const TAKE_OVER = `
  UPDATE oncekey_record SET token = ?, attempt = attempt + 1, lease_until = ?, gone_at = ?
  WHERE id = ? AND outcome IS NULL AND fingerprint = ? AND lease_until <= ? AND gone_at > ?`

/** An empty body is written out, for some releases of Node bind empty bytes as NULL: a body that was not kept. */
const SETTLE = `
  UPDATE oncekey_record SET outcome = ?, expires_at = ?, gone_at = ?, status = ?, headers = ?, body = iif(? = 0, x'', ?)
  WHERE id = ? AND token = ? AND outcome IS NULL AND gone_at > ?`
const SETTLE_ROW = `${SETTLE} AND seq = ?`

const IS_SETTLED_BY = 'SELECT 1 FROM oncekey_record WHERE id = ? AND token = ? AND outcome IS NOT NULL AND gone_at > ?'

/** After a takeover an earlier owner may have acted: that record is given up (`RENEW` with no lease), not forgotten. */
const RELEASE =
  'DELETE FROM oncekey_record WHERE id = ? AND token = ? AND outcome IS NULL AND gone_at > ? AND attempt = 1'

const RENEW = `
  UPDATE oncekey_record SET gone_at = gone_at - lease_until + ?, lease_until = ?
  WHERE id = ? AND token = ? AND outcome IS NULL AND gone_at > ?`

const READ = `${selectAt('?')} WHERE id = ? AND gone_at > ?`

const LEASE_UNTIL =
  'SELECT lease_until FROM oncekey_record WHERE id = ? AND outcome IS NULL AND lease_until > ? AND gone_at > ?'

const FORGET = 'DELETE FROM oncekey_record WHERE id = ? AND gone_at > ?'

const REDACT = `
  UPDATE oncekey_record SET headers = iif(headers IS NULL, NULL, '[]'), body = NULL, labels = NULL
  WHERE id = ? AND outcome IS NOT NULL AND gone_at > ?`

const SWEEP_GONE = `
  DELETE FROM oncekey_record WHERE seq IN (SELECT seq FROM oncekey_record WHERE gone_at <= ? ORDER BY gone_at LIMIT ?)`

const SWEEP_EXPIRED_ANSWERS = `
  UPDATE oncekey_record SET headers = NULL, body = NULL WHERE seq IN (
    SELECT seq FROM oncekey_record WHERE headers IS NOT NULL AND expires_at < gone_at AND expires_at <= ?
    ORDER BY expires_at LIMIT ?)`

/** One page of the ids of one type: SQLite sorts every TEXT before every BLOB. */
const listOf = (idIsOfType: string): string => `${selectAt(':now')}
  WHERE id > :afterKey AND ${idIsOfType} AND gone_at > :now AND :state IN ('',
    CASE WHEN outcome IS NULL THEN iif(lease_until > :now, 'running', 'unknown')
    ELSE iif(expires_at > :now, 'settled', 'expired') END)
  ORDER BY id LIMIT :limit`
const LIST_HASHES = listOf("id >= x'' AND lower(hex(id)) > :after")
const LIST_OTHERS = listOf("id < x'' AND :after IS NOT NULL")

const BEFORE_ALL_HASHES = new Uint8Array(1)
const RECENT_CLAIMS_MAX = 4_096

/** What `tryRead` says when the operation has to write. */
export const MUST_WRITE: unique symbol = Symbol('must write')

/** The verbs as statements. The caller opens the transaction, so that a whole batch commits with one sync. */
export class Records {
  readonly #statements: Statements
  readonly #recent = new RecentClaims()

  constructor(db: DatabaseSync) {
    this.#statements = prepare(db)
  }

  /** Answers an operation that changes nothing, without the write lock. */
  tryRead(op: Op, now: number): Reply | typeof MUST_WRITE {
    switch (op[0]) {
      case 'claim': {
        const row = this.#read(op[2], now)
        return row === null || isForTakeover(row, op[3], now) ? MUST_WRITE : claimed(row, op[3])
      }
      case 'read':
        return this.#read(op[2], now)
      case 'leaseLeft': {
        const row = this.#statements.leaseUntil.get(keyOfId(op[2]), now, now)
        return row === undefined ? 0 : Number(row.lease_until) - now
      }
      case 'list':
        return this.#list(op[2], op[3], op[4], now)
      default:
        return MUST_WRITE
    }
  }

  /** Carries out any operation, inside a write transaction. One statement at most changes a given record. */
  write(op: Op, now: number, body: Uint8Array | null): Reply {
    const { release, renew, forget, redact, sweepAnswers, sweepGone } = this.#statements
    switch (op[0]) {
      case 'claim':
        return this.#claim(op[2], op[3], now)
      case 'settle':
        return this.#settle(op[2], op[3], op[4], now, body)
      case 'release': {
        const key = keyOfId(op[2])
        const token = toText(op[3])
        return Number(release.run(key, token, now).changes || renew.run(now, now, key, token, now).changes)
      }
      case 'renew':
        return Number(renew.run(now + op[4], now + op[4], keyOfId(op[2]), toText(op[3]), now).changes)
      case 'forget':
        return Number(forget.run(keyOfId(op[2]), now).changes)
      case 'redact':
        return Number(redact.run(keyOfId(op[2]), now).changes)
      case 'sweep':
        sweepAnswers.run(now, op[2])
        return Number(sweepGone.run(now, op[2]).changes)
      default: {
        const reply = this.tryRead(op, now)
        return reply === MUST_WRITE ? null : reply
      }
    }
  }

  /** Inserting first makes a new key cost one statement; only a key that is known is looked at. */
  #claim(id: string, fields: ClaimFields, now: number): Reply {
    const { insert, replaceGone, takeOver } = this.#statements
    const [token, fingerprint, leaseMs, unknownTtlMs, , labels] = fields
    const [key, tokenText, fingerprintText] = [keyOfId(id), toText(token), toText(fingerprint)]
    const leaseUntil = now + leaseMs
    const goneAt = leaseUntil + unknownTtlMs
    const inserted = insert.run(key, tokenText, fingerprintText, now, leaseUntil, goneAt, labels)
    if (inserted.changes !== 0) {
      this.#recent.put(id, { key, seq: inserted.lastInsertRowid })
      return 1
    }
    const row = this.#read(id, now)
    if (row === null) {
      replaceGone.run(tokenText, fingerprintText, now, leaseUntil, goneAt, labels, key, now)
      return 1
    }
    if (!isForTakeover(row, fields, now)) return claimed(row, fields)
    takeOver.run(tokenText, leaseUntil, goneAt, key, fingerprintText, now, now)
    return row[4] + 1
  }

  #settle(id: string, token: string, fields: SettleFields, now: number, body: Uint8Array | null): Reply {
    const { settle, settleRow, isSettledBy } = this.#statements
    const [outcome, ttlMs, expiredTtlMs, status, headers, bodyLength] = fields
    const claimed = this.#recent.take(id)
    const [key, tokenText] = [claimed?.key ?? keyOfId(id), toText(token)]
    const expiresAt = now + ttlMs
    const answer = [outcome, expiresAt, expiresAt + expiredTtlMs, status, headers, bodyLength, body] as const
    if (claimed !== undefined && settleRow.run(...answer, key, tokenText, now, claimed.seq).changes !== 0) return 1
    if (settle.run(...answer, key, tokenText, now).changes !== 0) return 1
    // The reply to the first settle may have been lost: its owner asks again, and what was stored then stays.
    return isSettledBy.get(key, tokenText, now) === undefined ? 0 : 1
  }

  #read(id: string, now: number): Row | null {
    const row = this.#statements.read.get(now, now, keyOfId(id), now)
    return row === undefined ? null : rowOf(row)
  }

  #list(after: string | null, limit: number, state: string | null, now: number): Reply {
    const key = keyOfId(after ?? '')
    const page = (statement: StatementSync, afterKey: Uint8Array | string): Row[] =>
      statement.all({ now, limit, after: after ?? '', afterKey, state: state ?? '' }).map(rowOf)
    const hashes = page(this.#statements.listHashes, key instanceof Uint8Array ? key : BEFORE_ALL_HASHES)
    const others = page(this.#statements.listOthers, after === null ? '' : textKeyOf(after))
    const rows = [...hashes, ...others].sort((a, b) => (idOfKey(a[1]) < idOfKey(b[1]) ? -1 : 1))
    return { rows: rows.slice(0, limit) }
  }
}

interface RecentClaim {
  readonly key: Uint8Array | string
  readonly seq: number | bigint
}

/**
 * Where the last claims of this process lie in the table, so that their settles need no search. Only a hint: the
 * settle's predicate still compares id and token, and searches by the id when the hint is wrong.
 */
class RecentClaims {
  readonly #claims = new Map<string, RecentClaim>()

  put(id: string, claim: RecentClaim): void {
    this.#claims.set(id, claim)
    if (this.#claims.size <= RECENT_CLAIMS_MAX) return
    for (const oldest of this.#claims.keys()) {
      this.#claims.delete(oldest)
      return
    }
  }

  take(id: string): RecentClaim | undefined {
    const claim = this.#claims.get(id)
    if (claim !== undefined) this.#claims.delete(id)
    return claim
  }
}

function isForTakeover(row: Row, claim: ClaimFields, now: number): boolean {
  const [token, fingerprint, , , takeover] = claim
  if (!takeover) return false
  const [, , itsToken, itsFingerprint, , , leaseUntil, , outcome] = row
  return outcome === null && leaseUntil <= now && itsFingerprint === toText(fingerprint) && itsToken !== toText(token)
}

/** The claim's own token says "mine" when the reply was lost and the claim is asked again. */
function claimed(row: Row, [token]: ClaimFields): Reply {
  const [, , itsToken, , attempt, , , , outcome] = row
  return outcome === null && itsToken === toText(token) ? attempt : row
}

/** Before Node 22.16 there are no rows as arrays; an object's values are in the order of the columns too. */
function rowOf(columns: object): Row {
  return (Array.isArray(columns) ? columns : Object.values(columns)) as unknown as Row
}

interface Statements {
  readonly insert: StatementSync
  readonly replaceGone: StatementSync
  readonly takeOver: StatementSync
  readonly settle: StatementSync
  readonly settleRow: StatementSync
  readonly isSettledBy: StatementSync
  readonly release: StatementSync
  readonly renew: StatementSync
  readonly read: StatementSync
  readonly leaseUntil: StatementSync
  readonly forget: StatementSync
  readonly redact: StatementSync
  readonly listHashes: StatementSync
  readonly listOthers: StatementSync
  readonly sweepGone: StatementSync
  readonly sweepAnswers: StatementSync
}

function prepare(db: DatabaseSync): Statements {
  const rows = (sql: string): StatementSync => {
    const statement = db.prepare(sql)
    statement.setReturnArrays?.(true)
    return statement
  }
  return {
    insert: db.prepare(INSERT),
    replaceGone: db.prepare(REPLACE_GONE),
    takeOver: db.prepare(TAKE_OVER),
    settle: db.prepare(SETTLE),
    settleRow: db.prepare(SETTLE_ROW),
    isSettledBy: db.prepare(IS_SETTLED_BY),
    release: db.prepare(RELEASE),
    renew: db.prepare(RENEW),
    read: rows(READ),
    leaseUntil: db.prepare(LEASE_UNTIL),
    forget: db.prepare(FORGET),
    redact: db.prepare(REDACT),
    listHashes: rows(LIST_HASHES),
    listOthers: rows(LIST_OTHERS),
    sweepGone: db.prepare(SWEEP_GONE),
    sweepAnswers: db.prepare(SWEEP_EXPIRED_ANSWERS),
  }
}
