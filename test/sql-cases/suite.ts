import { afterAll, describe, it } from 'vitest'
import { storeSuite } from '../../src/testing/store-suite.ts'
import { SERVER_TICKS } from '../support/server-ticks.ts'
import { freshTable, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** The whole store suite, every case on two pools and a table of its own. Ends the pools. */
export function sqlSuite<Pool extends SqlPool>(
  db: SqlDialect<Pool>,
  title: string,
  pools: readonly [one: Pool, other: Pool],
): void {
  describe(title, () => {
    afterAll(async () => {
      await Promise.all(pools.map((pool) => pool.end()))
    })
    const factory = async () => {
      const options = { table: freshTable(), sweepEveryMs: 0 }
      const [store, other] = [db.store(pools[0], options), db.store(pools[1], options)]
      return {
        store,
        another: async () => other,
        elapse: async (ms: number) => {
          await pools[0].query(db.sleep(ms + 1))
        },
        dispose: async () => {
          await Promise.all([store.close(), other.close()])
          await pools[0].query(`DROP TABLE IF EXISTS ${options.table}`)
        },
      }
    }
    const without = { 'exact-clock': `the clock is the ${db.title} server’s own` }
    storeSuite({ describe, it, skip: it.skip }, factory, { ...SERVER_TICKS, without })
  })
}
