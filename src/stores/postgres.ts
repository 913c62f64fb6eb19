import type { SqlStoreOptions } from '../sql/options.ts'
import { settingsOf, TABLE_DEFAULT } from '../sql/options.ts'
import type { SqlDatabase, Use } from '../sql/store.ts'
import { SqlStore } from '../sql/store.ts'
import type { TransactionalStore } from '../store.ts'
import { assertClaimTimes, assertClient } from '../store-checks.ts'
import { assertSettlement } from './postgres/checks.ts'
import { sqlState, toOncekeyError, UNDEFINED_TABLE } from './postgres/faults.ts'
import { listening, type OwnConnection } from './postgres/listener.ts'
import { Operators } from './postgres/operators.ts'
import { Records } from './postgres/records.ts'
import { migrationsOf, prepareTable, tableOf } from './postgres/schema.ts'
import type { PostgresPool, PostgresPoolClient, Session } from './postgres/sessions.ts'
import { Sessions } from './postgres/sessions.ts'
import { transactionOn } from './postgres/transaction.ts'
import { Waiters } from './postgres/waiters.ts'

export type { PostgresClient, PostgresPool, PostgresPoolClient } from './postgres/sessions.ts'

export interface PostgresStoreOptions extends SqlStoreOptions {
  /**
   * A connection of its own on which the store hears that a record was settled; `end()` of it is called when it is no
   * longer needed. Without it one of the pool's is kept while somebody waits. `false`: the store polls.
   */
  readonly listen?: false | OwnConnection
}

/**
 * Records in a table of PostgreSQL 13 or later, in the database that the pool connects to.
 *
 * An acknowledged claim or settle is committed: with `synchronous_commit` on, which is the default and which this store
 * never lowers, it survives kill -9 and a loss of power; after a failover it is there when the replica was synchronous.
 * Operations of the same moment share one statement and one commit; one that comes alone is sent at once.
 *
 * The caller owns the pool. The store borrows `2 × inFlightMax + 1` connections of it at most, each for one batch and
 * never two at once for one operation; one more while somebody waits and some seconds longer, and only of a pool of 4 or
 * more; and one for each `transaction` that is under way. It works behind PgBouncer in transaction mode; then it polls
 * instead of listening.
 *
 * `transaction(request, work)`: the claim, the rows that `work` writes through `tx`, and the answer commit together or
 * not at all. `tx` is the pool's own client, inside a transaction: `work` must neither end it nor release the client. A
 * conflict with other transactions, at repeatable read or serializable, throws, and nothing has taken place.
 */
export function postgresStore<Pool extends PostgresPool>(
  pool: Pool,
  options: PostgresStoreOptions = {},
): TransactionalStore<ClientOf<Pool>> {
  assertClient(pool, 'connect', 'postgresStore', 'new Pool() of pg')
  const settings = settingsOf(options, BATCH_MAX_DEFAULT)
  const table = tableOf(settings.table)
  const typed = pool as unknown as PostgresPool<ClientOf<Pool>>
  const sessions = new Sessions(typed, settings.callMsMax)
  const database = (use: Use<Session>): SqlDatabase<ClientOf<Pool>, Session<ClientOf<Pool>>> => {
    const records = new Records(table.sql)
    const operators = new Operators(table.sql, use)
    return {
      name: 'postgres',
      title: 'PostgreSQL',
      records,
      operators,
      waiters: new Waiters({
        look: (ids, flag) => operators.look(ids, flag),
        listen: listening(options.listen, sessions, table.sql, settings.callMsMax),
      }),
      assertClaim: assertClaimTimes,
      assertSettlement,
      use: (task) => sessions.use(task),
      prepare: (session) => prepareTable(session, table, settings.migrate),
      transactionOn: (session, request, how) => transactionOn(session, records, request, how),
      isTableMissing: (error) => sqlState(error) === UNDEFINED_TABLE,
      toOncekeyError,
      async close() {
        await sessions.idle()
        pool.removeListener('error', ignore)
      },
    }
  }
  // A pool reports connections that break while they are idle. Unheard, a restart of the server would end the process.
  pool.on('error', ignore)
  return new SqlStore(settings, database)
}

/** What the pool's `connect` gives; `pg` declares it twice, with and without a callback. */
export type ClientOf<Pool> = Pool extends {
  connect: { (): Promise<infer Client extends PostgresPoolClient>; (callback: never): unknown }
}
  ? Client
  : PostgresPoolClient

/** The SQL that makes the table, one text for each version of it, to be run in order. */
export function postgresMigrations(table: string = TABLE_DEFAULT): readonly string[] {
  return migrationsOf(tableOf(table))
}

const BATCH_MAX_DEFAULT = 256

function ignore(): void {}
