import { GroupCommit } from '../../group-commit.ts'
import type { ListQuery, StoredRecord } from '../../store.ts'
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

type Task<T> = (session: Session) => Promise<T>
type Op =
  | { readonly verb: 'read'; readonly id: string }
  | { readonly verb: 'look'; readonly ids: readonly string[] }
  | { readonly verb: 'task'; readonly task: Task<unknown> }

const LIST_LIMIT_DEFAULT = 100
/** Reads that go together in one statement. */
const BATCH_MAX = 512
const QUEUE_MAX = 10_000
/** Most rows that one step of a sweep holds, for a moment. */
const SWEEP_STEP_ROWS = 200

/** What is not on the way of a first request: reads, looks, and the operators' verbs. One connection for all of them. */
export class Operators {
  readonly #table: string
  readonly #lane: GroupCommit<Op, unknown>

  constructor(table: string, use: <T>(task: Task<T>) => Promise<T>) {
    this.#table = table
    const bounds = { batchMax: BATCH_MAX, queueMax: QUEUE_MAX, inFlightMax: 1 }
    this.#lane = new GroupCommit((ops) => use((session) => this.#run(session, ops)), bounds)
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return (await this.#lane.submit({ verb: 'read', id })) as StoredRecord | undefined
  }

  /** Those that run. */
  async look(ids: readonly string[]): Promise<ReadonlySet<string>> {
    return (await this.#lane.submit({ verb: 'look', ids })) as ReadonlySet<string>
  }

  list({ after = '', limit = LIST_LIMIT_DEFAULT, state }: ListQuery): Promise<readonly StoredRecord[]> {
    const sql = listSql(this.#table, hex(after), hex(state ?? ''), count(limit))
    return this.#task(async (session) => (await session.rows(sql)).map(recordOf))
  }

  forget(id: string): Promise<boolean> {
    return this.#task((session) =>
      retried(async () => (await session.write(forgetSql(this.#table, hex(id)))).affectedRows > 0),
    )
  }

  redact(id: string): Promise<boolean> {
    return this.#task(async (session) => {
      const { affectedRows } = await retried(() => session.write(redactSql(this.#table, hex(id))))
      // On some connections a row that was redacted before does not count as affected.
      return affectedRows > 0 || (await session.rows(answeredSql(this.#table, hex(id)))).length > 0
    })
  }

  sweep(limit: number): Promise<number> {
    return this.#task(async (session) => {
      let freed = 0
      for (let left = count(limit); left > 0; ) {
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

  drain(): Promise<void> {
    return this.#lane.drain()
  }

  async #task<T>(task: Task<T>): Promise<T> {
    const reply = (await this.#lane.submit({ verb: 'task', task })) as () => T
    return reply()
  }

  async #run(session: Session, ops: readonly Op[]): Promise<unknown[]> {
    const records = await this.#readAll(session, ops)
    const running = await this.#lookAll(session, ops)
    const replies: unknown[] = []
    for (const op of ops) {
      if (op.verb === 'read') replies.push(records.get(op.id))
      else if (op.verb === 'task') replies.push(await outcomeOf(op.task, session))
      else replies.push(running)
    }
    return replies
  }

  /** Each by the id that the record itself carries. */
  async #readAll(session: Session, ops: readonly Op[]): Promise<ReadonlyMap<string, StoredRecord>> {
    const ids = new Set(ops.flatMap((op) => (op.verb === 'read' ? [op.id] : [])))
    if (ids.size === 0) return new Map()
    const rows = await session.rows(recordsSql(this.#table, list(ids)))
    return new Map(rows.map(recordOf).map((record) => [record.id, record]))
  }

  async #lookAll(session: Session, ops: readonly Op[]): Promise<ReadonlySet<string>> {
    const ids = new Set(ops.flatMap((op) => (op.verb === 'look' ? op.ids : [])))
    if (ids.size === 0) return new Set()
    const rows = await session.rows(lookSql(this.#table, list(ids)))
    return new Set(rows.map(([id]) => fromText(id ?? null)))
  }
}

/** A task that failed by itself leaves the others of its batch alone, unless the connection went with it. */
async function outcomeOf<T>(task: Task<T>, session: Session): Promise<() => T> {
  try {
    const result = await task(session)
    return () => result
  } catch (error) {
    if (!session.isGood) throw error
    return () => {
      throw error
    }
  }
}

/** MySQL refuses a negative limit. */
function count(limit: number): number {
  return Math.min(Math.max(0, Math.floor(limit)), Number.MAX_SAFE_INTEGER)
}
