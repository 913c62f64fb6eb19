import { join } from 'node:path'
import type { Pool } from 'mysql2/promise'
import { describe, expect, it, onTestFinished } from 'vitest'
import { mariadb } from '../services/recipes.ts'
import { launch } from '../services/server.ts'
import { crashCases } from '../sql-cases/crashes.ts'
import { processCases } from '../sql-cases/processes.ts'
import { answered, claimOf, freshTable, ids, lent, mysqlDialect, open, poolOf } from '../support/mysql.ts'
import { useOwn } from '../support/service.ts'
import { processWarnings } from '../support/warnings.ts'

const { url, missing, server } = await useOwn('mariadb')

describe.skipIf(url === '')(`MariaDB that fails${missing}`, () => {
  crashCases(mysqlDialect, server)

  it.each([
    [2, 'kept: the operating system has it'],
    [0, 'lost, as the warning says'],
  ])('innodb_flush_log_at_trx_commit %i: what was acknowledged just before kill -9 is %s', async (value, what) => {
    const pool = poolOf(url)
    const warnings = processWarnings()
    const store = open(pool, freshTable())
    const ROUNDS = 5
    let lost = 0
    for (let round = 0; round < ROUNDS; round++) {
      await pool.query(`SET GLOBAL innodb_flush_log_at_trx_commit = ${value}`)
      await store.claim(claimOf(`id-${round}`))
      await server().kill()
      // It starts with 1 again.
      await server().start()
      if ((await store.read(`id-${round}`)) === undefined) lost++
    }
    expect(warnings).toEqual([expect.stringMatching(/^innodb_flush_log_at_trx_commit/)])
    if (what.startsWith('kept')) expect(lost).toBe(0)
    else expect(lost).toBeGreaterThan(0)
  })
})

describe.skipIf(url === '')(`MariaDB that refuses${missing}`, () => {
  /** A user of its own. Only root may grant, and comes by the socket. */
  const userOn = async (table: string, rights: string, password = 'right') => {
    const admin = poolOf('', { socketPath: join(server().folder, 'sock'), user: 'root', database: 'oncekey' })
    const user = `u_${table.slice(0, 12)}`
    await admin.query(`CREATE USER ${user}@'127.0.0.1' IDENTIFIED BY 'right'`)
    await admin.query(`GRANT ${rights} ON oncekey.* TO ${user}@'127.0.0.1'`)
    const as = new URL(url)
    as.username = user
    as.password = password
    return { admin, user: `${user}@'127.0.0.1'`, url: as.href }
  }

  it('a wrong password, and the right one later', async () => {
    const table = freshTable()
    const { admin, user, url: wrong } = await userOn(table, 'ALL', 'wrong')
    const store = open(poolOf(wrong), table)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/refused the password/),
    })
    await admin.query(`ALTER USER ${user} IDENTIFIED BY 'wrong'`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a user without rights is told which are missing, and goes on when they are there', async () => {
    const table = freshTable()
    const { admin, user, url: as } = await userOn(table, 'SELECT')
    const store = open(poolOf(as), table)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/rights/),
    })
    await open(admin, table).read('a')
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({ message: expect.stringMatching(/rights/) })
    await admin.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON oncekey.${table} TO ${user}`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await store.transaction(claimOf('b'), async () => answered)).toEqual({ state: 'committed' })
    expect(await store.sweep()).toBe(0)
  })

  it('too many connections', async () => {
    const table = freshTable()
    const { admin, user, url: as } = await userOn(table, 'ALL')
    await admin.query(`ALTER USER ${user} WITH MAX_USER_CONNECTIONS 1`)
    const taken = await lent(poolOf(as))
    const store = open(poolOf(as), table)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no more connections/),
    })
    taken.destroy()
    await expect.poll(async () => (await store.claim(claimOf('a'))).state).toBe('acquired')
  })

  it('a server that is read-only, as a replica is', async () => {
    const table = freshTable()
    const { admin, url: as } = await userOn(table, 'ALL')
    const store = open(poolOf(as), table)
    await store.claim(claimOf('a'))
    await admin.query('SET GLOBAL read_only = 1')
    try {
      for (const verb of [() => store.claim(claimOf('b')), () => store.settle('a', 'mine', answered)]) {
        await expect(verb()).rejects.toMatchObject({
          code: 'store-unavailable',
          message: expect.stringMatching(/read-only.*primary/s),
        })
      }
      expect(await store.read('a')).toMatchObject({ state: 'running' })
    } finally {
      await admin.query('SET GLOBAL read_only = 0')
    }
    expect(await store.settle('a', 'mine', answered)).toBe(true)
  })

  it('a body over max_allowed_packet names both sizes, harms nothing of its batch, and fits once that is raised', async () => {
    const pool = poolOf(url, { connectionLimit: 1 })
    const store = open(pool, freshTable())
    await Promise.all(['a', 'b'].map((id) => store.claim(claimOf(id))))
    const settle = (id: string, bytes: number) =>
      store.settle(id, 'mine', { ...answered, answer: { ...answered.answer, body: Buffer.alloc(bytes, 'x') } })
    const [tooLarge, other] = await Promise.allSettled([settle('a', 13_000_000), settle('b', 11_000_000)])
    expect(tooLarge).toMatchObject({
      reason: {
        code: 'body-too-large',
        message: expect.stringMatching(/body of 13000000 bytes.*max_allowed_packet of MySQL is 16777216/s),
      },
    })
    expect(other).toEqual({ status: 'fulfilled', value: true })
    const replay = await store.claim(claimOf('b', { token: 'other' }))
    expect(replay.state === 'settled' && replay.answer.body?.length).toBe(11_000_000)
    const [admin, limit] = [poolOf(url), 'SET GLOBAL max_allowed_packet ='] as const
    await admin.query(`${limit} 33554432`)
    try {
      await reconnected(pool)
      expect(await settle('a', 13_000_000)).toBe(true)
    } finally {
      await admin.query(`${limit} 16777216`)
    }
  })

  it('very many bytes of labels and headers in one moment are more than one statement', async () => {
    const store = open(poolOf(url), freshTable())
    const labels = { text: 'x'.repeat(60_000) }
    const headers = [['x-long', 'x'.repeat(200_000)]] as const
    const claims = await Promise.all(ids(128).map((id) => store.claim(claimOf(id, { labels }))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(128)
    const settlement = { ...answered, answer: { ...answered.answer, headers } }
    const settles = await Promise.all(ids(128).map((id) => store.settle(id, 'mine', settlement)))
    expect(settles.filter((isDone) => isDone)).toHaveLength(128)
    await expect(store.claim(claimOf('a', { labels: { text: 'x'.repeat(70_000) } }))).rejects.toMatchObject({
      code: 'config-invalid',
    })
  })

  it('a max_allowed_packet that was lowered since is reported, and all goes on', async () => {
    const admin = poolOf(url)
    const pool = poolOf(url, { connectionLimit: 1 })
    const store = open(pool, freshTable())
    await store.claim(claimOf('a'))
    await admin.query('SET GLOBAL max_allowed_packet = 1048576')
    try {
      await reconnected(pool)
      const large = { ...answered, answer: { ...answered.answer, body: Buffer.alloc(2_000_000) } }
      await expect(store.settle('a', 'mine', large)).rejects.toMatchObject({
        message: expect.stringMatching(/max_allowed_packet|connection to MySQL failed/),
      })
    } finally {
      await admin.query('SET GLOBAL max_allowed_packet = 16777216')
    }
    expect(await store.settle('a', 'mine', answered)).toBe(true)
  })

  it('a time limit for statements that passes, and a table that somebody has locked', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    const hastyPool = poolOf(url, { connectionLimit: 1 })
    await hastyPool.query('SET SESSION max_statement_time = 0.1')
    const [hasty, patient] = [open(hastyPool, table), open(poolOf(url), table, { callMsMax: 300 })]
    await patient.claim(claimOf('a'))
    await hasty.read('a')
    const locker = await lent(pool)
    await locker.query(`LOCK TABLES ${table} WRITE`)
    await expect(hasty.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/time limit/),
    })
    await expect(patient.renew('a', 'mine', 60_000)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/within 300 ms.*same token/s),
    })
    await locker.query('UNLOCK TABLES')
    expect(await hasty.settle('a', 'mine', answered)).toBe(true)
  })

  it('a server without space keeps what it had, and goes on when there is room', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    // Not a real full disk, but the very error that MariaDB raises for one, inside the claim itself.
    await pool.query(`CREATE TRIGGER ${table}_full BEFORE INSERT ON ${table} FOR EACH ROW
      SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'`)
    await expect(store.claim(claimOf('b'))).rejects.toMatchObject({
      code: 'store-full',
      message: expect.stringMatching(/no space left/),
    })
    expect(await store.read('a')).toMatchObject({ state: 'running' })
    await pool.query(`DROP TRIGGER ${table}_full`)
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
  })
})

describe.skipIf(url === '')(`MariaDB that is set otherwise${missing}`, () => {
  it('strict isolation, and a binary log that is not synced: a warning, and every verb under contention', async () => {
    const other = await launch(
      mariadb([
        ...['--innodb-snapshot-isolation=ON', '--transaction-isolation=SERIALIZABLE', '--sql-mode=', '--sync-binlog=0'],
        ...['--log-bin=bin', '--binlog-format=MIXED', '--innodb-rollback-on-timeout=ON'],
      ]),
    )
    onTestFinished(() => other.stop())
    const table = freshTable()
    const warnings = processWarnings()
    const stores = [1, 2, 3, 4].map(() => open(poolOf(other.url), table))
    const owners = new Map<string, number>()
    await Promise.all(
      stores.map(async (store, side) => {
        for (let round = 0; round < 20; round++) {
          const ids = Array.from({ length: 20 }, (_, index) => `${round} ${index}`)
          await Promise.all(
            ids.map(async (id) => {
              const claim = await store.claim(claimOf(id, { token: `${side}` }))
              if (claim.state !== 'acquired') return
              owners.set(id, (owners.get(id) ?? 0) + 1)
              expect(await store.settle(id, `${side}`, { ...answered, ttlMs: 1, expiredTtlMs: 3_600_000 })).toBe(true)
            }),
          )
          const end = await store.transaction(claimOf(`tx ${round}`, { token: `${side}` }), async () => answered)
          expect(['committed', 'settled']).toContain(end.state)
          await store.sweep()
        }
      }),
    )
    expect(owners.size).toBe(400)
    expect([...owners.values()].filter((times) => times !== 1)).toEqual([])
    expect(warnings).toHaveLength(4)
    expect(warnings[0]).toMatch(/^sync_binlog is 0: .*run a second time/)
  })
})

describe.skipIf(url === '')(`many processes on one MariaDB${missing}`, () => {
  processCases(mysqlDialect, server)
})

/** The pool's connection, if it has only one, is opened anew the next time: such settings are taken then. */
async function reconnected(pool: Pool): Promise<void> {
  const connection = await pool.getConnection()
  connection.destroy()
}
