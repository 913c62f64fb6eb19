import { randomBytes } from 'node:crypto'
import type { EventEmitter } from 'node:events'
import type { Settlement, TransactionalStore } from '../../src/store.ts'
import type { MysqlStoreOptions } from '../../src/stores/mysql.ts'
import type { PostgresStoreOptions } from '../../src/stores/postgres.ts'
import type { Server } from '../services/index.ts'
import { answered } from './requests.ts'

/**
 * What a test has to know of a database of SQL to run on it. There are two: `postgresDialect` and `mysqlDialect`, in the
 * files beside this one. The cases in `test/sql-cases` take either; what only one of the two has or does is tested in
 * the files of its own store.
 */
export interface SqlDialect<Pool extends SqlPool> {
  readonly name: 'postgres' | 'mysql'
  /** As people call the server. */
  readonly title: string

  /** A pool that is ended when the test is over. */
  poolOf(url: string, connectionsMax?: number): Pool
  /** A pool that writes down every statement that is sent through it. */
  watched(url: string, connectionsMax?: number): { pool: Pool; statements: Statement[] }
  /** One of its connections, until `release` is called. */
  borrow(pool: Pool): Promise<SqlSession & { release(): void }>
  /** One of its connections, until the test is over. */
  lent(pool: Pool): Promise<SqlSession>
  /** How often somebody had to wait for a connection since this was called; or, where that is not told, who waits now. */
  countWaits(pool: Pool): () => number
  /** Whether every connection of the pool is to be had. */
  isIdle(pool: Pool): Promise<boolean>

  store(pool: Pool, options: SqlStoreOptions): TransactionalStore<SqlSession>
  /** A store that is closed when the test is over, and that sweeps only when it is told to. */
  open(pool: Pool, table: string, options?: SqlStoreOptions): TransactionalStore<SqlSession>
  /** The SQL that makes the store's table. */
  migrations(table: string): readonly string[]
  /** The longest name of a table that the store takes. */
  readonly tableLengthMax: number
  /** What a record of the store cannot have. */
  readonly impossible: { readonly id: string; readonly status: number }
  /** Statements that end a transaction, and what whoever sends one inside `transaction` is told. */
  readonly endings: { readonly statements: readonly string[]; readonly message: RegExp }

  rows(session: SqlSession, sql: string): Promise<Row[]>
  /** The record's row, with the marks that a write or a lock leaves on it where the database shows them. */
  rowOf(pool: Pool, table: string, id: string): Promise<Row | undefined>
  /** How many statements on this table, or on one that is named after it, wait for a lock. */
  waitingOn(pool: Pool, table: string): Promise<number>
  /** Statements: to let time pass on the server's clock, and to give a table a comment. */
  sleep(ms: number): string
  comment(table: string, text: string): string

  /** A pool that is set so that a crash of the server loses records, until the test is over; and what is said of it. */
  readonly volatile: { poolOf(url: string): Promise<Pool>; readonly message: RegExp }
  /** kill -9 of every process of the server at once: those that serve connections get no time to finish anything. */
  crash(server: Server): Promise<void>
  /** All of its processes hang, until they are thawed. */
  freeze(server: Server): void
  thaw(server: Server): void
}

/** What the pools and the connections of both drivers have. */
export interface SqlSession {
  query(sql: string): Promise<unknown>
}

export interface SqlPool extends SqlSession, Pick<EventEmitter, 'on'> {
  end(): Promise<void>
}

export interface Statement {
  readonly text: string
}

export type Row = Readonly<Record<string, unknown>>

/** The options that both stores have. */
export type SqlStoreOptions = Pick<MysqlStoreOptions, keyof MysqlStoreOptions & keyof PostgresStoreOptions>

/** A table name of its own for each test. */
export function freshTable(): string {
  return `t_${randomBytes(8).toString('hex')}`
}

/** For `expect.poll` of `waitingOn`: InnoDB looks anew only when nobody has asked for 100 ms. */
export const LOCK_POLL: { readonly interval: number } = { interval: 150 }

/** A table for records, and one for the effects of the user: nothing but the transaction keeps them from doubling. */
export async function ledger<Pool extends SqlPool>(
  db: SqlDialect<Pool>,
  pool: Pool,
): Promise<{ table: string; effects(): Promise<unknown[]> }> {
  const table = freshTable()
  await pool.query(`CREATE TABLE ${table}_effects (name VARCHAR(99) NOT NULL, pid INT)`)
  const effects = async () =>
    (await db.rows(pool, `SELECT name FROM ${table}_effects ORDER BY name`)).map(({ name }) => name)
  return { table, effects }
}

/** Work for `transaction`: one effect in the ledger. */
export const effect =
  (table: string, name: string) =>
  async (tx: SqlSession): Promise<Settlement> => {
    await tx.query(`INSERT INTO ${table}_effects (name) VALUES ('${name}')`)
    return answered
  }
