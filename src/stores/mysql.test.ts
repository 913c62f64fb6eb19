import { createPool, type Pool } from 'mysql2/promise'
import { afterAll, describe, it } from 'vitest'
import { findService } from '../../test/services/index.ts'
import { freshTable } from '../../test/support/mysql.ts'
import { SERVER_TICKS } from '../../test/support/server-ticks.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { mysqlStore } from './mysql.ts'

const service = await findService('mariadb')
const isMissing = typeof service === 'string'
afterAll(async () => {
  if (!isMissing) await service.stop()
})

if (isMissing) it.skip(`MySQL: ${service}`, () => {})
else suiteOn(`the store suite, on two pools of ${service.title}`, service.url)

function suiteOn(title: string, url: string): void {
  describe(title, () => {
    // One pool as it comes, and one with everything set differently: neither the wire nor the answers may change.
    const odd = {
      charset: 'latin1_swedish_ci',
      timezone: '+05:00',
      flags: ['-FOUND_ROWS'],
      namedPlaceholders: true,
      typeCast: false,
      supportBigNumbers: true,
      bigNumberStrings: true,
    }
    const pools = [createPool({ uri: url }), createPool({ uri: url, connectionLimit: 3, ...odd })] as const
    pools[1].pool.on('connection', (connection) => {
      connection.query("SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,IGNORE_SPACE', time_zone = '-03:30'")
    })
    afterAll(async () => {
      await Promise.all(pools.map((pool) => pool.end()))
    })
    storeSuite(
      { describe, it, skip: it.skip },
      async () => {
        const table = freshTable()
        const stores = pools.map((pool) => mysqlStore(pool, { table, sweepEveryMs: 0 }))
        const [store, other] = stores
        if (store === undefined || other === undefined) throw new Error('two stores were asked for')
        return {
          store,
          another: async () => other,
          elapse: (ms) => elapseOn(pools[0], ms),
          dispose: async () => {
            await Promise.all(stores.map((each) => each.close()))
            await pools[0].query(`DROP TABLE IF EXISTS ${table}`)
          },
        }
      },
      { ...SERVER_TICKS, without: { 'exact-clock': 'the clock is the MySQL server’s own' } },
    )
  })
}

/** Time on the server's clock, not on this process's. */
async function elapseOn(pool: Pool, ms: number): Promise<void> {
  await pool.query(`DO SLEEP(${(ms + 1) / 1_000})`)
}
