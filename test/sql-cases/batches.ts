import { expect, it } from 'vitest'
import { answered, claimOf, HOUR_MS, ids } from '../support/requests.ts'
import { freshTable, type SqlDialect, type SqlPool, type Statement } from '../support/sql.ts'

/** Group commit: operations of the same moment share a statement, and none suffers from it. */
export function batchCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  it('operations of the same moment share one statement', async () => {
    const { pool, statements } = db.watched(url)
    const table = freshTable()
    const store = db.open(pool, table)
    await store.claim(claimOf('first'))
    statements.length = 0
    const claims = await Promise.all(ids(100).map((id) => store.claim(claimOf(id))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(100)
    expect(on(table, statements)).toHaveLength(1)
    const settles = await Promise.all(ids(100).map((id) => store.settle(id, 'mine', answered)))
    expect(settles.filter((isDone) => isDone)).toHaveLength(100)
    expect(on(table, statements)).toHaveLength(2)
  })

  it('an operation that comes alone is one statement at once, and one round trip', async () => {
    const { pool, statements } = db.watched(url, 1)
    const store = db.open(pool, freshTable())
    await store.claim(claimOf('first'))
    statements.length = 0
    for (const id of ids(5)) await store.claim(claimOf(id))
    for (const id of ids(5)) await store.renew(id, 'mine', HOUR_MS)
    for (const id of ids(4)) await store.settle(id, 'mine', answered)
    await store.release('id-4', 'mine')
    expect(statements).toHaveLength(15)
  })

  it('with batching off each operation is a statement of its own', async () => {
    const { pool, statements } = db.watched(url)
    const table = freshTable()
    const store = db.open(pool, table, { batchMax: 1, inFlightMax: 4 })
    await store.claim(claimOf('first'))
    statements.length = 0
    await Promise.all(ids(20).map((id) => store.claim(claimOf(id))))
    expect(on(table, statements)).toHaveLength(20)
  })

  it('a replay writes nothing, nor leaves the mark of a lock', async () => {
    const pool = db.poolOf(url)
    const table = freshTable()
    const store = db.open(pool, table)
    await store.claim(claimOf('a'))
    const running = await db.rowOf(pool, table, 'a')
    await Promise.all(ids(50).map((token) => store.claim(claimOf('a', { token }))))
    expect(await db.rowOf(pool, table, 'a')).toEqual(running)
    await store.settle('a', 'mine', answered)
    const settled = await db.rowOf(pool, table, 'a')
    const replies = await Promise.all(ids(50).map((token) => store.claim(claimOf('a', { token }))))
    expect(replies.filter(({ state }) => state === 'settled')).toHaveLength(50)
    expect(await db.rowOf(pool, table, 'a')).toEqual(settled)
  })

  it('an operation that cannot work does not harm those of its batch', async () => {
    const store = db.open(db.poolOf(url), freshTable())
    const claims = await Promise.allSettled(['a', db.impossible.id, 'b', 'c'].map((id) => store.claim(claimOf(id))))
    expect(claims.map((claim) => (claim.status === 'fulfilled' ? claim.value.state : claim.reason.code))).toEqual([
      'acquired',
      'config-invalid',
      'acquired',
      'acquired',
    ])
    const impossible = { ...answered, answer: { ...answered.answer, status: db.impossible.status } }
    const settles = await Promise.allSettled([
      store.settle('a', 'mine', answered),
      store.settle('b', 'mine', impossible),
      store.settle('c', 'mine', answered),
    ])
    expect(settles).toMatchObject([{ value: true }, { reason: { code: 'config-invalid' } }, { value: true }])
    expect(await store.read('b')).toMatchObject({ state: 'running' })
    expect(await store.settle('b', 'mine', answered)).toBe(true)
  })

  it('claims of the same ids in every order, from two sides, each have one owner, and are never at a deadlock', async () => {
    const table = freshTable()
    const stores = [db.open(db.poolOf(url), table), db.open(db.poolOf(url), table)]
    for (let round = 0; round < 10; round++) {
      const of = ids(50).map((id) => `${round} ${id}`)
      const claims = await Promise.all([
        ...of.map((id) => stores[0]?.claim(claimOf(id, { token: 'one' }))),
        ...of.reverse().map((id) => stores[1]?.claim(claimOf(id, { token: 'two' }))),
      ])
      expect(claims.filter((claim) => claim?.state === 'acquired')).toHaveLength(50)
    }
  })
}

/** Those about records. Others are about a connection: when it is new, or has a prepared statement too many. */
const on = (table: string, statements: readonly Statement[]): readonly Statement[] =>
  statements.filter(({ text }) => text.includes(table))
