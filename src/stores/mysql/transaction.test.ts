import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pool, PoolConnection, RowDataPacket } from 'mysql2/promise'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { findService } from '../../../test/services/index.ts'
import { answered, claimOf, freshTable, lent, open, poolOf } from '../../../test/support/mysql.ts'

const service = await findService('mariadb')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
afterAll(async () => {
  if (typeof service !== 'string') await service.stop()
})
const CHILD = fileURLToPath(new URL('../../../test/fixtures/mysql-child.ts', import.meta.url))

/** A table for records, and one for the effects of the user: nothing but the transaction keeps them from doubling. */
async function ledger(pool: Pool): Promise<{ table: string; effects(): Promise<string[]> }> {
  const table = freshTable()
  await pool.query(`CREATE TABLE ${table}_effects (name VARCHAR(99) NOT NULL, pid INT) ENGINE = InnoDB`)
  const effects = async () => {
    const [rows] = await pool.query<RowDataPacket[]>(`SELECT name FROM ${table}_effects ORDER BY name`)
    return rows.map(({ name }) => name)
  }
  return { table, effects }
}

const effect = (table: string, name: string) => async (tx: PoolConnection) => {
  await tx.query(`INSERT INTO ${table}_effects (name) VALUES (?)`, [name])
  return answered
}

/** How many statements on this table, or on one named after it, wait for a lock. */
const WAITING = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE ?"
const waitingOn = async (pool: Pool, table: string) =>
  (await pool.query<RowDataPacket[]>(WAITING, [`%${table}%`]))[0].length
/** InnoDB looks anew only when nobody has asked for 100 ms. */
const PATIENT = { timeout: 10_000, interval: 150 }

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

  it('a duplicate on another pool waits for the commit, and replays', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const [store, other] = [open(pool, table), open(poolOf(url), table)]
    await other.read('a')
    let duplicate: Promise<unknown> | undefined
    const end = await store.transaction(claimOf('a'), async (tx) => {
      duplicate = other.transaction(claimOf('a', { token: 'other' }), effect(table, 'second'))
      await expect.poll(() => waitingOn(pool, table), PATIENT).toBe(1)
      return effect(table, 'first')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await duplicate).toMatchObject({ state: 'settled', answer: answered.answer })
    expect(await effects()).toEqual(['first'])
  })

  it('a hundred duplicates in one process wait without a connection, and replay', async () => {
    const pool = poolOf(url, { connectionLimit: 2 })
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    let [runs, queued] = [0, 0]
    pool.on('enqueue', () => {
      queued++
    })
    const ends = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        store.transaction(claimOf('a', { token: `t${index}` }), async (tx) => {
          runs++
          return effect(table, 'a')(tx)
        }),
      ),
    )
    expect([runs, queued]).toEqual([1, 0])
    expect(ends.filter(({ state }) => state === 'committed')).toHaveLength(1)
    expect(ends.filter(({ state }) => state === 'settled')).toHaveLength(99)
    expect(await effects()).toEqual(['a'])
  })

  it('when the first one rolls back, one of those that wait takes its place', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const stores = [open(pool, table), open(poolOf(url), table), open(poolOf(url), table)]
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
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const [store, other] = [open(pool, table), open(poolOf(url), table, { transactionWaitMsMax: 50, callMsMax: 900 })]
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

  it('a plain claim of what a transaction holds is told so; its batch mates are claimed', async ({ skip }) => {
    const pool = poolOf(url)
    const { table } = await ledger(pool)
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
      await tx.query('DO SLEEP(0.05)')
      return effect(table, 'a')(tx)
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['a'])
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
  })

  it("the user's own innodb_lock_wait_timeout and isolation hold inside and after", async () => {
    const pool = poolOf(url, { connectionLimit: 1 })
    const { table } = await ledger(pool)
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

  it.each(['read committed', 'repeatable read', 'serializable'] as const)(
    'duplicates replay at %s',
    async (isolation) => {
      const pool = poolOf(url)
      const { table, effects } = await ledger(pool)
      const stores = [0, 1, 2].map(() => open(poolOf(url), table, { isolation }))
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

  it.each(['ROLLBACK', 'COMMIT', 'CREATE OR REPLACE VIEW one AS SELECT 1', 'START TRANSACTION'])(
    'work that ends the transaction by itself is told so: %s',
    async (statement) => {
      const pool = poolOf(url)
      const { table } = await ledger(pool)
      const store = open(pool, table)
      const ending = store.transaction(claimOf('a'), async (tx) => {
        await tx.query(statement)
        return answered
      })
      await expect(ending).rejects.toMatchObject({ code: 'config-invalid', message: expect.stringMatching(/ended/) })
      expect((await store.read('a'))?.state).not.toBe('settled')
    },
  )

  it('work that hides a deadlock commits neither its rows nor a record', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
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
      await expect.poll(() => waitingOn(pool, table), PATIENT).toBe(1)
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

  it('when the reply to the commit is lost it throws, and the record tells that all of it took place', async () => {
    const direct = poolOf(url)
    const { table, effects } = await ledger(direct)
    const proxied = await losingReplyTo('COMMIT')
    const store = open(poolOf(proxied, { connectionLimit: 1 }), table, { migrate: false })
    await open(direct, table).read('a')
    const losing = store.transaction(claimOf('a'), effect(table, 'a'))
    await expect(losing).rejects.toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/COMMIT/) })
    await expect.poll(effects, PATIENT).toEqual(['a'])
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

  it('close waits for the transactions under way', async () => {
    const pool = poolOf(url)
    const { table, effects } = await ledger(pool)
    const store = open(pool, table)
    let closing: Promise<void> | undefined
    const end = store.transaction(claimOf('a'), async (tx) => {
      closing = store.close()
      await tx.query('DO SLEEP(0.02)')
      return effect(table, 'a')(tx)
    })
    expect(await end).toEqual({ state: 'committed' })
    await closing
    expect(await effects()).toEqual(['a'])
    await expect(store.transaction(claimOf('b'), effect(table, 'b'))).rejects.toMatchObject({ code: 'store-closed' })
  })
})

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
