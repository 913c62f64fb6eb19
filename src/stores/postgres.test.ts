import { Pool } from 'pg'
import { afterAll, describe, it } from 'vitest'
import { findService, launch, pgbouncer, type Server } from '../../test/services/index.ts'
import { freshTable } from '../../test/support/postgres.ts'
import { SERVER_TICKS } from '../../test/support/server-ticks.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { postgresStore } from './postgres.ts'

const service = await findService('postgres')
const isMissing = typeof service === 'string'
const bouncer = isMissing ? service : await launchBouncer(service.url)

afterAll(async () => {
  if (typeof bouncer !== 'string') await bouncer.stop()
  if (!isMissing) await service.stop()
})

if (isMissing) it.skip(`PostgreSQL: ${service}`, () => {})
else suiteOn(`the store suite, on two pools of ${service.title}`, service.url)

if (typeof bouncer === 'string') it.skip(`PgBouncer: ${bouncer}`, () => {})
else suiteOn(`the store suite, behind ${bouncer.title} in transaction mode`, bouncer.url)

function suiteOn(title: string, url: string): void {
  describe(title, () => {
    const pools = [new Pool({ connectionString: url, max: 5 }), new Pool({ connectionString: url, max: 5 })] as const
    afterAll(async () => {
      await Promise.all(pools.map((pool) => pool.end()))
    })
    const without = { 'exact-clock': 'the clock is the PostgreSQL server’s own' }
    storeSuite(
      { describe, it, skip: it.skip },
      async () => {
        const table = freshTable()
        const stores = pools.map((pool) => postgresStore(pool, { table, sweepEveryMs: 0 }))
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
      { ...SERVER_TICKS, without },
    )
  })
}

/** Time on the server's clock, not on this process's. */
async function elapseOn(pool: Pool, ms: number): Promise<void> {
  await pool.query('SELECT pg_sleep($1::float8 / 1000)', [ms + 1])
}

async function launchBouncer(url: string): Promise<Server | string> {
  try {
    return await launch(pgbouncer(Number(new URL(url).port)))
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}
