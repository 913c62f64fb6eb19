import type { Pool, RowDataPacket } from 'mysql2/promise'
import { afterAll, describe, expect, it } from 'vitest'
import { findService } from '../../../test/services/index.ts'
import { answered, claimOf, freshTable, HOUR_MS, lent, open, poolOf, watched } from '../../../test/support/mysql.ts'
import { mysqlStore } from '../mysql.ts'

const service = await findService('mariadb')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
afterAll(async () => {
  if (typeof service !== 'string') await service.stop()
})

const PATIENT = { timeout: 10_000, interval: 10 }
const ids = (count: number): string[] => Array.from({ length: count }, (_, index) => `id-${index}`)
const rowOf = async (pool: Pool, table: string, id: string) =>
  (await pool.query<RowDataPacket[]>(`SELECT * FROM ${table} WHERE id = ?`, [id]))[0][0]
const statesOf = (settled: PromiseSettledResult<unknown>[]): unknown[] =>
  settled.map((each) => (each.status === 'fulfilled' ? each.value : each.reason.code))

describe.skipIf(url === '')(`group commit${missing}`, () => {
  it('operations of the same moment share one statement', async () => {
    const { pool, statements } = watched(url)
    const store = open(pool, freshTable())
    await store.claim(claimOf('first'))
    statements.length = 0
    const claims = await Promise.all(ids(100).map((id) => store.claim(claimOf(id))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(100)
    expect(statements).toHaveLength(1)
    const settles = await Promise.all(ids(100).map((id) => store.settle(id, 'mine', answered)))
    expect(settles.filter((isDone) => isDone)).toHaveLength(100)
    expect(statements).toHaveLength(2)
    const replays = await Promise.all(ids(100).map((id) => store.claim(claimOf(id, { token: 'other' }))))
    expect(replays.filter(({ state }) => state === 'settled')).toHaveLength(100)
    expect(statements).toHaveLength(4)
  })

  it('an operation that comes alone is one statement at once, and one round trip', async () => {
    const { pool, statements } = watched(url, { connectionLimit: 1 })
    const store = open(pool, freshTable())
    await store.claim(claimOf('first'))
    statements.length = 0
    for (const id of ids(5)) await store.claim(claimOf(id))
    for (const id of ids(5)) await store.renew(id, 'mine', HOUR_MS)
    for (const id of ids(4)) await store.settle(id, 'mine', answered)
    await store.release('id-4', 'mine')
    expect(statements).toHaveLength(15)
  })

  it('with batching off each operation is a statement of its own', async () => {
    const { pool, statements } = watched(url)
    const store = open(pool, freshTable(), { batchMax: 1, inFlightMax: 4 })
    await store.claim(claimOf('first'))
    statements.length = 0
    await Promise.all(ids(20).map((id) => store.claim(claimOf(id))))
    expect(statements).toHaveLength(20)
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
      await expect.poll(() => store.read('gone'), PATIENT).toBeUndefined()
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

  it('a replay writes nothing', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    const running = await rowOf(pool, table, 'a')
    await Promise.all(ids(50).map((token) => store.claim(claimOf('a', { token }))))
    expect(await rowOf(pool, table, 'a')).toEqual(running)
    await store.settle('a', 'mine', answered)
    const settled = await rowOf(pool, table, 'a')
    const replies = await Promise.all(ids(50).map((token) => store.claim(claimOf('a', { token }))))
    expect(replies.filter(({ state }) => state === 'settled')).toHaveLength(50)
    expect(await rowOf(pool, table, 'a')).toEqual(settled)
  })

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

  it('an operation that cannot work does not harm those of its batch', async () => {
    const store = open(poolOf(url), freshTable())
    const claims = await Promise.allSettled(['a', 'x'.repeat(1_025), 'b'].map((id) => store.claim(claimOf(id))))
    expect(statesOf(claims)).toMatchObject([{ state: 'acquired' }, 'config-invalid', { state: 'acquired' }])
    const wild = { ...answered, answer: { ...answered.answer, status: 1e15 } }
    const settles = await Promise.allSettled([store.settle('a', 'mine', answered), store.settle('b', 'mine', wild)])
    expect(statesOf(settles)).toEqual([true, 'config-invalid'])
    expect(await store.settle('b', 'mine', answered)).toBe(true)
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

  it('claims of the same ids in every order, from two sides, each have one owner', async () => {
    const table = freshTable()
    const stores = [open(poolOf(url), table), open(poolOf(url), table)]
    for (let round = 0; round < 10; round++) {
      const of = ids(50).map((id) => `${round} ${id}`)
      const claims = await Promise.all([
        ...of.map((id) => stores[0]?.claim(claimOf(id, { token: 'one' }))),
        ...of.reverse().map((id) => stores[1]?.claim(claimOf(id, { token: 'two' }))),
      ])
      expect(claims.filter((claim) => claim?.state === 'acquired')).toHaveLength(50)
    }
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
  it('three connections at most are in use, under any load', async () => {
    const pool = poolOf(url, { connectionLimit: 20 })
    let [inUse, most] = [0, 0]
    pool.on('acquire', () => {
      most = Math.max(most, ++inUse)
    })
    pool.on('release', () => {
      inUse--
    })
    const store = open(pool, freshTable())
    await Promise.all(
      ids(300).map(async (id) => {
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
    const store = open(poolOf(url, { connectionLimit: 1 }), freshTable())
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
    const pool = poolOf(url, { connectionLimit: 2 })
    const store = open(pool, freshTable(), { callMsMax: 300 })
    await store.claim(claimOf('a'))
    const held = await Promise.all([pool.getConnection(), pool.getConnection()])
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/pool gave no connection/),
    })
    for (const connection of held) connection.release()
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    const both = await Promise.all([pool.getConnection(), pool.getConnection()])
    for (const connection of both) connection.release()
  })

  it('a queue that is full refuses, and what was accepted is done', async () => {
    const store = open(poolOf(url), freshTable())
    const accepted = Array.from({ length: 10_000 }, () => store.read('absent'))
    await expect(store.read('absent')).rejects.toMatchObject({ code: 'store-full' })
    expect(await Promise.all(accepted)).toHaveLength(10_000)
    expect(await store.read('absent')).toBeUndefined()
  })

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

  it('close leaves the pool open', async () => {
    const pool = poolOf(url)
    const store = mysqlStore(pool, { table: freshTable() })
    await store.claim(claimOf('a'))
    await store.close()
    expect((await pool.query('SELECT 1 AS one'))[0]).toEqual([{ one: 1 }])
  })
})

describe.skipIf(url === '')(`sweep${missing}`, () => {
  const brief = { leaseMs: 1, unknownTtlMs: 0 }
  const sizeOf = async (pool: Pool, table: string): Promise<number> =>
    Number((await pool.query<RowDataPacket[]>(`SELECT COUNT(*) AS n FROM ${table}`))[0][0]?.n)

  it('waits for nobody: a row that somebody holds is left for the next time', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await Promise.all(ids(10).map((id) => store.claim(claimOf(id, brief))))
    await expect.poll(() => store.list(), PATIENT).toEqual([])
    const holder = await lent(pool)
    await holder.query('START TRANSACTION')
    await holder.query(`SELECT 1 FROM ${table} WHERE id = 'id-3' FOR UPDATE`)
    expect(await store.sweep()).toBe(9)
    await holder.query('ROLLBACK')
    expect(await store.sweep()).toBe(1)
  })

  it('happens by itself, in the background', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table, { sweepEveryMs: 20 })
    await Promise.all(ids(500).map((id) => store.claim(claimOf(id, brief))))
    await expect.poll(() => sizeOf(pool, table), PATIENT).toBe(0)
  })

  it('frees the body of an answer that has expired, and keeps the rest', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    await store.settle('a', 'mine', { ...answered, ttlMs: 1, expiredTtlMs: HOUR_MS })
    await expect.poll(async () => (await store.read('a'))?.state, PATIENT).toBe('expired')
    expect(await rowOf(pool, table, 'a')).toMatchObject({ body: Buffer.from('done') })
    expect(await store.sweep()).toBe(0)
    expect(await rowOf(pool, table, 'a')).toMatchObject({ body: null, headers: null, status: 201 })
    expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'expired', fingerprint: 'same' })
  })
})
