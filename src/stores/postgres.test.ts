import { Pool } from 'pg'
import { afterAll, it } from 'vitest'
import { findService, launch, pgbouncer, type Server } from '../../test/services/index.ts'
import { sqlSuite } from '../../test/sql-cases/suite.ts'
import { postgresDialect } from '../../test/support/postgres.ts'

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
  const pool = () => new Pool({ connectionString: url, max: 5 })
  sqlSuite(postgresDialect, title, [pool(), pool()])
}

async function launchBouncer(url: string): Promise<Server | string> {
  try {
    return await launch(pgbouncer(Number(new URL(url).port)))
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}
