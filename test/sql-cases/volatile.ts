import { expect, it } from 'vitest'
import { claimOf } from '../support/requests.ts'
import { freshTable, type SqlDialect, type SqlPool } from '../support/sql.ts'
import { processWarnings } from '../support/warnings.ts'

/** Settings with which a crash of the server loses records. */
export function volatileCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  it('they can be refused, or ignored', async () => {
    const warnings = processWarnings()
    const pool = await db.volatile.poolOf(url)
    await expect(db.open(pool, freshTable(), { whenVolatile: 'refuse' }).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringMatching(db.volatile.message),
    })
    const store = db.open(pool, freshTable(), { whenVolatile: 'ignore' })
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    await new Promise((resolve) => setImmediate(resolve))
    expect(warnings).toEqual([])
  })
}
