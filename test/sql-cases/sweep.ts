import { expect, it } from 'vitest'
import { answered, claimOf, HOUR_MS, ids } from '../support/requests.ts'
import { freshTable, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** What is gone is removed, beside everything else. */
export function sweepCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  const brief = { leaseMs: 1, unknownTtlMs: 0 }

  it('waits for nobody: a row that somebody holds is left for the next time', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table)
    await Promise.all(ids(10).map((id) => store.claim(claimOf(id, brief))))
    await expect.poll(() => store.list()).toEqual([])
    const holder = await db.lent(pool)
    await holder.query('START TRANSACTION')
    await holder.query(`SELECT 1 FROM ${table} WHERE id = 'id-3' FOR UPDATE`)
    expect(await store.sweep()).toBe(9)
    await holder.query('ROLLBACK')
    expect(await store.sweep()).toBe(1)
  })

  it('happens by itself, in the background', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table, { sweepEveryMs: 20 })
    await Promise.all(ids(500).map((id) => store.claim(claimOf(id, brief))))
    await expect.poll(() => db.rows(pool, `SELECT id FROM ${table}`)).toEqual([])
  })

  it('frees the body of an answer that has expired, and keeps the rest', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table)
    await store.claim(claimOf('a'))
    await store.settle('a', 'mine', { ...answered, ttlMs: 1, expiredTtlMs: HOUR_MS })
    await expect.poll(async () => (await store.read('a'))?.state).toBe('expired')
    expect(await db.rowOf(pool, table, 'a')).toMatchObject({ body: Buffer.from('done') })
    expect(await store.sweep()).toBe(0)
    expect(await db.rowOf(pool, table, 'a')).toMatchObject({ body: null, headers: null, status: 201 })
    expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'expired', fingerprint: 'same' })
  })
}
