import { describe, expect, it } from 'vitest'
import { transactionCases } from '../../../test/sql-cases/transactions.ts'
import { answered, claimOf, effect, ledger, open, poolOf, postgresDialect } from '../../../test/support/postgres.ts'
import { useService } from '../../../test/support/service.ts'

const { url, missing } = await useService('postgres')

describe.skipIf(url === '')(`X3: transactions${missing}`, () => {
  transactionCases(postgresDialect, url)

  it('a plain claim of what a transaction holds is told so', async () => {
    const pool = poolOf(url)
    const { table } = await ledger(postgresDialect, pool)
    const [store, same] = [open(pool, table), open(pool, table, { transactionWaitMsMax: 50 })]
    await store.transaction(claimOf('a'), async () => {
      expect(await same.claim(claimOf('a', { token: 'plain' }))).toMatchObject({ state: 'running' })
      return answered
    })
  })

  it("the user's own lock_timeout and isolation hold inside", async () => {
    const pool = poolOf(url, { options: '-c lock_timeout=1234' })
    const { table } = await ledger(postgresDialect, pool)
    const store = open(pool, table, { isolation: 'serializable' })
    await store.transaction(claimOf('a'), async (tx) => {
      expect((await tx.query('SHOW lock_timeout')).rows).toEqual([{ lock_timeout: '1234ms' }])
      expect((await tx.query('SHOW transaction_isolation')).rows).toEqual([{ transaction_isolation: 'serializable' }])
      return answered
    })
    expect((await pool.query('SHOW lock_timeout')).rows).toEqual([{ lock_timeout: '1234ms' }])
  })

  it('a conflict at serializable throws, has done nothing, and may be asked again', async () => {
    const pool = poolOf(url)
    const { table } = await ledger(postgresDialect, pool)
    const store = open(pool, table, { isolation: 'serializable' })
    await pool.query(`INSERT INTO ${table}_effects VALUES ('counter', 0)`)
    const count = async (key: string): Promise<void> => {
      for (let tries = 0; tries < 1_000; tries++) {
        const end = await store
          .transaction(claimOf(key, { token: `${key} ${tries}` }), async (tx) => {
            const { rows } = await tx.query(`SELECT pid FROM ${table}_effects WHERE name = 'counter'`)
            await tx.query(`UPDATE ${table}_effects SET pid = $1 WHERE name = 'counter'`, [rows[0].pid + 1])
            return answered
          })
          .catch((error: { code?: string }) => {
            if (error.code !== '40001' && error.code !== '40P01' && error.code !== 'store-unavailable') throw error
          })
        if (end?.state === 'committed') return
      }
    }
    await Promise.all(Array.from({ length: 15 }, (_, index) => count(`key ${index}`)))
    expect((await pool.query(`SELECT pid FROM ${table}_effects`)).rows).toEqual([{ pid: 15 }])
  })

  it('work that hides a failed statement commits nothing', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(postgresDialect, pool)
    const store = open(pool, table)
    const hiding = store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      await tx.query('SELECT 1 / 0').catch(() => {})
      return answered
    })
    await expect(hiding).rejects.toMatchObject({ code: 'config-invalid', message: expect.stringMatching(/savepoint/) })
    expect(await effects()).toEqual([])
    expect(await store.read('a')).toBeUndefined()
  })

  it('a constraint that fails at the commit is thrown on, and nothing was committed', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(postgresDialect, pool)
    await pool.query(`ALTER TABLE ${table}_effects ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED`)
    const store = open(pool, table)
    await store.transaction(claimOf('a'), effect(table, 'same'))
    await expect(store.transaction(claimOf('b'), effect(table, 'same'))).rejects.toMatchObject({ code: '23505' })
    expect(await effects()).toEqual(['same'])
    expect(await store.read('b')).toBeUndefined()
  })
})
