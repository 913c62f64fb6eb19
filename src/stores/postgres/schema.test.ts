import type { Pool } from 'pg'
import { describe, expect, it } from 'vitest'
import { tableCases } from '../../../test/sql-cases/table.ts'
import {
  answered,
  claimOf,
  freshTable,
  open,
  poolOf,
  postgresDialect,
  processWarnings,
  watched,
} from '../../../test/support/postgres.ts'
import { useService } from '../../../test/support/service.ts'
import { postgresMigrations, postgresStore } from '../postgres.ts'

const { url, missing } = await useService('postgres')

const commentOf = async (pool: Pool, table: string) =>
  (await pool.query(`SELECT obj_description('${table}'::regclass) AS comment`)).rows[0].comment

describe.skipIf(url === '')(`the table${missing}`, () => {
  tableCases(postgresDialect, url)

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

  it('options of {"whenVolatile":"x"} are refused', () => {
    expect(() => postgresStore(poolOf(url), { whenVolatile: 'x' as 'warn' })).toThrow('whenVolatile')
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
