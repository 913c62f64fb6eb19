import type { RowDataPacket } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import { tableCases } from '../../../test/sql-cases/table.ts'
import { volatileCases } from '../../../test/sql-cases/volatile.ts'
import { answered, claimOf, freshTable, mysqlDialect, open, poolOf } from '../../../test/support/mysql.ts'
import { useService } from '../../../test/support/service.ts'
import { warningsOf } from '../../../test/support/warnings.ts'

const { url, missing } = await useService('mariadb')

describe.skipIf(url === '')(`the table${missing}`, () => {
  tableCases(mysqlDialect, url)

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

  it('with other columns is reported', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    await pool.query(`ALTER TABLE ${table} DROP COLUMN status`)
    await expect(store.settle('a', 'mine', answered)).rejects.toMatchObject({ code: 'store-incompatible' })
  })
})

describe.skipIf(url === '')(`settings that lose records${missing}`, () => {
  volatileCases(mysqlDialect, url)

  // A server that was given by its URL may have a binary log.
  const warningsOn = async (table = freshTable()): Promise<string[]> =>
    (await warningsOf(open(poolOf(url), table))).filter((text) => !text.startsWith('sync_binlog'))

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
