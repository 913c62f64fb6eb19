import { Operators as SqlOperators } from '../../sql/operators.ts'
import type { Use } from '../../sql/store.ts'
import type { ListQuery, StoredRecord } from '../../store.ts'
import { rowCount } from '../../store-checks.ts'
import { fromText, hex, list } from './encoding.ts'
import { retried } from './records.ts'
import { recordOf } from './rows.ts'
import type { Session } from './sessions.ts'
import { COLUMNS, NOW, recordsSql, STATE } from './statements.ts'

const listSql = (table: string, after: string, state: string, limit: number): string => `
  SELECT ${COLUMNS} FROM ${table}
  WHERE id > ${after} AND gone_at > ${NOW} AND (${state} = '' OR ${STATE} = ${state}) ORDER BY id LIMIT ${limit}`

const forgetSql = (table: string, id: string): string => `DELETE FROM ${table} WHERE id = ${id} AND gone_at > ${NOW}`

const redactSql = (table: string, id: string): string => `
  UPDATE ${table} SET headers = IF(headers IS NULL, NULL, '[]'), body = NULL, labels = NULL
  WHERE id = ${id} AND outcome IS NOT NULL AND gone_at > ${NOW}`

const answeredSql = (table: string, id: string): string =>
  `SELECT 1 FROM ${table} WHERE id = ${id} AND outcome IS NOT NULL AND gone_at > ${NOW}`

const lookSql = (table: string, ids: string): string => `
  SELECT id FROM ${table}
  WHERE id IN (${ids}) AND outcome IS NULL AND lease_until > ${NOW} AND gone_at > ${NOW}`

/** What has something to free. Read without a lock. */
const dueSql = (table: string, limit: number): string =>
  `SELECT id FROM ${table} WHERE sweep_at <= ${NOW} ORDER BY sweep_at LIMIT ${limit}`

/** One row after the other by its primary key: a scan would also lock what lies between, and wait for it. */
const eachOf = (table: string, ids: readonly string[]): string => `
  (${ids.map((id) => `SELECT ${hex(id)} AS due_id`).join(' UNION ALL ')}) AS due
  STRAIGHT_JOIN ${table} AS t FORCE INDEX (PRIMARY) ON t.id = due.due_id`

/** Those that somebody holds are left for the next time. */
const lockDueSql = (table: string, ids: readonly string[]): string =>
  `SELECT t.id, t.gone_at <= ${NOW} FROM ${eachOf(table, ids)} WHERE t.sweep_at <= ${NOW} FOR UPDATE SKIP LOCKED`

const sweepGoneSql = (table: string, ids: readonly string[]): string =>
  `DELETE t FROM ${eachOf(table, ids)} WHERE t.gone_at <= ${NOW}`

const sweepAnswersSql = (table: string, ids: readonly string[]): string => `
  UPDATE ${eachOf(table, ids)} SET t.headers = NULL, t.body = NULL, t.sweep_at = t.gone_at
  WHERE t.expires_at <= ${NOW}`

const LIST_LIMIT_DEFAULT = 100
/** Most rows that one step of a sweep holds, for a moment. */
const SWEEP_STEP_ROWS = 200

/** Those that run. */
type Running = ReadonlySet<string>

export class Operators extends SqlOperators<Session, 'look', Running> {
  readonly #table: string

  constructor(table: string, use: Use<Session>) {
    super(use)
    this.#table = table
  }

  look(ids: readonly string[]): Promise<Running> {
    return this.looked('look', ids)
  }

  list({ after = '', limit = LIST_LIMIT_DEFAULT, state }: ListQuery): Promise<readonly StoredRecord[]> {
    const sql = listSql(this.#table, hex(after), hex(state ?? ''), rowCount(limit))
    return this.task(async (session) => (await session.rows(sql)).map(recordOf))
  }

  forget(id: string): Promise<boolean> {
    return this.task((session) =>
      retried(async () => (await session.write(forgetSql(this.#table, hex(id)))).affectedRows > 0),
    )
  }

  redact(id: string): Promise<boolean> {
    return this.task(async (session) => {
      const { affectedRows } = await retried(() => session.write(redactSql(this.#table, hex(id))))
      // On some connections a row that was redacted before does not count as affected.
      return affectedRows > 0 || (await session.rows(answeredSql(this.#table, hex(id)))).length > 0
    })
  }

  sweep(limit: number): Promise<number> {
    return this.task(async (session) => {
      let freed = 0
      for (let left = rowCount(limit); left > 0; ) {
        const step = await retried(() => this.#sweepStep(session, Math.min(left, SWEEP_STEP_ROWS)))
        freed += step.gone
        left -= step.gone
        if (step.isLast) break
      }
      return freed
    })
  }

  async #sweepStep(session: Session, limit: number): Promise<{ gone: number; isLast: boolean }> {
    const due = (await session.rows(dueSql(this.#table, limit))).map(([id]) => fromText(id ?? null))
    if (due.length === 0) return { gone: 0, isLast: true }
    session.isInTransaction = true
    try {
      await session.write('START TRANSACTION')
      const locked = await session.rows(lockDueSql(this.#table, due))
      const idsOf = (flag: string) =>
        locked.filter(([, isGone]) => String(isGone) === flag).map(([id]) => fromText(id ?? null))
      const [gone, expired] = [idsOf('1'), idsOf('0')]
      if (gone.length > 0) await session.write(sweepGoneSql(this.#table, gone))
      if (expired.length > 0) await session.write(sweepAnswersSql(this.#table, expired))
      await session.write('COMMIT')
      // What others hold comes first again the next time: then it is not tried once more at once.
      return { gone: gone.length, isLast: due.length < limit || locked.length < due.length }
    } catch (error) {
      await session.rollBack()
      throw error
    } finally {
      session.isInTransaction = false
    }
  }

  protected async readAll(session: Session, ids: ReadonlySet<string>): Promise<ReadonlyMap<string, StoredRecord>> {
    const rows = await session.rows(recordsSql(this.#table, list(ids)))
    return new Map(rows.map(recordOf).map((record) => [record.id, record]))
  }

  protected async lookAll(session: Session, _look: 'look', ids: ReadonlySet<string>): Promise<Running> {
    const rows = await session.rows(lookSql(this.#table, list(ids)))
    return new Set(rows.map(([id]) => fromText(id ?? null)))
  }
}
