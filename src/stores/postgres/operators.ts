import { Operators as SqlOperators } from '../../sql/operators.ts'
import type { Use } from '../../sql/store.ts'
import type { ListQuery, StoredRecord } from '../../store.ts'
import { rowCount } from '../../store-checks.ts'
import { arrayOf, toText } from './encoding.ts'
import { recordOf, retried } from './records.ts'
import type { Session } from './sessions.ts'
import { announce, COLUMNS, NOW, STATE } from './statements.ts'

const readSql = (table: string): string => `
  SELECT ${COLUMNS} FROM ${table} AS t WHERE t.id = ANY ($1::text[]) AND t.gone_at > ${NOW}`

const listSql = (table: string): string => `
  SELECT ${COLUMNS} FROM ${table} AS t
  WHERE ($1::text IS NULL OR t.id > $1::text) AND t.gone_at > ${NOW} AND ($3::text = '' OR ${STATE} = $3::text)
  ORDER BY t.id LIMIT $2::bigint`

const forgetSql = (table: string): string => `
  WITH done AS (DELETE FROM ${table} AS t WHERE t.id = $1::text AND t.gone_at > ${NOW} RETURNING t.id, t.awaited)
  SELECT ${announce(table)} FROM done AS t`

const redactSql = (table: string): string => `
  UPDATE ${table} AS t SET headers = CASE WHEN t.headers IS NOT NULL THEN '[]'::json END, body = NULL, labels = NULL
  WHERE t.id = $1::text AND t.outcome IS NOT NULL AND t.gone_at > ${NOW} RETURNING 1`

/**
 * The next that are due. What is gone goes; what is not has an answer that expired, or a lease that was renewed, and is
 * looked at again later. Rows that somebody holds are left for the next time: a sweep waits for nobody, and holds few
 * rows for a moment.
 */
const sweepSql = (table: string): string => `
  WITH due AS MATERIALIZED (
    SELECT t.id FROM ${table} AS t WHERE t.sweep_at <= ${NOW} ORDER BY t.sweep_at LIMIT $1::bigint FOR UPDATE SKIP LOCKED
  ),
  gone AS (
    DELETE FROM ${table} AS t USING due WHERE t.id = due.id AND t.gone_at <= ${NOW} RETURNING 1
  ),
  kept AS (
    UPDATE ${table} AS t SET sweep_at = CASE WHEN t.expires_at > ${NOW} THEN t.expires_at ELSE t.gone_at END,
      headers = CASE WHEN t.expires_at > ${NOW} THEN t.headers END, body = CASE WHEN t.expires_at > ${NOW} THEN t.body END
    FROM due WHERE t.id = due.id AND t.gone_at > ${NOW} RETURNING 1
  )
  SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)`

const isRunning = `t.outcome IS NULL AND t.lease_until > ${NOW} AND t.gone_at > ${NOW}`
const leaseLeftMs = `(extract(epoch FROM t.lease_until - ${NOW}) * 1000)::bigint`

/** Those that run, for how much longer. */
const lookSql = (table: string): string => `
  SELECT t.id, ${leaseLeftMs} FROM ${table} AS t WHERE t.id = ANY ($1::text[]) AND ${isRunning}`

/**
 * The same, and asks for an announcement. Whoever ends the operation after this commits sees the flag; whoever has ended
 * it before is seen here.
 */
const flagSql = (table: string): string => `
  WITH flagged AS (
    UPDATE ${table} AS t SET awaited = true WHERE t.id = ANY ($1::text[]) AND ${isRunning} AND NOT t.awaited
    RETURNING t.id, ${leaseLeftMs}
  )
  SELECT * FROM flagged
  UNION ALL SELECT t.id, ${leaseLeftMs} FROM ${table} AS t WHERE t.id = ANY ($1::text[]) AND ${isRunning} AND t.awaited`

const LIST_LIMIT_DEFAULT = 100
/** Of one sweep; other operations come between them. */
const SWEEP_STEPS_MAX = 1_000

type Look = 'look' | 'flag'
/** By the ids as they are kept: those that run, with the ms that are left of their lease. */
type Running = ReadonlyMap<string, number>

export class Operators extends SqlOperators<Session, Look, Running> {
  readonly #sql: Readonly<Record<'read' | 'list' | 'forget' | 'redact' | 'sweep' | Look, string>>

  constructor(table: string, use: Use<Session>) {
    super(use)
    this.#sql = {
      read: readSql(table),
      list: listSql(table),
      forget: forgetSql(table),
      redact: redactSql(table),
      sweep: sweepSql(table),
      look: lookSql(table),
      flag: flagSql(table),
    }
  }

  look(ids: readonly string[], flag: boolean): Promise<Running> {
    return this.looked(flag ? 'flag' : 'look', ids)
  }

  list({ after, limit = LIST_LIMIT_DEFAULT, state }: ListQuery): Promise<readonly StoredRecord[]> {
    return this.task(async (session) => {
      const rows = await session.send(this.#sql.list, [
        after === undefined ? null : toText(after),
        String(rowCount(limit)),
        state ?? '',
      ])
      return rows.map(recordOf)
    })
  }

  forget(id: string): Promise<boolean> {
    return this.task(async (session) => (await session.send(this.#sql.forget, [toText(id)])).length > 0)
  }

  redact(id: string): Promise<boolean> {
    return this.task(async (session) => (await session.send(this.#sql.redact, [toText(id)])).length > 0)
  }

  /** Goes on behind those that are due and stay, so that none is hidden by them. */
  async sweep(limit: number): Promise<number> {
    const wanted = rowCount(limit)
    let swept = 0
    for (let steps = 0; steps < SWEEP_STEPS_MAX && swept < wanted; steps++) {
      const asked = wanted - swept
      const [gone, kept] = await this.task(async (session) => {
        const [row] = await retried(() => session.send(this.#sql.sweep, [String(asked)]))
        return [Number(row?.[0]), Number(row?.[1])] as const
      })
      swept += gone
      if (gone + kept < asked) break
    }
    return swept
  }

  protected async readAll(session: Session, ids: ReadonlySet<string>): Promise<ReadonlyMap<string, StoredRecord>> {
    const rows = await session.run(this.#sql.read, [arrayOf([...ids].map(toText))])
    return new Map(rows.map(recordOf).map((record) => [record.id, record]))
  }

  protected async lookAll(session: Session, look: Look, ids: ReadonlySet<string>): Promise<Running> {
    const rows = await retried(() => session.run(this.#sql[look], [arrayOf([...ids].map(toText))]))
    return new Map(rows.map(([id, leftMs]) => [id ?? '', Number(leftMs)]))
  }
}
