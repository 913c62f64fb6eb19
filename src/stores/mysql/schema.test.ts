import type { RowDataPacket } from 'mysql2/promise'
import { afterAll, describe, expect, it } from 'vitest'
import { findService } from '../../../test/services/index.ts'
import { answered, claimOf, freshTable, open, poolOf, watched } from '../../../test/support/mysql.ts'
import { processWarnings } from '../../../test/support/postgres.ts'
import { mysqlMigrations, mysqlStore } from '../mysql.ts'

const service = await findService('mariadb')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
afterAll(async () => {
  if (typeof service !== 'string') await service.stop()
})

describe.skipIf(url === '')(`the table${missing}`, () => {
  it('S9: is made once, however many stores start at the same moment', async () => {
    const table = freshTable()
    const stores = Array.from({ length: 50 }, () => open(poolOf(url, { connectionLimit: 1 }), table))
    const claims = await Promise.all(stores.map((store, index) => store.claim(claimOf('a', { token: `t${index}` }))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
    expect(claims.filter(({ state }) => state === 'running')).toHaveLength(49)
  })

  it('may be in another database', async () => {
    const pool = poolOf(url)
    const database = `d_${freshTable()}`
    const store = open(pool, `${database}.idempotency_keys`)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no database of this name/),
    })
    await pool.query(`CREATE DATABASE ${database}`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    await pool.query(`DROP DATABASE ${database}`)
  })

  it('is readable for operators', async () => {
    const pool = poolOf(url, { timezone: 'Z' })
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a', { labels: { route: '/orders' } }))
    await store.settle('a', 'mine', answered)
    const [rows] = await pool.query<RowDataPacket[]>(
      `SELECT CAST(id AS CHAR) AS id, CAST(fingerprint AS CHAR) AS fingerprint, attempt, outcome, status,
         JSON_VALUE(labels, '$.route') AS route, created_at <= UTC_TIMESTAMP(3) AS created,
         expires_at > UTC_TIMESTAMP(3) AS live, CAST(body AS CHAR) AS body, headers FROM ${table}`,
    )
    expect(rows).toEqual([
      {
        id: 'a',
        fingerprint: 'same',
        attempt: 1,
        outcome: 'committed',
        status: 201,
        route: '/orders',
        created: 1,
        live: 1,
        body: 'done',
        headers: '[["content-type","text/plain"]]',
      },
    ])
  })

  it('with migrate: false is not made; once the SQL was run by hand, the same store goes on', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table, { migrate: false })
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/is missing, and migrate is false.*mysqlMigrations/s),
    })
    for (const step of mysqlMigrations(table)) await pool.query(step)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('of a newer oncekey, or of another program, is left as it is', async () => {
    const pool = poolOf(url)
    const [newer, foreign] = [freshTable(), freshTable()]
    await pool.query(`CREATE TABLE ${newer} (a INT) COMMENT = 'oncekey schema 99'`)
    await pool.query(`CREATE TABLE ${foreign} (a INT)`)
    await expect(open(pool, newer).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/newer oncekey \(schema 99/),
    })
    await expect(open(pool, foreign).claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-incompatible',
      message: expect.stringMatching(/not oncekey's/),
    })
    expect((await pool.query<RowDataPacket[]>(`SELECT * FROM ${newer}, ${foreign}`))[1]).toHaveLength(2)
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

  it('with other columns is reported', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    await pool.query(`ALTER TABLE ${table} DROP COLUMN status`)
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({ code: 'store-incompatible' })
  })

  it.each(['', 'a.b.c', 'a`b', 'a;b', "a'b", '1a', 'a b', 'ä', 'x'.repeat(65)])('a name of %j is refused', (table) => {
    expect(() => mysqlStore(watched(url).pool, { table })).toThrow(/table/)
    expect(() => mysqlMigrations(table)).toThrow(/table/)
  })

  it.each([{ batchMax: 0 }, { inFlightMax: 1.5 }, { callMsMax: Number.NaN }, { sweepEveryMs: -1 }])(
    'options of %j are refused',
    (options) => {
      expect(() => mysqlStore(poolOf(url), options)).toThrow(Object.keys(options)[0])
    },
  )
})

describe.skipIf(url === '')(`settings that lose records${missing}`, () => {
  const warningsOn = async (table = freshTable()): Promise<string[]> => {
    const warnings = processWarnings()
    const store = open(poolOf(url), table)
    await store.read('a')
    await store.read('a')
    await new Promise((resolve) => setImmediate(resolve))
    // A server that was given by its URL may have a binary log.
    return warnings.filter((text) => !text.startsWith('sync_binlog'))
  }

  it('none are reported where there are none', async () => {
    expect(await warningsOn()).toEqual([])
  })

  it.each([0, 2])('innodb_flush_log_at_trx_commit %i is reported once, in plain words', async (value) => {
    const pool = poolOf(url)
    await pool.query(`SET GLOBAL innodb_flush_log_at_trx_commit = ${value}`)
    try {
      expect(await warningsOn()).toEqual([
        expect.stringMatching(new RegExp(`^innodb_flush_log_at_trx_commit is ${value}: .*run a second time`)),
      ])
    } finally {
      await pool.query('SET GLOBAL innodb_flush_log_at_trx_commit = 1')
    }
  })

  it('a table of another engine is reported', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    await open(pool, table).read('a')
    await pool.query(`ALTER TABLE ${table} DROP PRIMARY KEY, ENGINE = MyISAM`)
    expect(await warningsOn(table)).toEqual([expect.stringMatching(/engine MyISAM/)])
  })
})
