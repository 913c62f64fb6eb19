import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { expect, it } from 'vitest'
import { oncekey } from '../../src/oncekey.ts'
import { startChild } from '../support/children.ts'
import { losingReplyTo } from '../support/lossy-proxy.ts'
import { answered, claimOf } from '../support/requests.ts'
import { effect, LOCK_POLL, ledger, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** X3: the rows of the user and the record are one transaction, whatever happens to it. */
export function transactionCases<Pool extends SqlPool>(db: SqlDialect<Pool>, url: string): void {
  it('the rows of the user and the record commit together', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const end = await store.transaction(claimOf('a'), async (tx, attempt) => {
      await effect(table, `attempt ${attempt}`)(tx)
      expect(await effects()).toEqual([])
      expect(await store.read('a')).toBeUndefined()
      return answered
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['attempt 1'])
    expect(await store.read('a')).toMatchObject({ state: 'settled', attempt: 1, answer: answered.answer })
    expect(await store.transaction(claimOf('a'), effect(table, 'second'))).toMatchObject({ state: 'settled' })
    expect(await effects()).toEqual(['attempt 1'])
  })

  it('a throw is thrown on as it is, and leaves nothing', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const fault = new Error('of the user')
    const failing = store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      throw fault
    })
    await expect(failing).rejects.toBe(fault)
    expect(await effects()).toEqual([])
    expect(await store.read('a')).toBeUndefined()
    expect(await store.transaction(claimOf('a'), effect(table, 'a'))).toEqual({ state: 'committed' })
  })

  it('undefined leaves nothing', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const end = await store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      return undefined
    })
    expect(end).toEqual({ state: 'rolled-back' })
    expect(await effects()).toEqual([])
    expect(await store.read('a')).toBeUndefined()
  })

  it('a duplicate on another pool waits for the commit, and replays', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const [store, other] = [db.open(pool, table), db.open(db.poolOf(url), table)]
    await other.read('a')
    let duplicate: Promise<unknown> | undefined
    const end = await store.transaction(claimOf('a'), async (tx) => {
      duplicate = other.transaction(claimOf('a', { token: 'other' }), effect(table, 'second'))
      await expect.poll(() => db.waitingOn(pool, table), LOCK_POLL).toBe(1)
      return effect(table, 'first')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await duplicate).toMatchObject({ state: 'settled', answer: answered.answer })
    expect(await effects()).toEqual(['first'])
  })

  it('a hundred duplicates in one process wait without a connection, and replay', async () => {
    const pool = db.poolOf(url, 2)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const waits = db.countWaits(pool)
    let runs = 0
    const ends = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        store.transaction(claimOf('a', { token: `t${index}` }), async (tx) => {
          runs++
          expect(waits()).toBe(0)
          return effect(table, 'a')(tx)
        }),
      ),
    )
    expect([runs, waits()]).toEqual([1, 0])
    expect(ends.filter(({ state }) => state === 'committed')).toHaveLength(1)
    expect(ends.filter(({ state }) => state === 'settled')).toHaveLength(99)
    expect(await effects()).toEqual(['a'])
  })

  it('a plain claim in the same process is told that it runs, and its waiter wakes at the end, asking nothing', async () => {
    const { pool, statements } = db.watched(url)
    const { table } = await ledger(db, pool)
    const store = db.open(pool, table)
    let waiting: Promise<void> | undefined
    const gone = new AbortController()
    await store.transaction(claimOf('a'), async (tx) => {
      const before = statements.length
      expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'running' })
      let isAwake = false
      waiting = store.waitFor?.('a', new AbortController().signal).then(() => {
        isAwake = true
      })
      const leaving = store.waitFor?.('a', gone.signal)
      gone.abort()
      await leaving
      expect([isAwake, statements.length - before]).toEqual([false, 0])
      return effect(table, 'a')(tx)
    })
    await waiting
    expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'settled' })
  })

  it('when the first one rolls back, one of those that wait takes its place', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const stores = [pool, db.poolOf(url), db.poolOf(url)].map((each) => db.open(each, table))
    let runs = 0
    const ends = await Promise.allSettled(
      Array.from({ length: 21 }, (_, index) =>
        stores[index % 3]?.transaction(claimOf('a', { token: `t${index}` }), async (tx) => {
          await effect(table, `run ${++runs}`)(tx)
          if (runs < 3) throw new Error('not this time')
          return answered
        }),
      ),
    )
    expect(ends.filter(({ status }) => status === 'rejected')).toHaveLength(2)
    expect(ends.filter((end) => end.status === 'fulfilled' && end.value?.state === 'committed')).toHaveLength(1)
    expect(await effects()).toEqual(['run 3'])
  })

  it('a duplicate that may not wait any longer is told that the first one runs', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    // MySQL counts in whole seconds: the wait for the lock is longer there than a call may take.
    const brief = { transactionWaitMsMax: 50, callMsMax: 900 }
    const [store, other] = [db.open(pool, table), db.open(db.poolOf(url), table, brief)]
    await other.read('a')
    await store.transaction(claimOf('a'), async (tx) => {
      expect(await other.transaction(claimOf('a'), effect(table, 'b'))).toMatchObject({ state: 'running' })
      return effect(table, 'a')(tx)
    })
    await other.transaction(claimOf('c'), async (tx) => {
      expect(await other.transaction(claimOf('c'), effect(table, 'd'))).toMatchObject({ state: 'running' })
      return effect(table, 'c')(tx)
    })
    expect(await effects()).toEqual(['a', 'c'])
  })

  it('takes over an unknown record when asked, and leaves it unknown when it rolls back', async () => {
    const pool = db.poolOf(url)
    const { table } = await ledger(db, pool)
    const store = db.open(pool, table)
    await store.claim(claimOf('a'))
    await store.renew('a', 'mine', 0)
    const taker = claimOf('a', { token: 'taker', takeover: true })
    expect(await store.transaction({ ...taker, takeover: false }, effect(table, 'a'))).toMatchObject({
      state: 'unknown',
    })
    expect(await store.transaction({ ...taker, fingerprint: 'other' }, effect(table, 'a'))).toMatchObject({
      state: 'unknown',
      fingerprint: 'same',
    })
    expect(await store.transaction(taker, async () => undefined)).toEqual({ state: 'rolled-back' })
    expect(await store.read('a')).toMatchObject({ state: 'unknown', attempt: 1 })
    expect(await store.transaction(taker, effect(table, 'a'))).toEqual({ state: 'committed' })
    expect(await store.read('a')).toMatchObject({ state: 'settled', attempt: 2 })
    expect(await store.settle('a', 'mine', answered)).toBe(false)
  })

  it('work may take longer than its lease: nobody else can see the claim', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const end = await store.transaction(claimOf('a', { leaseMs: 1, unknownTtlMs: 0 }), async (tx) => {
      await tx.query(db.sleep(50))
      return effect(table, 'a')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['a'])
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
  })

  it.each(['read committed', 'repeatable read', 'serializable'] as const)(
    'duplicates replay at %s',
    async (isolation) => {
      const pool = db.poolOf(url)
      const { table, effects } = await ledger(db, pool)
      const stores = [pool, db.poolOf(url), db.poolOf(url)].map((each) => db.open(each, table, { isolation }))
      for (let round = 0; round < 5; round++) {
        const ends = await Promise.all(
          Array.from({ length: 12 }, (_, index) =>
            stores[index % 3]?.transaction(claimOf(`${round}`, { token: `t${index}` }), effect(table, `${round}`)),
          ),
        )
        expect(ends.filter((end) => end?.state === 'committed')).toHaveLength(1)
        expect(ends.filter((end) => end?.state === 'settled')).toHaveLength(11)
      }
      expect(await effects()).toEqual(['0', '1', '2', '3', '4'])
    },
  )

  it.each(db.endings.statements)('work that ends the transaction by itself is told so: %s', async (statement) => {
    const pool = db.poolOf(url)
    const { table } = await ledger(db, pool)
    const store = db.open(pool, table)
    const ending = store.transaction(claimOf('a'), async (tx) => {
      await tx.query(statement)
      return answered
    })
    await expect(ending).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringMatching(db.endings.message),
    })
    expect((await store.read('a'))?.state).not.toBe('settled')
  })

  it('when the reply to the commit is lost it throws, and the record tells that all of it took place', async () => {
    const direct = db.poolOf(url)
    const { table, effects } = await ledger(db, direct)
    const proxied = await losingReplyTo('COMMIT', url)
    const store = db.open(db.poolOf(proxied, 1), table, { migrate: false })
    await db.open(direct, table).read('a')
    const losing = store.transaction(claimOf('a'), effect(table, 'a'))
    await expect(losing).rejects.toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/COMMIT/) })
    await expect.poll(effects).toEqual(['a'])
    const again = await db.open(direct, table).transaction(claimOf('a', { token: 'again' }), effect(table, 'a'))
    expect(again).toMatchObject({ state: 'settled', answer: answered.answer })
    expect(await effects()).toEqual(['a'])
  })

  it('kill -9 of the process in the middle of its work leaves neither row nor record', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const child = startChild('sql-child.ts', db.name, 'hold', url, table)
    await once(createInterface(child.stdout), 'line')
    child.kill('SIGKILL')
    await once(child, 'exit')
    expect(await effects()).toEqual([])
    const store = db.open(pool, table)
    expect(await store.transaction(claimOf('key'), effect(table, 'key'))).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['key'])
  })

  it('oncekey().transaction: every caller gets the value, and the row is there once', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const once = oncekey({ store: db.open(pool, table) })
    const transfer = () =>
      once.transaction({ scope: 'public', key: 'order-1', payload: { amount: 4200 } }, async (tx) => {
        await effect(table, 'order-1')(tx)
        const [row] = await db.rows(tx, `SELECT name FROM ${table}_effects`)
        return { booked: String(row?.name) }
      })
    const values = await Promise.all(Array.from({ length: 20 }, transfer))
    expect(values).toEqual(new Array(20).fill({ booked: 'order-1' }))
    expect(await effects()).toEqual(['order-1'])
  })

  it('close waits for the transactions under way', async () => {
    const pool = db.poolOf(url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    let closing: Promise<void> | undefined
    const end = store.transaction(claimOf('a'), async (tx) => {
      closing = store.close()
      await tx.query(db.sleep(20))
      return effect(table, 'a')(tx)
    })
    expect(await end).toEqual({ state: 'committed' })
    await closing
    expect(await effects()).toEqual(['a'])
    await expect(store.transaction(claimOf('b'), effect(table, 'b'))).rejects.toMatchObject({ code: 'store-closed' })
  })
}
