import { types } from 'pg'
import { describe, expect, it } from 'vitest'
import { batchCases } from '../../../test/sql-cases/batches.ts'
import { poolCases } from '../../../test/sql-cases/pool.ts'
import { sweepCases } from '../../../test/sql-cases/sweep.ts'
import {
  answered,
  claimOf,
  freshTable,
  ids,
  lent,
  open,
  poolOf,
  postgresDialect,
  watched,
} from '../../../test/support/postgres.ts'
import { useService } from '../../../test/support/service.ts'

const { url, missing } = await useService('postgres')

describe.skipIf(url === '')(`group commit${missing}`, () => {
  batchCases(postgresDialect, url)

  it('claims are tried as new ones first, while they mostly are', async () => {
    const { pool, statements } = watched(url)
    const store = open(pool, freshTable())
    const asked = async (wanted: readonly string[], owner: string): Promise<readonly [number, readonly string[]]> => {
      statements.length = 0
      const claims = await Promise.all(wanted.map((id) => store.claim(claimOf(id, { token: `${owner} of ${id}` }))))
      const states = new Set(claims.map(({ state }) => state))
      return [statements.filter(({ text }) => text.includes('INSERT INTO')).length, [...states]]
    }
    await store.claim(claimOf('first'))
    expect(await asked(ids(10), 'first owner')).toEqual([1, ['acquired']])
    // Two are asked again with the same tokens, as after a lost reply: they are known, and their own.
    expect(await asked(ids(20).slice(8), 'first owner')).toEqual([2, ['acquired']])
    expect(await asked(ids(20), 'another')).toEqual([2, ['running']])
    expect(await asked(ids(20), 'another')).toEqual([1, ['running']])
    expect(await asked(ids(40).slice(20), 'another')).toEqual([1, ['acquired']])
  })

  it('statements are prepared on a direct connection, renewed as the table grows, and none is left behind', async () => {
    const { pool, statements } = watched(url, { max: 1 })
    const store = open(pool, freshTable())
    for (const id of ids(300)) {
      await store.claim(claimOf(id))
      await store.settle(id, 'mine', answered)
    }
    const names = new Set(statements.flatMap(({ name }) => name ?? []))
    expect(names.size).toBeGreaterThan(4)
    const { rows } = await pool.query(`SELECT name FROM pg_prepared_statements WHERE name LIKE 'oncekey_%'`)
    expect(rows).toHaveLength(2)
    await pool.query('DEALLOCATE ALL')
    expect(await store.claim(claimOf('after'))).toMatchObject({ state: 'acquired' })
  })

  it('strings that PostgreSQL cannot hold come back as they were', async () => {
    const store = open(poolOf(url), freshTable())
    const odd = ['nul \0 inside', 'lone \ud800 surrogate', '\u0001"escaped"', 'NULL', 'null', '', '{}', 'a,b']
    for (const text of odd) {
      const labels = { [text]: text }
      expect(await store.claim(claimOf(text, { token: text, fingerprint: text, labels }))).toMatchObject({ attempt: 1 })
    }
    for (const text of odd) {
      expect(await store.read(text)).toMatchObject({ id: text, fingerprint: text, labels: { [text]: text } })
      const headers = [['x-odd', text]] as const
      expect(await store.settle(text, text, { ...answered, answer: { ...answered.answer, headers } })).toBe(true)
      expect(await store.claim(claimOf(text))).toMatchObject({ state: 'settled', answer: { headers } })
    }
  })

  it("the program's own type parsers and the server's formats do not matter", async () => {
    const original = types.getTypeParser(types.builtins.INT8)
    types.setTypeParser(types.builtins.INT8, BigInt as unknown as (value: string) => unknown)
    try {
      const options = '-c bytea_output=escape -c datestyle=German -c timezone=Asia/Kolkata -c extra_float_digits=-10'
      const store = open(poolOf(url, { options }), freshTable())
      const body = Uint8Array.from({ length: 256 }, (_, index) => index)
      await store.claim(claimOf('a'))
      await store.settle('a', 'mine', { ...answered, answer: { ...answered.answer, body } })
      const record = await store.read('a')
      expect(record?.state === 'settled' && Buffer.compare(record.answer.body ?? Buffer.of(), body)).toBe(0)
      expect(typeof record?.goneAt).toBe('number')
      expect(record && record.goneAt - record.createdAt).toBeGreaterThanOrEqual(answered.ttlMs)
    } finally {
      types.setTypeParser(types.builtins.INT8, original)
    }
  })

  it.each(['repeatable read', 'serializable'])(
    'X1: one owner also where the default isolation is %s',
    async (level) => {
      const table = freshTable()
      const options = `-c default_transaction_isolation=${level.replace(' ', '\\ ')}`
      const stores = [open(poolOf(url, { options }), table), open(poolOf(url, { options }), table)]
      for (const id of ids(10)) {
        const claims = await Promise.all(
          Array.from({ length: 40 }, (_, i) => stores[i % 2]?.claim(claimOf(id, { token: `t${i}` }))),
        )
        expect(claims.filter((claim) => claim?.state === 'acquired')).toHaveLength(1)
        const winner = claims.findIndex((claim) => claim?.state === 'acquired')
        const settles = await Promise.all(claims.map((_, i) => stores[i % 2]?.settle(id, `t${i}`, answered)))
        expect(settles.indexOf(true)).toBe(winner)
      }
    },
  )
})

describe.skipIf(url === '')(`the caller's pool${missing}`, () => {
  poolCases(postgresDialect, url)

  it.each([1, 2])('pool of %i: a settle is done while a claim waits for an open transaction', async (max) => {
    const pool = poolOf(url, { max })
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('other'))
    const onlooker = poolOf(url)
    const outside = await lent(onlooker)
    await outside.query('BEGIN')
    await outside.query(`INSERT INTO ${table} SELECT 'held', token, fingerprint, attempt, created_at, lease_until, gone_at, sweep_at
      FROM ${table} WHERE id = 'other'`)
    const order: string[] = []
    const claim = async () => order.push((await store.claim(claimOf('held'))).state)
    const settle = async () => order.push(`settled ${await store.settle('other', 'mine', answered)}`)
    const claiming = claim()
    await expect.poll(() => postgresDialect.waitingOn(onlooker, table), { interval: 5 }).toBe(1)
    await Promise.all([claiming, settle()])
    // With one connection the settle has to wait for it, but not for the transaction's end.
    expect(order).toEqual(max === 1 ? ['running', 'settled true'] : ['settled true', 'running'])
    await outside.query('ROLLBACK')
    expect(await store.claim(claimOf('held'))).toMatchObject({ state: 'acquired' })
  })

  it('a record that all can see is told as it is, although somebody is changing it', async () => {
    const table = freshTable()
    const store = open(poolOf(url), table)
    for (const id of ['answered', 'running']) await store.claim(claimOf(id))
    await store.settle('answered', 'mine', answered)
    const outside = await lent(poolOf(url))
    await outside.query(`BEGIN; UPDATE ${table} SET labels = '{}'`)
    const claims = ['answered', 'running', 'new'].map((id) =>
      store.claim(claimOf(id, { token: 't', fingerprint: 'f' })),
    )
    expect(await Promise.all(claims)).toMatchObject([
      { state: 'settled', fingerprint: 'same' },
      { state: 'running', fingerprint: 'same' },
      { state: 'acquired' },
    ])
    await outside.query('ROLLBACK')
  })

  it('one claim that is held by an open transaction does not hold up its batch for long, nor fail it', async () => {
    const table = freshTable()
    const store = open(poolOf(url), table)
    await store.claim(claimOf('first'))
    const outside = await lent(poolOf(url))
    await outside.query('BEGIN')
    await outside.query(`INSERT INTO ${table} SELECT 'id-37', token, fingerprint, attempt, created_at, lease_until, gone_at, sweep_at
      FROM ${table} WHERE id = 'first'`)
    const claims = await Promise.all(ids(100).map((id) => store.claim(claimOf(id))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(99)
    expect(claims[37]).toMatchObject({ state: 'running' })
  })
})

describe.skipIf(url === '')(`sweep${missing}`, () => {
  sweepCases(postgresDialect, url)

  it('comes again to a record whose lease was renewed, and to one that was settled for longer', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await Promise.all(ids(2).map((id) => store.claim(claimOf(id))))
    await store.renew('id-0', 'mine', 3_600_000)
    await store.settle('id-1', 'mine', { ...answered, ttlMs: 3_600_000, expiredTtlMs: 0 })
    await pool.query(`UPDATE ${table} SET sweep_at = now() - interval '1 s'`)
    expect(await store.sweep()).toBe(0)
    expect((await store.list()).map(({ state }) => state)).toEqual(['running', 'settled'])
    const { rows } = await pool.query(`SELECT bool_and(sweep_at = gone_at) AS is_later FROM ${table}`)
    expect(rows).toEqual([{ is_later: true }])
  })

  it('finds what is gone behind what is only due', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await Promise.all(ids(7).map((id) => store.claim(claimOf(id))))
    await pool.query(`UPDATE ${table} SET sweep_at = now() - interval '1 h' WHERE id < 'id-5'`)
    await pool.query(`UPDATE ${table} SET sweep_at = gone_at - interval '1 d', gone_at = now() WHERE id >= 'id-5'`)
    expect(await store.sweep(1)).toBe(1)
    expect(await store.sweep(2)).toBe(1)
    expect(await store.sweep(2)).toBe(0)
    expect((await pool.query(`SELECT FROM ${table}`)).rowCount).toBe(5)
  })

  it('its time is left alone by a settle when it is soon enough, so that no index has to be written', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await Promise.all(ids(3).map((id) => store.claim(claimOf(id, { leaseMs: 30_000, unknownTtlMs: 86_400_000 }))))
    const { rows: before } = await pool.query(`SELECT sweep_at FROM ${table} ORDER BY id`)
    await store.settle('id-0', 'mine', { ...answered, ttlMs: 86_400_000, expiredTtlMs: 0 })
    await store.settle('id-1', 'mine', { ...answered, ttlMs: 60_000, expiredTtlMs: 0 })
    await store.settle('id-2', 'mine', { ...answered, ttlMs: 172_800_000, expiredTtlMs: 86_400_000 })
    const { rows: after } = await pool.query(`SELECT sweep_at, expires_at FROM ${table} ORDER BY id`)
    expect(after.map(({ sweep_at }, at) => sweep_at.getTime() === before[at].sweep_at.getTime())).toEqual([
      true,
      false,
      false,
    ])
    expect(after[1].sweep_at).toEqual(after[1].expires_at)
    expect(after[2].sweep_at).toEqual(after[2].expires_at)
  })
})
