import type { SqlStoreOptions } from '../sql/options.ts'
import { settingsOf, TABLE_DEFAULT } from '../sql/options.ts'
import type { SqlDatabase, Use } from '../sql/store.ts'
import { SqlStore } from '../sql/store.ts'
import type { TransactionalStore } from '../store.ts'
import { assertClient } from '../store-checks.ts'
import { assertClaim, assertSettlement } from './mysql/checks.ts'
import { errorNumber, NO_SUCH_TABLE, toOncekeyError } from './mysql/faults.ts'
import { Operators } from './mysql/operators.ts'
import { Records } from './mysql/records.ts'
import { migrationsOf, prepareTable, tableOf } from './mysql/schema.ts'
import type { MysqlConnection, MysqlPool, Session } from './mysql/sessions.ts'
import { Sessions } from './mysql/sessions.ts'
import { transactionOn } from './mysql/transaction.ts'
import { Waiters } from './mysql/waiters.ts'

export type { MysqlConnection, MysqlField, MysqlPool, MysqlQuery } from './mysql/sessions.ts'

export type MysqlStoreOptions = SqlStoreOptions

/**
 * Records in a table of MySQL 8 or MariaDB 10.6 or later, in the database that the pool of `mysql2/promise` connects to.
 *
 * An acknowledged claim or settle is committed: with `innodb_flush_log_at_trx_commit` 1, which is the default and which
 * this store never lowers, it survives kill -9 and a loss of power; with a binary log that needs `sync_binlog` 1 as well.
 * After a failover it is there when the replica had it (semi-synchronous, or a cluster); otherwise the last moments are
 * lost. Operations of the same moment share one statement and one commit; one that comes alone is sent at once.
 *
 * A claim of a new key is one round trip; one that meets a record takes a second one to read it. MySQL announces
 * nothing: a waiter is woken at once by the end of an operation in its own process, and within 50 ms by that in another.
 *
 * The caller owns the pool, whose connections must have autocommit on. The store borrows `2 × inFlightMax + 1` of them
 * at most, each for one batch and never two at once for one operation, and one for each `transaction` under way.
 *
 * `transaction(request, work)`: the claim, the rows that `work` writes through `tx`, and the answer commit together or
 * not at all. `tx` is the pool's own connection, inside a transaction that `work` must not end by itself; statements that
 * change tables (CREATE, ALTER, …) end it too. A plain `claim` of an id that a transaction of another
 * process holds is told `running` after 1 s on MariaDB; on MySQL it waits for as long as `callMsMax` and then throws: use
 * one of the two for one kind of key.
 */
export function mysqlStore<Connection extends MysqlConnection>(
  pool: MysqlPool<Connection>,
  options: MysqlStoreOptions = {},
): TransactionalStore<Connection> {
  assertClient(pool, 'getConnection', 'mysqlStore', 'createPool() of mysql2/promise')
  const settings = settingsOf(options, BATCH_MAX_DEFAULT)
  const table = tableOf(settings.table)
  const sessions = new Sessions(pool, settings.callMsMax)
  const database = (use: Use<Session>): SqlDatabase<Connection, Session<Connection>> => {
    const records = new Records(table.sql)
    const operators = new Operators(table.sql, use)
    return {
      name: 'mysql',
      title: 'MySQL',
      records,
      operators,
      waiters: new Waiters((ids) => operators.look(ids)),
      assertClaim,
      assertSettlement,
      use: (task) => sessions.use(task),
      async prepare(session) {
        const { packetBytesMax, warnings } = await prepareTable(session, table, settings.migrate)
        records.packetBytesMax = packetBytesMax
        return warnings
      },
      transactionOn: (session, request, how) => transactionOn(session, records, request, how),
      isTableMissing: (error) => errorNumber(error) === NO_SUCH_TABLE,
      toOncekeyError,
    }
  }
  return new SqlStore(settings, database)
}

/** The SQL that makes the table, one statement for each version of it, to be run in order. */
export function mysqlMigrations(table: string = TABLE_DEFAULT): readonly string[] {
  return migrationsOf(tableOf(table))
}

const BATCH_MAX_DEFAULT = 128
