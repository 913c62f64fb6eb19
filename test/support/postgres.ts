import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Pool, type PoolClient, type PoolConfig, type QueryResult } from 'pg'
import { onTestFinished } from 'vitest'
import type { TransactionalStore } from '../../src/store.ts'
import { type PostgresStoreOptions, postgresMigrations, postgresStore } from '../../src/stores/postgres.ts'
import type { Server } from '../services/index.ts'
import type { Row, SqlDialect, SqlSession, Statement } from './sql.ts'

export { answered, claimOf, ids } from './requests.ts'
export { effect, freshTable, ledger } from './sql.ts'

/** For the tests that MySQL has, too: `test/sql-cases`. */
export const postgresDialect: SqlDialect<Pool> = {
  name: 'postgres',
  title: 'PostgreSQL',

  poolOf: (url, max = 10) => poolOf(url, { max }),
  watched: (url, max = 10) => watched(url, { max }),
  borrow: (pool) => pool.connect(),
  lent: (pool) => lent(pool),
  countWaits: (pool) => () => pool.waitingCount,
  isIdle: async (pool) => pool.waitingCount + pool.totalCount - pool.idleCount === 0,

  store: postgresStore,
  open: (pool, table, options) => open(pool, table, options),
  migrations: postgresMigrations,
  tableLengthMax: 48,
  // Longer than an entry of an index, and not to be made shorter.
  impossible: { id: randomBytes(50_000).toString('base64'), status: 200.5 },
  endings: { statements: ['ROLLBACK', 'COMMIT'], message: /ended the transaction by itself/ },

  rows,
  rowOf: async (pool, table, id) =>
    (await rows(pool, `SELECT ctid, xmin, xmax, * FROM ${table} WHERE id = '${id}'`))[0],
  waitingOn: async (pool, table) => (await rows(pool, waitingSql(table))).length,
  sleep: (ms) => `SELECT pg_sleep(${ms / 1_000})`,
  comment: (table, text) => `COMMENT ON TABLE ${table} IS '${text}'`,

  volatile: {
    poolOf: async (url) => poolOf(url, { options: '-c synchronous_commit=off' }),
    message: /synchronous_commit is off/,
  },
  async crash(server) {
    signalBackends(server, 'SIGKILL')
    await server.kill()
  },
  freeze(server) {
    server.freeze()
    signalBackends(server, 'SIGSTOP')
  },
  thaw(server) {
    server.thaw()
    signalBackends(server, 'SIGCONT')
  },
}

/** By what they have locked already: of a long statement only the beginning is shown. */
const waitingSql = (table: string): string => `
  SELECT FROM pg_stat_activity AS a WHERE a.wait_event_type = 'Lock' AND EXISTS (
    SELECT FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation WHERE l.pid = a.pid AND c.relname LIKE '${table}%'
  )`

async function rows(session: SqlSession, sql: string): Promise<Row[]> {
  return ((await session.query(sql)) as QueryResult<Row>).rows
}

/** A pool that is ended when the test is over. */
export function poolOf(url: string, config: PoolConfig = {}): Pool {
  const pool = new Pool({ connectionString: url, ...config })
  pool.on('error', () => {})
  onTestFinished(() => pool.end().catch(() => {}))
  return pool
}

/** A connection that goes back when the test is over, also when it failed. */
export async function lent(pool: Pool): Promise<PoolClient> {
  const client = await pool.connect()
  client.on('error', () => {})
  onTestFinished(() => client.release(true))
  return client
}

/** A store on a pool that are both closed when the test is over. */
export function open(pool: Pool, table: string, options: PostgresStoreOptions = {}): TransactionalStore<PoolClient> {
  const store = postgresStore(pool, { table, sweepEveryMs: 0, ...options })
  onTestFinished(() => store.close())
  return store
}

/** A pool that writes down every statement that is sent through it. */
export function watched(url: string, config: PoolConfig = {}): { pool: Pool; statements: PgStatement[] } {
  const pool = poolOf(url, config)
  const statements: PgStatement[] = []
  pool.on('connect', (client) => {
    const query = client.query.bind(client) as (...args: unknown[]) => unknown
    const spy = (...args: unknown[]): unknown => {
      statements.push(typeof args[0] === 'string' ? { text: args[0] } : (args[0] as PgStatement))
      return query(...args)
    }
    Object.assign(client, { query: spy })
  })
  return { pool, statements }
}

interface PgStatement extends Statement {
  /** Under which it was prepared. */
  readonly name?: string
}

/**
 * The server's own signal reaches only its first process: this reaches the others, those that serve connections and
 * those that write or receive the log. One that ended between being listed and being signalled is as good as killed.
 */
export function signalBackends({ folder }: Server, signal: NodeJS.Signals): void {
  const pid = readFileSync(join(folder, 'data', 'postmaster.pid'), 'utf8').split('\n')[0] ?? ''
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ')
  for (const child of children.filter((text) => text !== '')) {
    try {
      process.kill(Number(child), signal)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
}
