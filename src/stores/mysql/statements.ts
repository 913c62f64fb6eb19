/** The statements of the hot path, and the columns in which every record is read. */

/**
 * The server's clock, in whole milliseconds and in UTC whatever the session's zone is. It stands still within a
 * statement, so that one decision is made at one moment; and it moves on within a transaction.
 */
export const NOW = 'UTC_TIMESTAMP(3)'

const fromNow = (micros: string): string => `${NOW} + INTERVAL ${micros} MICROSECOND`
const msOf = (time: string): string => `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ${time}) DIV 1000`

/** As operators call it. */
export const STATE: string = `CASE
    WHEN outcome IS NULL THEN IF(lease_until > ${NOW}, 'running', 'unknown')
    WHEN expires_at > ${NOW} AND headers IS NOT NULL THEN 'settled' ELSE 'expired' END`

/** Until that state ends by itself. */
const LEFT_MS = `TIMESTAMPDIFF(MICROSECOND, ${NOW}, CASE
    WHEN outcome IS NULL THEN IF(lease_until > ${NOW}, lease_until, gone_at)
    WHEN expires_at > ${NOW} AND headers IS NOT NULL THEN expires_at ELSE gone_at END) DIV 1000`

/**
 * In the order in which `recordOf` takes them. An answer that has expired is not read. Texts come as their bytes: else
 * the server would turn them into the connection's character set, which need not have all of their characters.
 */
export const COLUMNS: string = `
  id, token, fingerprint, attempt,
  ${STATE},
  ${LEFT_MS},
  ${msOf('created_at')}, ${msOf('gone_at')}, outcome, status, CAST(labels AS BINARY),
  IF(expires_at > ${NOW}, CAST(headers AS BINARY), NULL), IF(expires_at > ${NOW}, body, NULL), turn`

export interface ClaimValues {
  readonly id: string
  readonly token: string
  readonly fingerprint: string
  readonly turn: string
  readonly leaseMicros: string
  readonly unknownMicros: string
  readonly labels: string
}

/**
 * One statement, one decision for each claim, made on the newest version of the record and under its lock. A record that
 * is gone, or is to be taken over, gets the `turn` of this very claim; every other column follows from that alone, for
 * MySQL lets each assignment see what those before it have done. `gone_at` comes last: `attempt` and others look at it.
 *
 * The mark says that a record was met: without it, all of them are new. Rows come in the order of their ids, so that two
 * sessions seldom wait for each other. `mayTakeOver`: the ids whose claim asks for it.
 *
 * MariaDB bounds the wait for a transaction that has the same record open; to MySQL that is a comment.
 */
export const claimSql = (table: string, claims: readonly ClaimValues[], mayTakeOver: string): string => `
/*M! SET STATEMENT innodb_lock_wait_timeout = ${CLAIM_LOCK_SECONDS_MAX} FOR */ ${insertSql(table, claims, mayTakeOver)}`

const CLAIM_LOCK_SECONDS_MAX = 1

/** The same, waiting for as long as the session is set to. */
export const insertSql = (table: string, claims: readonly ClaimValues[], mayTakeOver: string): string => `
INSERT INTO ${table}
  (id, token, fingerprint, turn, attempt, created_at, lease_until, gone_at, sweep_at, labels)
VALUES ${claims.map(claimRow).join(',\n  ')}
ON DUPLICATE KEY UPDATE
  turn = IF(gone_at <= ${NOW} OR (${mayTakeOver === '' ? 'FALSE' : `id IN (${mayTakeOver})`} AND outcome IS NULL
    AND lease_until <= ${NOW} AND fingerprint = VALUES(fingerprint) AND token <> VALUES(token)), VALUES(turn), turn),
  attempt = IF(turn = VALUES(turn), IF(gone_at <= ${NOW}, 1, attempt + 1), attempt) * LAST_INSERT_ID(1),
  created_at = IF(turn = VALUES(turn) AND gone_at <= ${NOW}, VALUES(created_at), created_at),
  labels = IF(turn = VALUES(turn) AND gone_at <= ${NOW}, VALUES(labels), labels),
  token = IF(turn = VALUES(turn), VALUES(token), token),
  fingerprint = IF(turn = VALUES(turn), VALUES(fingerprint), fingerprint),
  outcome = IF(turn = VALUES(turn), NULL, outcome),
  expires_at = IF(turn = VALUES(turn), NULL, expires_at),
  status = IF(turn = VALUES(turn), NULL, status),
  headers = IF(turn = VALUES(turn), NULL, headers),
  body = IF(turn = VALUES(turn), NULL, body),
  lease_until = IF(turn = VALUES(turn), VALUES(lease_until), lease_until),
  sweep_at = IF(turn = VALUES(turn), VALUES(sweep_at), sweep_at),
  gone_at = IF(turn = VALUES(turn), VALUES(gone_at), gone_at)`

const claimRow = (claim: ClaimValues): string => {
  const goneAt = fromNow(`${claim.leaseMicros} + ${claim.unknownMicros}`)
  return `(${claim.id}, ${claim.token}, ${claim.fingerprint}, ${claim.turn}, 1, ${NOW}, ${fromNow(claim.leaseMicros)},
    ${goneAt}, ${goneAt}, ${claim.labels})`
}

export const recordsSql = (table: string, ids: string): string =>
  `SELECT ${COLUMNS} FROM ${table} WHERE id IN (${ids}) AND gone_at > ${NOW}`

export interface SettleValues {
  readonly id: string
  readonly token: string
  readonly turn: string
  readonly outcome: string
  readonly ttlMicros: string
  readonly expiredMicros: string
  readonly status: string
  readonly headers: string
  readonly body: string
}

const settleSet = (to: SettleValues): string => `
  turn = ${to.turn}, outcome = ${to.outcome}, expires_at = ${fromNow(to.ttlMicros)},
  sweep_at = ${fromNow(to.ttlMicros)}, gone_at = ${fromNow(`${to.ttlMicros} + ${to.expiredMicros}`)},
  status = ${to.status}, headers = ${to.headers}, body = ${to.body}`

/** `whose` says when the record still is the owner's. */
export const settleSql = (table: string, to: SettleValues, whose: string): string => `
UPDATE ${table} SET ${settleSet(to)} WHERE id = ${to.id} AND token = ${to.token} AND outcome IS NULL AND ${whose}`

/**
 * The answers come as a table of their own. They are read first, in the order of their ids, and each record by its key:
 * a scan would also lock, and wait for, records of others.
 */
export const settleManySql = (table: string, settles: readonly SettleValues[]): string => `
UPDATE (${settles.map(settleRow).join('\n  UNION ALL ')}) AS r
STRAIGHT_JOIN ${table} AS t FORCE INDEX (PRIMARY) ON t.id = r.r_id
SET ${settleSet(FROM_ROW)}
WHERE t.token = r.r_token AND t.outcome IS NULL AND t.gone_at > ${NOW}`

const FROM_ROW: SettleValues = {
  id: 'r_id',
  token: 'r_token',
  turn: 'r_turn',
  outcome: 'r_outcome',
  ttlMicros: 'r_ttl',
  expiredMicros: 'r_expired',
  status: 'r_status',
  headers: 'r_headers',
  body: 'r_body',
}

const settleRow = (to: SettleValues): string => `SELECT ${to.id} AS r_id, ${to.token} AS r_token, ${to.turn} AS r_turn,
  ${to.outcome} AS r_outcome, ${to.ttlMicros} AS r_ttl, ${to.expiredMicros} AS r_expired, ${to.status} AS r_status,
  ${to.headers} AS r_headers, ${to.body} AS r_body`

/** Who has what now, for settles of which not all found their record. */
export const settledSql = (table: string, ids: string): string =>
  `SELECT id, token, turn, outcome IS NOT NULL, gone_at > ${NOW} FROM ${table} WHERE id IN (${ids})`

const own = (id: string, token: string): string =>
  `id = ${id} AND token = ${token} AND outcome IS NULL AND gone_at > ${NOW}`

/** The mark says that the record was there: with some flags a connection does not count a row that stays the same. */
export const renewSql = (table: string, id: string, token: string, leaseMicros: string): string => `
UPDATE ${table} SET attempt = attempt * LAST_INSERT_ID(1),
  gone_at = gone_at + INTERVAL TIMESTAMPDIFF(MICROSECOND, lease_until, ${fromNow(leaseMicros)}) MICROSECOND,
  sweep_at = gone_at, lease_until = ${fromNow(leaseMicros)}
WHERE ${own(id, token)}`

export const releaseSql = (table: string, id: string, token: string): string =>
  `DELETE FROM ${table} WHERE ${own(id, token)} AND attempt = 1`

/** A taker only gives its lease up: the owner of before may have acted, so the record must not be forgotten. */
export const giveUpSql = (table: string, id: string, token: string): string =>
  `${renewSql(table, id, token, '0')} AND attempt > 1`
