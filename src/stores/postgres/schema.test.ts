import type { Pool } from 'pg'
import { describe, expect, it } from 'vitest'
import { tableCases } from '../../../test/sql-cases/table.ts'
import { volatileCases } from '../../../test/sql-cases/volatile.ts'
import {
  answered,
  claimOf,
  freshTable,
  open,
  poolOf,
  postgresDialect,
  watched,
} from '../../../test/support/postgres.ts'
import { useService } from '../../../test/support/service.ts'
import { warningsOf } from '../../../test/support/warnings.ts'
import { postgresMigrations } from '../postgres.ts'

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
})

describe.skipIf(url === '')(`settings that lose records${missing}`, () => {
  volatileCases(postgresDialect, url)

  const warningsWith = (options: string, table = freshTable()): Promise<string[]> =>
    warningsOf(open(poolOf(url, { options }), table))

  it('none are reported where there are none', async () => {
    expect(await warningsWith('')).toEqual([])
  })

  it('synchronous_commit off is reported once, in plain words', async () => {
    expect(await warningsWith('-c synchronous_commit=off')).toEqual([
      expect.stringMatching(/^synchronous_commit is off: .*run a second time/),
    ])
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
