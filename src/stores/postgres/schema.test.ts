import type { Pool } from 'pg'
import { afterAll, describe, expect, it } from 'vitest'
import { findService } from '../../../test/services/index.ts'
import {
  answered,
  claimOf,
  freshTable,
  open,
  poolOf,
  processWarnings,
  watched,
} from '../../../test/support/postgres.ts'
import { postgresMigrations, postgresStore } from '../postgres.ts'

const service = await findService('postgres')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
afterAll(async () => {
  if (typeof service !== 'string') await service.stop()
})

const commentOf = async (pool: Pool, table: string) =>
  (await pool.query(`SELECT obj_description('${table}'::regclass) AS comment`)).rows[0].comment

describe.skipIf(url === '')(`the table${missing}`, () => {
  it('S9: is made once, however many stores start at the same moment', async () => {
    const table = freshTable()
    const stores = Array.from({ length: 50 }, () => open(poolOf(url, { max: 1 }), table))
    const claims = await Promise.all(stores.map((store, index) => store.claim(claimOf('a', { token: `t${index}` }))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
    expect(claims.filter(({ state }) => state === 'running')).toHaveLength(49)
  })

  it('may be in a schema, which is made when it is missing', async () => {
    const pool = poolOf(url)
    const table = `system_${freshTable()}.idempotency_keys`
    const store = open(pool, table)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    expect(await commentOf(pool, table)).toBe('oncekey schema 1')
    expect(await open(poolOf(url), table).read('a')).toMatchObject({ state: 'settled' })
  })

  it('is logged, and readable for operators', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a', { labels: { route: '/orders' } }))
    await store.settle('a', 'mine', answered)
    const { rows } = await pool.query(
      `SELECT relpersistence, id, fingerprint, attempt, outcome, status, labels->>'route' AS route,
         created_at <= now() AS created, expires_at > now() AS live, convert_from(body, 'UTF8') AS body, headers->0->>0 AS header
       FROM ${table}, pg_class WHERE oid = '${table}'::regclass`,
    )
    expect(rows).toEqual([
      {
        relpersistence: 'p',
        id: 'a',
        fingerprint: 'same',
        attempt: 1,
        outcome: 'committed',
        status: 201,
        route: '/orders',
        created: true,
        live: true,
        body: 'done',
        header: 'content-type',
      },
    ])
  })

  it('with migrate: false is not made; once the SQL was run by hand, the same store goes on', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table, { migrate: false })
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/is missing, and migrate is false.*postgresMigrations/s),
    })
    for (const step of postgresMigrations(table)) await pool.query(step)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await open(poolOf(url), table).read('a')).toMatchObject({ state: 'running' })
  })

  it('of a newer oncekey, or of another program, is left as it is', async () => {
    const pool = poolOf(url)
    const [newer, foreign] = [freshTable(), freshTable()]
    await pool.query(`CREATE TABLE ${newer} (a int); COMMENT ON TABLE ${newer} IS 'oncekey schema 99'`)
    await pool.query(`CREATE TABLE ${foreign} (a int)`)
    await expect(open(pool, newer).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/newer oncekey \(schema 99/),
    })
    await expect(open(pool, foreign).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/not oncekey's/),
    })
    expect((await pool.query(`SELECT * FROM ${newer}, ${foreign}`)).fields).toHaveLength(2)
  })

  it('dropped in the middle: the operation says so, the next one makes it anew', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    await pool.query(`DROP TABLE ${table}`)
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no such table/),
    })
    expect(await store.settle('a', 'mine', answered)).toBe(false)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a user without rights is told which are missing, and goes on when they are there', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const role = `r_${table}`
    await pool.query(`CREATE ROLE ${role} LOGIN`)
    const store = open(poolOf(url, { options: `-c role=${role}` }), table)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/rights/),
    })
    for (const step of postgresMigrations(table)) await pool.query(step)
    await pool.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${table} TO ${role}`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it.each(['', 'a.b.c', 'a"b', 'a;b', "a'b", '1a', 'a b', 'ä', 'x'.repeat(49)])('a name of %j is refused', (table) => {
    expect(() => postgresStore(watched(url).pool, { table })).toThrow(/table/)
    expect(() => postgresMigrations(table)).toThrow(/table/)
  })

  it.each([
    { batchMax: 0 },
    { inFlightMax: 1.5 },
    { callMsMax: Number.NaN },
    { sweepEveryMs: -1 },
    { whenVolatile: 'x' as 'warn' },
  ])('options of %j are refused', (options) => {
    expect(() => postgresStore(poolOf(url), options)).toThrow(Object.keys(options)[0])
  })
})

describe.skipIf(url === '')(`settings that lose records${missing}`, () => {
  const warningsWith = async (options: string, table = freshTable()): Promise<string[]> => {
    const warnings = processWarnings()
    const store = open(poolOf(url, { options }), table)
    await store.read('a')
    await store.read('a')
    await new Promise((resolve) => setImmediate(resolve))
    return warnings
  }

  it('none are reported where there are none', async () => {
    expect(await warningsWith('')).toEqual([])
  })

  it('synchronous_commit off is reported once, in plain words', async () => {
    expect(await warningsWith('-c synchronous_commit=off')).toEqual([
      expect.stringMatching(/^synchronous_commit is off: .*run a second time/),
    ])
  })

  it('they can be refused, or ignored', async () => {
    const warnings = processWarnings()
    const pool = poolOf(url, { options: '-c synchronous_commit=off' })
    await expect(open(pool, freshTable(), { whenVolatile: 'refuse' }).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringMatching(/synchronous_commit is off/),
    })
    const store = open(pool, freshTable(), { whenVolatile: 'ignore' })
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    await new Promise((resolve) => setImmediate(resolve))
    expect(warnings).toEqual([])
  })

  it('an UNLOGGED table is reported', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    await open(pool, table).read('a')
    await pool.query(`ALTER TABLE ${table} SET UNLOGGED`)
    expect(await warningsWith('', table)).toEqual([expect.stringMatching(/UNLOGGED/)])
  })

  it('the store never lowers synchronous_commit', async () => {
    const { pool, statements } = watched(url)
    const store = open(pool, freshTable())
    await store.claim(claimOf('a'))
    await store.settle('a', 'mine', answered)
    await store.transaction(claimOf('b'), async () => answered)
    expect(statements.filter(({ text }) => /set(_config\(')?\s*(local|session)?\s*synchronous/i.test(text))).toEqual([])
  })
})
