import { createPool, type Pool, type PoolConnection, type PoolOptions, type RowDataPacket } from 'mysql2/promise'
import { onTestFinished } from 'vitest'
import type { TransactionalStore } from '../../src/store.ts'
import { type MysqlStoreOptions, mysqlMigrations, mysqlStore } from '../../src/stores/mysql.ts'
import type { SqlDialect, SqlSession, Statement } from './sql.ts'

export { answered, claimOf, HOUR_MS, ids } from './requests.ts'
export { effect, freshTable, LOCK_POLL, ledger } from './sql.ts'

/** For the tests that PostgreSQL has, too: `test/sql-cases`. */
export const mysqlDialect: SqlDialect<Pool> = {
  name: 'mysql',
  title: 'MySQL',

  poolOf: (url, connectionLimit = 10) => poolOf(url, { connectionLimit }),
  watched: (url, connectionLimit = 10) => watched(url, { connectionLimit }),
  borrow: (pool) => pool.getConnection(),
  lent: (pool) => lent(pool),
  countWaits(pool) {
    let waits = 0
    pool.on('enqueue', () => {
      waits++
    })
    return () => waits
  },
  async isIdle(pool) {
    const { connectionLimit: length = 10 } = pool.pool.config
    const all = await Promise.all(Array.from({ length }, () => pool.getConnection()))
    for (const connection of all) connection.release()
    return true
  },

  store: mysqlStore,
  open: (pool, table, options) => open(pool, table, options),
  migrations: mysqlMigrations,
  tableLengthMax: 64,
  impossible: { id: 'x'.repeat(1_025), status: 1e15 },
  endings: {
    statements: ['ROLLBACK', 'COMMIT', 'CREATE OR REPLACE VIEW one AS SELECT 1', 'START TRANSACTION'],
    message: /ended before work returned/,
  },

  rows,
  rowOf: async (pool, table, id) => (await rows(pool, `SELECT * FROM ${table} WHERE id = '${id}'`))[0],
  waitingOn: async (pool, table) => (await rows(pool, waitingSql(table))).length,
  sleep: (ms) => `DO SLEEP(${ms / 1_000})`,
  comment: (table, text) => `ALTER TABLE ${table} COMMENT = '${text}'`,

  volatile: {
    async poolOf(url) {
      const pool = poolOf(url)
      onTestFinished(async () => {
        await pool.query('SET GLOBAL innodb_flush_log_at_trx_commit = 1')
      })
      await pool.query('SET GLOBAL innodb_flush_log_at_trx_commit = 0')
      return pool
    },
    message: /innodb_flush_log_at_trx_commit is 0/,
  },
  crash: (server) => server.kill(),
  freeze: (server) => server.freeze(),
  thaw: (server) => server.thaw(),
}

const waitingSql = (table: string): string =>
  `SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%${table}%'`

async function rows(session: SqlSession, sql: string): Promise<RowDataPacket[]> {
  const [found] = (await session.query(sql)) as [RowDataPacket[], unknown]
  return found
}

/** A pool that is ended when the test is over. Without a URL, all of it is in `config`. */
export function poolOf(url: string, config: PoolOptions = {}): Pool {
  const pool = createPool(url === '' ? config : { uri: url, ...config })
  onTestFinished(() => pool.end().catch(() => {}))
  return pool
}

/** A connection that goes back when the test is over, also when it failed. */
export async function lent(pool: Pool): Promise<PoolConnection> {
  const connection = await pool.getConnection()
  onTestFinished(() => connection.destroy())
  return connection
}

/** A store that is closed when the test is over. */
export function open(pool: Pool, table: string, options: MysqlStoreOptions = {}): TransactionalStore<PoolConnection> {
  const store = mysqlStore(pool, { table, sweepEveryMs: 0, ...options })
  onTestFinished(() => store.close())
  return store
}

/** A pool that writes down every statement that is sent through it, whoever sends it. */
export function watched(url: string, config: PoolOptions = {}): { pool: Pool; statements: Statement[] } {
  const pool = poolOf(url, config)
  const statements: Statement[] = []
  pool.pool.on('connection', (connection) => {
    const query = connection.query.bind(connection) as (...args: unknown[]) => unknown
    const spy = (...args: unknown[]): unknown => {
      statements.push({ text: typeof args[0] === 'string' ? args[0] : (args[0] as { sql: string }).sql })
      return query(...args)
    }
    Object.assign(connection, { query: spy })
  })
  return { pool, statements }
}
