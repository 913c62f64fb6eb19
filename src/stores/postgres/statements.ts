/** The statements of the hot path, and the columns in which every record is read. */

/**
 * The server's clock, in whole milliseconds. It stands still within a statement, so that one decision is made at one
 * moment; and unlike now() it moves on within a transaction, so that an answer's life begins when the work is done.
 * A cast, which rounds, for it is written several times for each row, and `date_trunc` would look up the time zone
 * every time.
 */
export const NOW = 'statement_timestamp()::timestamptz(3)'

const msOf = (time: string): string => `(extract(epoch FROM ${time}) * 1000)::bigint`
const fromNow = (ms: string): string => `${NOW} + (${ms}) * interval '1 millisecond'`

/** `gone_at` keeps its distance when the lease ends at another time. */
const moved = (leaseUntil: string): string => `t.gone_at + (${leaseUntil} - t.lease_until)`

/** As operators call it, of the row `t`. */
export const STATE: string = `CASE
    WHEN t.outcome IS NULL THEN CASE WHEN t.lease_until > ${NOW} THEN 'running' ELSE 'unknown' END
    WHEN t.expires_at > ${NOW} AND t.headers IS NOT NULL THEN 'settled' ELSE 'expired' END`

/** When it is in another state, unless somebody writes before. */
const STATE_UNTIL = `(CASE WHEN t.outcome IS NULL AND t.lease_until > ${NOW} THEN t.lease_until
    WHEN t.expires_at > ${NOW} AND t.headers IS NOT NULL THEN t.expires_at ELSE t.gone_at END)`

/** In the order in which `recordOf` takes them. An answer that has expired is not read. */
export const COLUMNS: string = `
  t.id, t.token, t.fingerprint, t.attempt,
  ${STATE},
  ${msOf(`${STATE_UNTIL} - ${NOW}`)},
  ${msOf('t.created_at')}, ${msOf('t.gone_at')}, t.outcome, t.status, t.labels,
  CASE WHEN t.expires_at > ${NOW} THEN t.headers END, CASE WHEN t.expires_at > ${NOW} THEN encode(t.body, 'hex') END`
const NO_COLUMNS = 'NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL'

const ACQUIRED_COLUMNS = 'id, token, fingerprint, attempt, created_at, lease_until, gone_at, sweep_at, labels'
const ACQUIRED_VALUES = `r.id, r.token, r.fingerprint, 1, ${NOW}, ${fromNow('r.lease_ms')}, ${fromNow('r.gone_ms')},
    ${fromNow('r.gone_ms')}, r.labels::json`

/**
 * New keys, as most are: inserts what is not there, and gives back the places of those that were. About these `claimSql`
 * decides.
 *
 * $1 to $6 are the claims in the order of their ids, so that two sessions cannot wait for each other. $7: how long to
 * wait, in ms, for a session that has the same record in an open transaction.
 */
export const claimNewSql = (table: string): string => `
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $7, true) AS lock_timeout),
request AS MATERIALIZED (
  SELECT r.* FROM bound, unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::text[])
    WITH ORDINALITY AS r (id, token, fingerprint, lease_ms, gone_ms, labels, place)
  WHERE bound.lock_timeout IS NOT NULL
),
acquired AS (
  INSERT INTO ${table} AS t (${ACQUIRED_COLUMNS}) SELECT ${ACQUIRED_VALUES} FROM request AS r ORDER BY r.place
  ON CONFLICT (id) DO NOTHING RETURNING t.id, t.token
)
SELECT r.place FROM request AS r WHERE NOT EXISTS (SELECT FROM acquired AS a WHERE a.id = r.id AND a.token = r.token)`

/**
 * One statement, one decision for each claim. `known` are the records that no claim may change, as they are committed:
 * a replay writes nothing. The others are inserted; a record that is gone, or is to be taken over, is replaced, and
 * whether it may be is decided on its newest version, under its lock. A claim that gets no row has lost a race: somebody
 * has committed the record since this statement began to look, and the next statement sees it.
 *
 * $1 to $8 are the claims in the order of their ids, so that two sessions cannot wait for each other. `is_first`: of
 * several claims of one id in a batch, one may insert. $9: the ids that may be taken over. $10: how long to wait, in
 * ms, for a session that has the same record in an open transaction.
 */
export const claimSql = (table: string): string => `
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $10, true) AS lock_timeout),
request AS MATERIALIZED (
  SELECT r.* FROM bound, unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::boolean[],
    $7::text[], $8::boolean[]) WITH ORDINALITY
    AS r (id, token, fingerprint, lease_ms, gone_ms, takeover, labels, is_first, place)
  WHERE bound.lock_timeout IS NOT NULL
),
known AS MATERIALIZED (
  SELECT r.place, NULL::integer, ${COLUMNS} FROM request AS r
  CROSS JOIN LATERAL (SELECT * FROM ${table} AS t WHERE t.id = r.id OFFSET 0) AS t
  WHERE t.gone_at > ${NOW} AND NOT (r.takeover AND t.outcome IS NULL AND t.lease_until <= ${NOW}
    AND t.fingerprint = r.fingerprint AND t.token <> r.token)
),
acquired AS (
  INSERT INTO ${table} AS t (${ACQUIRED_COLUMNS})
  SELECT ${ACQUIRED_VALUES}
  FROM request AS r WHERE r.is_first AND NOT EXISTS (SELECT FROM known AS k WHERE k.place = r.place) ORDER BY r.place
  ON CONFLICT (id) DO UPDATE SET
    token = excluded.token, fingerprint = excluded.fingerprint,
    attempt = CASE WHEN t.gone_at <= excluded.created_at THEN 1 ELSE t.attempt + 1 END,
    created_at = CASE WHEN t.gone_at <= excluded.created_at THEN excluded.created_at ELSE t.created_at END,
    labels = CASE WHEN t.gone_at <= excluded.created_at THEN excluded.labels ELSE t.labels END,
    awaited = t.awaited AND t.gone_at > excluded.created_at,
    lease_until = excluded.lease_until, gone_at = excluded.gone_at, sweep_at = excluded.sweep_at,
    outcome = NULL, expires_at = NULL, status = NULL, headers = NULL, body = NULL
  WHERE t.gone_at <= excluded.created_at OR (excluded.id = ANY ($9::text[]) AND t.outcome IS NULL
    AND t.lease_until <= excluded.created_at AND t.fingerprint = excluded.fingerprint AND t.token <> excluded.token)
  RETURNING t.id, t.attempt
)
SELECT r.place, a.attempt, ${NO_COLUMNS}, NULL FROM acquired AS a JOIN request AS r ON r.id = a.id AND r.is_first
UNION ALL SELECT * FROM known`

export const announce = (table: string): string =>
  `CASE WHEN t.awaited THEN pg_notify('oncekey_' || '${table}'::regclass::oid, t.id) END`

/** The bodies of a batch lie one behind the other in $10; a length of -1 is a body that was not kept. */
const SETTLEMENTS = `unnest($1::text[], $2::text[], $3::text[], $4::float8[], $5::float8[], $6::integer[], $7::text[],
    $8::integer[], $9::integer[]) WITH ORDINALITY
    AS r (id, token, outcome, ttl_ms, expired_ms, status, headers, body_at, body_bytes, place)`

/** The sweeper has something to free when the answer expires, or when the whole record is gone. */
const SETTLED_DUE_MS = 'r.ttl_ms'
/** It may come later, by a hundredth of the answer's life or a minute: then the settle leaves its index alone. */
const SETTLED_LATEST_MS = 'r.ttl_ms + least(r.ttl_ms * 0.01, 60000)'

const settleUpdate = (table: string, whose: string): string => `
  UPDATE ${table} AS t SET outcome = r.outcome, expires_at = ${fromNow('r.ttl_ms')},
    gone_at = ${fromNow('r.ttl_ms + r.expired_ms')}, status = r.status, headers = r.headers::json,
    body = CASE WHEN r.body_bytes >= 0 THEN substr($10::bytea, r.body_at, r.body_bytes) END,
    sweep_at = CASE WHEN t.sweep_at BETWEEN ${fromNow(SETTLED_DUE_MS)} AND ${fromNow(SETTLED_LATEST_MS)} THEN t.sweep_at
      ELSE ${fromNow(SETTLED_DUE_MS)} END
  FROM request AS r WHERE t.id = r.id AND t.token = r.token AND t.outcome IS NULL AND ${whose}`

/** Owners that hold their records, as most do. Gives back the places of the others, about whom `settleSql` knows more. */
export const settleOwnedSql = (table: string): string => `
WITH request AS MATERIALIZED (SELECT * FROM ${SETTLEMENTS}),
done AS (${settleUpdate(table, `t.gone_at > ${NOW}`)} RETURNING r.place, t.id, t.awaited)
SELECT r.place, NULL FROM request AS r WHERE NOT EXISTS (SELECT FROM done AS d WHERE d.place = r.place)
UNION ALL SELECT NULL, ${announce(table)} FROM done AS t WHERE t.awaited`

export const settleSql = (table: string, whose: string): string => `
WITH request AS MATERIALIZED (
  SELECT * FROM ${SETTLEMENTS}
),
done AS (${settleUpdate(table, whose)}
  RETURNING r.place, t.id, t.awaited
)
SELECT t.place, true, true, ${announce(table)} FROM done AS t
UNION ALL
SELECT r.place, false, t.outcome IS NOT NULL, NULL FROM request AS r
CROSS JOIN LATERAL (SELECT * FROM ${table} AS t WHERE t.id = r.id AND t.token = r.token OFFSET 0) AS t
WHERE t.gone_at > ${NOW}`

/** A taker only gives its lease up: the owner of before may have acted, so the record must not be forgotten. */
export const releaseSql = (table: string): string => `
WITH request AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS r (id, token, place)),
dropped AS (
  DELETE FROM ${table} AS t USING request AS r
  WHERE t.id = r.id AND t.token = r.token AND t.outcome IS NULL AND t.gone_at > ${NOW} AND t.attempt = 1
  RETURNING r.place, t.id, t.awaited
),
given_up AS (
  UPDATE ${table} AS t SET gone_at = ${moved(NOW)}, sweep_at = least(t.sweep_at, ${moved(NOW)}), lease_until = ${NOW}
  FROM request AS r
  WHERE t.id = r.id AND t.token = r.token AND t.outcome IS NULL AND t.gone_at > ${NOW} AND t.attempt > 1
  RETURNING r.place, t.id, t.awaited
)
SELECT t.place, ${announce(table)} FROM (SELECT * FROM dropped UNION ALL SELECT * FROM given_up) AS t`

export const renewSql = (table: string): string => `
WITH done AS (
  UPDATE ${table} AS t SET gone_at = ${moved(fromNow('r.lease_ms'))},
    sweep_at = least(t.sweep_at, ${moved(fromNow('r.lease_ms'))}), lease_until = ${fromNow('r.lease_ms')}
  FROM unnest($1::text[], $2::text[], $3::float8[]) WITH ORDINALITY AS r (id, token, lease_ms, place)
  WHERE t.id = r.id AND t.token = r.token AND t.outcome IS NULL AND t.gone_at > ${NOW}
  RETURNING r.place, t.id, t.awaited AND r.lease_ms = 0 AS awaited
)
SELECT t.place, ${announce(table)} FROM done AS t`
