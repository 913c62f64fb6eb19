import type { Pool, RowDataPacket } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import { batchCases } from '../../../test/sql-cases/batches.ts'
import { poolCases } from '../../../test/sql-cases/pool.ts'
import { sweepCases } from '../../../test/sql-cases/sweep.ts'
import {
  answered,
  claimOf,
  freshTable,
  HOUR_MS,
  ids,
  lent,
  mysqlDialect,
  open,
  poolOf,
  watched,
} from '../../../test/support/mysql.ts'
import { useService } from '../../../test/support/service.ts'

const { url, missing } = await useService('mariadb')

const rowOf = async (pool: Pool, table: string, id: string) =>
  (await pool.query<RowDataPacket[]>(`SELECT * FROM ${table} WHERE id = ?`, [id]))[0][0]

describe.skipIf(url === '')(`group commit${missing}`, () => {
  batchCases(mysqlDialect, url)

  it('replays of the same moment share two: one that finds them taken, one that reads them', async () => {
    const { pool, statements } = watched(url)
    const store = open(pool, freshTable())
    await Promise.all(ids(100).map((id) => store.claim(claimOf(id))))
    await Promise.all(ids(100).map((id) => store.settle(id, 'mine', answered)))
    statements.length = 0
    const replays = await Promise.all(ids(100).map((id) => store.claim(claimOf(id, { token: 'other' }))))
    expect(replays.filter(({ state }) => state === 'settled')).toHaveLength(100)
    expect(statements).toHaveLength(2)
  })

  it.each([[['-FOUND_ROWS']], [['+FOUND_ROWS']]])(
    'of a mixed batch each has its own reply, with flags %j',
    async (flags) => {
      const pool = poolOf(url, { flags })
      const store = open(pool, freshTable())
      for (const id of ['running', 'settled', 'unknown', 'taken', 'gone', 'mine']) {
        await store.claim(
          claimOf(id, { token: `owner of ${id}`, ...(id === 'gone' && { leaseMs: 1, unknownTtlMs: 0 }) }),
        )
      }
      await store.settle('settled', 'owner of settled', answered)
      await store.renew('unknown', 'owner of unknown', 0)
      await store.renew('taken', 'owner of taken', 0)
      await expect.poll(() => store.read('gone')).toBeUndefined()
      const all = ['running', 'new', 'settled', 'unknown', 'taken', 'gone', 'mine', 'new']
      const claims = await Promise.all(
        all.map((id, index) =>
          store.claim(
            claimOf(id, {
              token: id === 'mine' ? 'owner of mine' : `t${index}`,
              takeover: id === 'taken',
              leaseMs: 9_000,
            }),
          ),
        ),
      )
      expect(claims).toMatchObject([
        { state: 'running' },
        { state: 'acquired', attempt: 1 },
        { state: 'settled', answer: answered.answer },
        { state: 'unknown' },
        { state: 'acquired', attempt: 2 },
        { state: 'acquired', attempt: 1 },
        { state: 'acquired', attempt: 1 },
        { state: 'running', fingerprint: 'same' },
      ])
      const settles = await Promise.all([
        store.settle('running', 'another', answered),
        store.settle('taken', 'owner of taken', answered),
        store.settle('taken', 't4', { ...answered, outcome: 'rejected' }),
        store.settle('settled', 'owner of settled', { ...answered, outcome: 'rejected' }),
        store.settle('gone', 't5', { ...answered, ttlMs: 0 }),
        store.settle('absent', 'any', answered),
        store.renew('mine', 'owner of mine', HOUR_MS),
        store.renew('mine', 'owner of mine', HOUR_MS),
        store.settle('mine', 'owner of mine', answered),
        store.settle('mine', 'owner of mine', { ...answered, outcome: 'rejected' }),
        store.release('mine', 'owner of mine'),
      ])
      expect(settles).toEqual([false, false, true, true, true, false, true, true, true, true, false])
      expect(await store.read('taken')).toMatchObject({ state: 'settled', outcome: 'rejected', attempt: 2 })
      expect(await store.read('settled')).toMatchObject({ outcome: 'committed' })
      expect(await store.read('mine')).toMatchObject({ outcome: 'committed' })
      expect(await store.read('running')).toMatchObject({ state: 'running' })
    },
  )

  it('a takeover replaces the token and the lease, and keeps when the record began and its labels', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a', { labels: { by: 'first' } }))
    await store.renew('a', 'mine', 0)
    const before = await rowOf(pool, table, 'a')
    await store.claim(claimOf('a', { token: 'taker', takeover: true, labels: { by: 'taker' } }))
    const after = await rowOf(pool, table, 'a')
    expect(after).toMatchObject({ attempt: 2, created_at: before?.created_at, labels: '{"by":"first"}' })
    expect(String(after?.token)).toBe('taker')
    expect(after?.lease_until.getTime()).toBeGreaterThan(before?.lease_until.getTime())
    expect(after?.gone_at.getTime() - after?.lease_until.getTime()).toBe(HOUR_MS)
    expect(after?.sweep_at).toEqual(after?.gone_at)
  })

  it('a batch waits for no record but its own', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table, { callMsMax: 900 })
    await Promise.all(ids(10).map((id) => store.claim(claimOf(id))))
    const holder = await lent(pool)
    await holder.query('START TRANSACTION')
    await holder.query(`SELECT 1 FROM ${table} WHERE id = 'id-5' FOR UPDATE`)
    const others = ids(10).filter((id) => id !== 'id-5')
    const settles = await Promise.all(others.map((id) => store.settle(id, 'mine', answered)))
    expect(settles).toEqual(others.map(() => true))
    const claims = await Promise.all(others.map((id) => store.claim(claimOf(id, { token: 'other' }))))
    expect(claims.map(({ state }) => state)).toEqual(others.map(() => 'settled'))
  })

  it('strings that have no bytes of their own stay apart and come back', async () => {
    const store = open(poolOf(url), freshTable())
    const odd = ['\ud800', '\ud801', '\ufffd', '\u0001"\\ud800"', 'nul\0', '']
    for (const id of odd) expect(await store.claim(claimOf(id, { token: id }))).toMatchObject({ state: 'acquired' })
    for (const id of odd) expect(await store.read(id)).toMatchObject({ id, state: 'running' })
    expect(await store.settle('\ud800', '\ud801', answered)).toBe(false)
  })

  it('claims, settles, releases and sweeps of the same rows, from four sides, meet no deadlock that is seen', async () => {
    const table = freshTable()
    const stores = ids(4).map(() => open(poolOf(url), table))
    let owners = 0
    await Promise.all(
      stores.map(async (store, side) => {
        for (let round = 0; round < 30; round++) {
          await Promise.all(
            ids(20).map(async (id, index) => {
              const token = `${side} ${round}`
              const claim = await store.claim(claimOf(id, { token, takeover: true, leaseMs: 1, unknownTtlMs: 1 }))
              if (claim.state !== 'acquired') return
              owners++
              if (index % 2 === 0) await store.settle(id, token, { ...answered, ttlMs: 1, expiredTtlMs: 1 })
              else await store.release(id, token)
            }),
          )
          await store.sweep(50)
        }
      }),
    )
    expect(owners).toBeGreaterThan(100)
  })
})

/** Lets something happen just before the pool first reads a record; resolves when it has. */
function beforeFirstReading(pool: Pool, act: () => Promise<unknown>): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  let readings = 0
  pool.pool.on('connection', (connection) => {
    const query = connection.query.bind(connection) as (...args: unknown[]) => unknown
    const held = (...args: unknown[]): void => {
      const { sql } = args[0] as { sql: string }
      if (!/^\s*SELECT.*WHERE id IN/s.test(sql) || readings++ > 0) query(...args)
      else {
        void act().then(() => {
          resolve()
          query(...args)
        })
      }
    }
    Object.assign(connection, { query: held })
  })
  return promise
}

describe.skipIf(url === '')(
  `what changes between the decision of a claim and the reading of the record${missing}`,
  () => {
    const PAST = 'UTC_TIMESTAMP(3) - INTERVAL 1 SECOND'
    it.each([
      ['its lease lapses', `UPDATE t SET lease_until = ${PAST}`, { state: 'acquired', attempt: 2 }],
      ['it is removed', 'DELETE FROM t', { state: 'acquired', attempt: 1 }],
      ['it goes', `UPDATE t SET gone_at = ${PAST}`, { state: 'acquired', attempt: 1 }],
      [
        'it is settled',
        `UPDATE t SET outcome = 'rejected', expires_at = gone_at, headers = '[]'`,
        { state: 'settled' },
      ],
      ['it becomes the own one', `UPDATE t SET token = 'second'`, { state: 'acquired', attempt: 1 }],
    ])('%s', async (_what, change, expected) => {
      const table = freshTable()
      const [direct, pool] = [poolOf(url), poolOf(url)]
      await open(direct, table).claim(claimOf('a'))
      const meanwhile = beforeFirstReading(pool, () => direct.query(change.replace(/\bt\b/, table)))
      const store = open(pool, table)
      const claim = await store.claim(claimOf('a', { token: 'second', takeover: true }))
      expect(claim).toMatchObject(expected)
      await meanwhile
      if (claim.state === 'acquired') expect(await store.settle('a', 'second', answered)).toBe(true)
    })

    it('it was taken over, and from the taker too: the taker is told who has it', async () => {
      const table = freshTable()
      const [direct, pool] = [poolOf(url), poolOf(url)]
      const other = open(direct, table)
      await other.claim(claimOf('a'))
      await other.renew('a', 'mine', 0)
      const meanwhile = beforeFirstReading(pool, async () => {
        await direct.query(`UPDATE ${table} SET lease_until = ${PAST}`)
        await other.claim(claimOf('a', { token: 'third', takeover: true }))
      })
      const store = open(pool, table)
      expect(await store.claim(claimOf('a', { token: 'second', takeover: true }))).toMatchObject({ state: 'running' })
      await meanwhile
      expect(await store.settle('a', 'second', answered)).toBe(false)
      expect(await other.settle('a', 'third', answered)).toBe(true)
      expect(await other.read('a')).toMatchObject({ attempt: 3 })
    })
  },
)

describe.skipIf(url === '')(`the caller's pool${missing}`, () => {
  poolCases(mysqlDialect, url)

  it('with autocommit off is refused: nothing would be committed', async () => {
    const pool = poolOf(url, { connectionLimit: 1 })
    await pool.query('SET autocommit = 0')
    await expect(open(pool, freshTable()).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringMatching(/autocommit is off/),
    })
  })

  it('a connection that was given back inside a transaction is never trusted', async () => {
    const table = freshTable()
    const pool = poolOf(url, { connectionLimit: 1 })
    const store = open(pool, table)
    await store.claim(claimOf('first'))
    for (const verb of [
      () => store.claim(claimOf('a')),
      () => store.settle('first', 'mine', answered),
      () => store.transaction(claimOf('b'), async () => answered),
    ]) {
      await pool.query('START TRANSACTION')
      await expect(verb()).rejects.toMatchObject({ message: expect.stringMatching(/has a transaction open/) })
    }
    expect(await store.read('a')).toBeUndefined()
    expect(await store.settle('first', 'mine', answered)).toBe(true)
    expect(await open(poolOf(url), table).read('first')).toMatchObject({ state: 'settled' })
  })
})

describe.skipIf(url === '')(`sweep${missing}`, () => {
  sweepCases(mysqlDialect, url)
})
