import type { RowDataPacket } from 'mysql2/promise'
import { describe, expect, it } from 'vitest'
import { transactionCases } from '../../../test/sql-cases/transactions.ts'
import {
  answered,
  claimOf,
  effect,
  LOCK_POLL,
  ledger,
  lent,
  mysqlDialect,
  open,
  poolOf,
} from '../../../test/support/mysql.ts'
import { useService } from '../../../test/support/service.ts'

const { url, missing } = await useService('mariadb')

describe.skipIf(url === '')(`X3: transactions${missing}`, () => {
  transactionCases(mysqlDialect, url)

  it('a plain claim of what a transaction holds is told so; its batch mates are claimed', async ({ skip }) => {
    const pool = poolOf(url)
    const { table } = await ledger(mysqlDialect, pool)
    const store = open(pool, table)
    const isMariadb = String((await pool.query<RowDataPacket[]>('SELECT VERSION() AS v'))[0][0]?.v).includes('MariaDB')
    skip(!isMariadb, 'MySQL cannot bound the wait of one statement')
    await store.transaction(claimOf('b'), async () => {
      const claims = await Promise.all(['a', 'b', 'c'].map((id) => store.claim(claimOf(id, { token: 'plain' }))))
      expect(claims.map(({ state }) => state)).toEqual(['acquired', 'running', 'acquired'])
      return answered
    })
    expect(await store.claim(claimOf('b', { token: 'plain' }))).toMatchObject({ state: 'settled' })
  })

  it("the user's own innodb_lock_wait_timeout and isolation hold inside and after", async () => {
    const pool = poolOf(url, { connectionLimit: 1 })
    const { table } = await ledger(mysqlDialect, pool)
    await pool.query('SET SESSION innodb_lock_wait_timeout = 77')
    const store = open(pool, table, { isolation: 'serializable' })
    const settings = 'SELECT @@innodb_lock_wait_timeout AS wait'
    await store.transaction(claimOf('a'), async (tx) => {
      expect((await tx.query(settings))[0]).toEqual([{ wait: 77 }])
      const [[isolation] = []] = await tx.query<RowDataPacket[]>(
        'SELECT trx_isolation_level AS level FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = CONNECTION_ID()',
      )
      expect(isolation?.level).toBe('SERIALIZABLE')
      return answered
    })
    await store.transaction(claimOf('a'), async () => answered)
    expect((await pool.query(settings))[0]).toEqual([{ wait: 77 }])
  })

  it('work that hides a deadlock commits neither its rows nor a record', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(mysqlDialect, pool)
    await pool.query(`CREATE TABLE ${table}_rows (id INT PRIMARY KEY, n INT) ENGINE = InnoDB`)
    await pool.query(`INSERT INTO ${table}_rows VALUES (1, 0), (2, 0)`)
    const store = open(pool, table)
    const outside = await lent(pool)
    const touch = (id: number) => `UPDATE ${table}_rows SET n = n + 1 WHERE id = ${id}`
    // The one with more changes is spared: that is the one outside.
    await outside.query('START TRANSACTION')
    for (let row = 0; row < 50; row++) await outside.query(`INSERT INTO ${table}_rows VALUES (${row + 10}, 0)`)
    await outside.query(touch(1))
    let hidden: unknown
    const hiding = store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      await tx.query(touch(2))
      const crossing = outside.query(touch(2))
      await expect.poll(() => mysqlDialect.waitingOn(pool, table), LOCK_POLL).toBe(1)
      await tx.query(touch(1)).catch((error: unknown) => {
        hidden = error
      })
      await crossing
      return answered
    })
    await expect(hiding).rejects.toMatchObject({ code: 'config-invalid', message: expect.stringMatching(/deadlock/) })
    expect(hidden).toMatchObject({ code: 'ER_LOCK_DEADLOCK' })
    expect(await effects()).toEqual([])
    expect(await store.read('a')).toBeUndefined()
  })
})
