import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pool, PoolClient } from 'pg'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { findService } from '../../../test/services/index.ts'
import { answered, claimOf, freshTable, lent, open, poolOf } from '../../../test/support/postgres.ts'
import { oncekey } from '../../oncekey.ts'

const service = await findService('postgres')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
afterAll(async () => {
  if (typeof service !== 'string') await service.stop()
})
const CHILD = fileURLToPath(new URL('../../../test/fixtures/postgres-child.ts', import.meta.url))

/** A table for records, and one for the effects of the user: nothing but the transaction keeps them from doubling. */
async function ledger(pool: Pool): Promise<{ table: string; effects(): Promise<string[]> }> {
  const table = freshTable()
  await pool.query(`CREATE TABLE ${table}_effects (key text NOT NULL, pid int)`)
  const effects = async () =>
    (await pool.query(`SELECT key FROM ${table}_effects ORDER BY key`)).rows.map(({ key }) => key)
  return { table, effects }
}

const effect = (table: string, key: string) => async (tx: PoolClient) => {
  await tx.query(`INSERT INTO ${table}_effects VALUES ($1)`, [key])
  return answered
}

describe.skipIf(url === '')(`X3: transactions${missing}`, () => {
  it('the rows of the user and the record commit together', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
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
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
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
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    const end = await store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      return undefined
    })
    expect(end).toEqual({ state: 'rolled-back' })
    expect(await effects()).toEqual([])
    expect(await store.read('a')).toBeUndefined()
  })

  it('a duplicate on another connection waits for the commit, and replays', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const stores = [open(pool, table), open(poolOf(url), table)]
    let duplicate: Promise<unknown> | undefined
    const end = await stores[0]?.transaction(claimOf('a'), async (tx) => {
      duplicate = stores[1]?.transaction(claimOf('a', { token: 'other' }), effect(table, 'second'))
      await expect.poll(async () => (await pool.query(WAITING)).rowCount, { interval: 5 }).toBe(1)
      return effect(table, 'first')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await duplicate).toMatchObject({ state: 'settled', answer: answered.answer })
    expect(await effects()).toEqual(['first'])
  })

  it('a hundred duplicates in one process wait without a connection, and replay', async () => {
    const pool = poolOf(url, { max: 2 })
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    let runs = 0
    const ends = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        store.transaction(claimOf('a', { token: `t${index}` }), async (tx) => {
          runs++
          expect(pool.waitingCount).toBe(0)
          return effect(table, 'a')(tx)
        }),
      ),
    )
    expect(runs).toBe(1)
    expect(ends.filter(({ state }) => state === 'committed')).toHaveLength(1)
    expect(ends.filter(({ state }) => state === 'settled')).toHaveLength(99)
    expect(await effects()).toEqual(['a'])
  })

  it('when the first one rolls back, one of those that wait takes its place', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const stores = [open(pool, table), open(poolOf(url), table)]
    let runs = 0
    const ends = await Promise.allSettled(
      Array.from({ length: 20 }, (_, index) =>
        stores[index % 2]?.transaction(claimOf('a', { token: `t${index}` }), async (tx) => {
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
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const [store, other] = [open(pool, table), open(poolOf(url), table, { transactionWaitMsMax: 50 })]
    const same = open(pool, table, { transactionWaitMsMax: 50 })
    await store.transaction(claimOf('a'), async (tx) => {
      expect(await other.transaction(claimOf('a'), effect(table, 'b'))).toMatchObject({ state: 'running' })
      expect(await same.claim(claimOf('a', { token: 'plain' }))).toMatchObject({ state: 'running' })
      return effect(table, 'a')(tx)
    })
    await other.transaction(claimOf('c'), async (tx) => {
      expect(await other.transaction(claimOf('c'), effect(table, 'd'))).toMatchObject({ state: 'running' })
      return effect(table, 'c')(tx)
    })
    expect(await effects()).toEqual(['a', 'c'])
  })

  it('takes over an unknown record when asked, and leaves it unknown when it rolls back', async () => {
    const pool = poolOf(url)
    const { table } = await ledger(pool)
    const store = open(pool, table)
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
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    const end = await store.transaction(claimOf('a', { leaseMs: 1, unknownTtlMs: 0 }), async (tx) => {
      await tx.query('SELECT pg_sleep(0.05)')
      return effect(table, 'a')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['a'])
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
  })

  it("the user's own lock_timeout and isolation hold inside", async () => {
    const pool = poolOf(url, { options: '-c lock_timeout=1234' })
    const { table } = await ledger(pool)
    const store = open(pool, table, { isolation: 'serializable' })
    await store.transaction(claimOf('a'), async (tx) => {
      expect((await tx.query('SHOW lock_timeout')).rows).toEqual([{ lock_timeout: '1234ms' }])
      expect((await tx.query('SHOW transaction_isolation')).rows).toEqual([{ transaction_isolation: 'serializable' }])
      return answered
    })
    expect((await pool.query('SHOW lock_timeout')).rows).toEqual([{ lock_timeout: '1234ms' }])
  })

  it.each(['read committed', 'repeatable read', 'serializable'] as const)(
    'duplicates replay at %s',
    async (isolation) => {
      const pool = poolOf(url)
      const { table, effects } = await ledger(pool)
      const stores = [open(pool, table, { isolation }), open(poolOf(url), table, { isolation })]
      for (let round = 0; round < 5; round++) {
        const ends = await Promise.all(
          Array.from({ length: 10 }, (_, index) =>
            stores[index % 2]?.transaction(claimOf(`${round}`, { token: `t${index}` }), effect(table, `${round}`)),
          ),
        )
        expect(ends.filter((end) => end?.state === 'committed')).toHaveLength(1)
        expect(ends.filter((end) => end?.state === 'settled')).toHaveLength(9)
      }
      expect(await effects()).toEqual(['0', '1', '2', '3', '4'])
    },
  )

  it('a conflict at serializable throws, has done nothing, and may be asked again', async () => {
    const pool = poolOf(url)
    const { table } = await ledger(pool)
    const store = open(pool, table, { isolation: 'serializable' })
    await pool.query(`INSERT INTO ${table}_effects VALUES ('counter', 0)`)
    const count = async (key: string): Promise<void> => {
      for (let tries = 0; tries < 1_000; tries++) {
        const end = await store
          .transaction(claimOf(key, { token: `${key} ${tries}` }), async (tx) => {
            const { rows } = await tx.query(`SELECT pid FROM ${table}_effects WHERE key = 'counter'`)
            await tx.query(`UPDATE ${table}_effects SET pid = $1 WHERE key = 'counter'`, [rows[0].pid + 1])
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

  it('work that ends the transaction by itself is told so', async () => {
    const pool = poolOf(url)
    const { table } = await ledger(pool)
    const store = open(pool, table)
    for (const statement of ['ROLLBACK', 'COMMIT']) {
      const ending = store.transaction(claimOf(statement), async (tx) => {
        await tx.query(statement)
        return answered
      })
      await expect(ending).rejects.toMatchObject({
        code: 'config-invalid',
        message: expect.stringMatching(/by itself/),
      })
      expect((await store.read(statement))?.state).not.toBe('settled')
    }
  })

  it('work that hides a failed statement commits nothing', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
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
    const { table, effects } = await ledger(pool)
    await pool.query(`ALTER TABLE ${table}_effects ADD UNIQUE (key) DEFERRABLE INITIALLY DEFERRED`)
    const store = open(pool, table)
    await store.transaction(claimOf('a'), effect(table, 'same'))
    await expect(store.transaction(claimOf('b'), effect(table, 'same'))).rejects.toMatchObject({ code: '23505' })
    expect(await effects()).toEqual(['same'])
    expect(await store.read('b')).toBeUndefined()
  })

  it('when the reply to the commit is lost it throws, and the record tells that all of it took place', async () => {
    const direct = poolOf(url)
    const { table, effects } = await ledger(direct)
    const proxied = await losingReplyTo('COMMIT')
    const store = open(poolOf(proxied, { max: 1 }), table, { migrate: false })
    await open(direct, table).read('a')
    const losing = store.transaction(claimOf('a'), effect(table, 'a'))
    await expect(losing).rejects.toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/COMMIT/) })
    expect(await effects()).toEqual(['a'])
    const again = await open(direct, table).transaction(claimOf('a', { token: 'again' }), effect(table, 'a'))
    expect(again).toMatchObject({ state: 'settled', answer: answered.answer })
    expect(await effects()).toEqual(['a'])
  })

  it('kill -9 of the process in the middle of its work leaves neither row nor record', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const child = spawn(process.execPath, [CHILD, 'hold', url, table], { stdio: ['pipe', 'pipe', 'inherit'] })
    onTestFinished(() => void child.kill('SIGKILL'))
    await once(createInterface(child.stdout), 'line')
    child.kill('SIGKILL')
    await once(child, 'exit')
    expect(await effects()).toEqual([])
    const store = open(pool, table)
    expect(await store.transaction(claimOf('key'), effect(table, 'key'))).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['key'])
  })

  it('oncekey().transaction: every caller gets the value, and the row is there once', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const once = oncekey({ store: open(pool, table) })
    const transfer = () =>
      once.transaction({ scope: 'public', key: 'order-1', payload: { amount: 4200 } }, async (tx) => {
        const { rows } = await tx.query<{ key: string }>(
          `INSERT INTO ${table}_effects VALUES ('order-1') RETURNING key`,
        )
        return { booked: rows[0]?.key }
      })
    const values = await Promise.all(Array.from({ length: 20 }, transfer))
    expect(values).toEqual(new Array(20).fill({ booked: 'order-1' }))
    expect(await effects()).toEqual(['order-1'])
  })

  it('close waits for the transactions under way', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    const gate = await lent(pool)
    let closing: Promise<void> | undefined
    const end = store.transaction(claimOf('a'), async (tx) => {
      closing = store.close()
      await gate.query('SELECT pg_sleep(0.02)')
      return effect(table, 'a')(tx)
    })
    expect(await end).toEqual({ state: 'committed' })
    await closing
    expect(await effects()).toEqual(['a'])
    await expect(store.transaction(claimOf('b'), effect(table, 'b'))).rejects.toMatchObject({ code: 'store-closed' })
  })
})

const WAITING = `SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%bound AS MATERIALIZED%'`

/** A way to the server on which the connection breaks once the word was sent, before its reply comes back. */
async function losingReplyTo(word: string): Promise<string> {
  const sockets: Socket[] = []
  const proxy = createServer((client) => {
    const server = connect(Number(new URL(url).port), '127.0.0.1')
    sockets.push(client, server)
    let isLost = false
    client.on('data', (chunk: Buffer) => {
      isLost ||= chunk.includes(word)
      server.write(chunk)
    })
    server.on('data', (chunk) => {
      if (isLost) client.destroy()
      else client.write(chunk)
    })
    for (const socket of [client, server]) {
      socket.on('error', () => {})
      socket.on('close', () => (socket === client ? server : client).destroy())
    }
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy()
    proxy.close()
  })
  const address = proxy.address()
  const through = new URL(url)
  through.port = String(typeof address === 'object' ? address?.port : '')
  return through.href
}
