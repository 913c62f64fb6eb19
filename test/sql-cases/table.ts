import { expect, it } from 'vitest'
import { answered, claimOf } from '../support/requests.ts'
import { freshTable, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** The table of the store: who makes it, whose it is, and what becomes of a store that has none. */
export function tableCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  it('S9: is made once, however many stores start at the same moment', async () => {
    const table = freshTable()
    const stores = Array.from({ length: 50 }, () => db.open(db.poolOf(url, 1), table))
    const claims = await Promise.all(stores.map((store, index) => store.claim(claimOf('a', { token: `t${index}` }))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
    expect(claims.filter(({ state }) => state === 'running')).toHaveLength(49)
  })

  it('with migrate: false is not made; once the SQL was run by hand, the same store goes on', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table, { migrate: false })
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(new RegExp(`is missing, and migrate is false.*${db.name}Migrations`, 's')),
    })
    for (const step of db.migrations(table)) await pool.query(step)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await db.open(db.poolOf(url), table).read('a')).toMatchObject({ state: 'running' })
  })

  it('of a newer oncekey, or of another program, is left as it is', async () => {
    const pool = db.poolOf(url)
    const [newer, foreign] = [freshTable(), freshTable()]
    for (const table of [newer, foreign]) await pool.query(`CREATE TABLE ${table} (a INT)`)
    await pool.query(db.comment(newer, 'oncekey schema 99'))
    await expect(db.open(pool, newer).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/newer oncekey \(schema 99/),
    })
    await expect(db.open(pool, foreign).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/not oncekey's/),
    })
    const columns = `SELECT column_name AS name FROM information_schema.columns WHERE table_name IN ('${newer}', '${foreign}')`
    expect(await db.rows(pool, columns)).toEqual([{ name: 'a' }, { name: 'a' }])
  })

  it('dropped in the middle: the operation says so, the next one makes it anew', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table)
    await store.claim(claimOf('a'))
    await pool.query(`DROP TABLE ${table}`)
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no such table/),
    })
    expect(await store.settle('a', 'mine', answered)).toBe(false)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  const tooLong = 'x'.repeat(db.tableLengthMax + 1)
  it.each(['', 'a.b.c', 'a"b', 'a`b', 'a;b', "a'b", '1a', 'a b', 'ä', tooLong])('a name of %j is refused', (table) => {
    expect(() => db.store(db.poolOf(url), { table })).toThrow(/table/)
    expect(() => db.migrations(table)).toThrow(/table/)
  })

  it.each([
    { batchMax: 0 },
    { inFlightMax: 1.5 },
    { callMsMax: Number.NaN },
    { sweepEveryMs: -1 },
    { whenVolatile: 'x' as 'warn' },
  ])('options of %j are refused', (options) => {
    expect(() => db.store(db.poolOf(url), options)).toThrow(Object.keys(options)[0])
  })
}
