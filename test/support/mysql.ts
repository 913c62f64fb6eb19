import { randomBytes } from 'node:crypto'
import { createPool, type Pool, type PoolConnection, type PoolOptions } from 'mysql2/promise'
import { onTestFinished } from 'vitest'
import type { TransactionalStore } from '../../src/store.ts'
import { type MysqlStoreOptions, mysqlStore } from '../../src/stores/mysql.ts'

export { answered, claimOf, HOUR_MS } from './requests.ts'

/** A table name of its own for each test. */
export function freshTable(): string {
  return `t_${randomBytes(8).toString('hex')}`
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
export function watched(url: string, config: PoolOptions = {}): { pool: Pool; statements: string[] } {
  const pool = poolOf(url, config)
  const statements: string[] = []
  pool.pool.on('connection', (connection) => {
    const query = connection.query.bind(connection) as (...args: unknown[]) => unknown
    const spy = (...args: unknown[]): unknown => {
      statements.push(typeof args[0] === 'string' ? args[0] : (args[0] as { sql: string }).sql)
      return query(...args)
    }
    Object.assign(connection, { query: spy })
  })
  return { pool, statements }
}
