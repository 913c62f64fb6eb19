import { expect, it } from 'vitest'
import { answered, claimOf, ids } from '../support/requests.ts'
import { freshTable, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** The caller's pool: the store takes few connections of it, and gives them back. */
export function poolCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  it('three connections at most are in use, under any load', async () => {
    const pool = db.poolOf(url, 20)
    let [inUse, most] = [0, 0]
    pool.on('acquire', () => {
      most = Math.max(most, ++inUse)
    })
    pool.on('release', () => {
      inUse--
    })
    const store = db.open(pool, freshTable())
    await Promise.all(
      ids(500).map(async (id) => {
        await store.claim(claimOf(id))
        await store.renew(id, 'mine', 60_000)
        await store.read(id)
        await store.settle(id, 'mine', answered)
        await store.list({ limit: 1 })
      }),
    )
    expect(most).toBeLessThanOrEqual(3)
    expect(inUse).toBe(0)
  })

  it('a pool of one connection serves claims, settles, waiters and transactions', async () => {
    const store = db.open(db.poolOf(url, 1), freshTable())
    await Promise.all(
      ids(50).map(async (id) => {
        await store.claim(claimOf(id))
        const waited = store.waitFor?.(id, new AbortController().signal)
        expect(await store.settle(id, 'mine', answered)).toBe(true)
        await waited
      }),
    )
    const ends = await Promise.all(ids(20).map((id) => store.transaction(claimOf(`tx ${id}`), async () => answered)))
    expect(ends.filter(({ state }) => state === 'committed')).toHaveLength(20)
  })

  it('a pool whose connections are all held by others is reported, and nothing is left behind', async () => {
    const pool = db.poolOf(url, 2)
    const store = db.open(pool, freshTable(), { callMsMax: 300 })
    await store.claim(claimOf('a'))
    const held = await Promise.all([db.borrow(pool), db.borrow(pool)])
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/pool gave no connection/),
    })
    for (const connection of held) connection.release()
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    await expect.poll(() => db.isIdle(pool)).toBe(true)
  })

  it('a queue that is full refuses, and what was accepted is done', async () => {
    const store = db.open(db.poolOf(url), freshTable())
    const accepted = Array.from({ length: 10_000 }, () => store.read('absent'))
    await expect(store.read('absent')).rejects.toMatchObject({ code: 'store-full' })
    expect(await Promise.all(accepted)).toHaveLength(10_000)
    expect(await store.read('absent')).toBeUndefined()
  })

  it('close leaves the pool open, and gives every connection back', async () => {
    const pool = db.poolOf(url)
    const store = db.store(pool, { table: freshTable() })
    await store.claim(claimOf('a'))
    await store.close()
    expect(await db.isIdle(pool)).toBe(true)
    expect(await db.rows(pool, 'SELECT 1 AS one')).toEqual([{ one: 1 }])
  })
}
