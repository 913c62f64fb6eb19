import { createPool } from 'mysql2/promise'
import { afterAll, it } from 'vitest'
import { findService } from '../../test/services/index.ts'
import { sqlSuite } from '../../test/sql-cases/suite.ts'
import { mysqlDialect } from '../../test/support/mysql.ts'

const service = await findService('mariadb')
const isMissing = typeof service === 'string'
afterAll(async () => {
  if (!isMissing) await service.stop()
})

if (isMissing) it.skip(`MySQL: ${service}`, () => {})
else suiteOn(`the store suite, on two pools of ${service.title}`, service.url)

function suiteOn(title: string, url: string): void {
  // One pool as it comes, and one with everything set differently: neither the wire nor the answers may change.
  const odd = createPool({
    uri: url,
    connectionLimit: 3,
    charset: 'latin1_swedish_ci',
    timezone: '+05:00',
    flags: ['-FOUND_ROWS'],
    namedPlaceholders: true,
    typeCast: false,
    supportBigNumbers: true,
    bigNumberStrings: true,
  })
  odd.pool.on('connection', (connection) => {
    connection.query("SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,IGNORE_SPACE', time_zone = '-03:30'")
  })
  sqlSuite(mysqlDialect, title, [createPool({ uri: url }), odd])
}
