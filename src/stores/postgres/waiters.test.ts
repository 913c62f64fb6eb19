import { Client, type Pool } from 'pg'
import { afterAll, describe, expect, it } from 'vitest'
import { findService, launch, pgbouncer, type Server } from '../../../test/services/index.ts'
import { answered, claimOf, freshTable, lent, open, poolOf, watched } from '../../../test/support/postgres.ts'

const service = await findService('postgres')
const url = typeof service === 'string' ? '' : service.url
const missing = typeof service === 'string' ? ` (skipped: ${service})` : ''
const bouncer = url === '' ? 'there is no PostgreSQL' : await launchBouncer()
afterAll(async () => {
  if (typeof bouncer !== 'string') await bouncer.stop()
  if (typeof service !== 'string') await service.stop()
})

const forever = (): AbortSignal => new AbortController().signal
const isAwaited = async (pool: Pool, table: string, id: string): Promise<boolean> =>
  (await pool.query(`SELECT awaited FROM ${table} WHERE id = $1`, [id])).rows[0]?.awaited
const LISTENERS = `SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN oncekey_%' AND pid <> pg_backend_pid()`

describe.skipIf(url === '')(`X5: waiters with push${missing}`, () => {
  it('a settle elsewhere wakes them by a notification, without polling', async () => {
    const table = freshTable()
    const [pool, elsewhere] = [poolOf(url, { max: 4 }), poolOf(url)]
    const [waiting, settling] = [open(pool, table), open(elsewhere, table)]
    await waiting.claim(claimOf('a'))
    const waited = waiting.waitFor?.('a', forever())
    await expect.poll(() => isAwaited(elsewhere, table, 'a')).toBe(true)
    // But for the listening one, all connections are taken: nothing can be looked up.
    await Promise.all([lent(pool), lent(pool), lent(pool)])
    await settling.settle('a', 'mine', answered)
    await waited
    expect(pool.idleCount).toBe(0)
  })

  it('nothing is announced when nobody waits', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    const store = open(pool, table)
    const onlooker = new Client({ connectionString: url })
    await onlooker.connect()
    const heard: string[] = []
    onlooker.on('notification', ({ payload }) => heard.push(payload ?? ''))
    try {
      await store.claim(claimOf('alone'))
      await store.claim(claimOf('awaited'))
      const { rows } = await onlooker.query(`SELECT '${table}'::regclass::oid AS oid`)
      await onlooker.query(`LISTEN oncekey_${rows[0].oid}`)
      const waited = store.waitFor?.('awaited', forever())
      await expect.poll(() => isAwaited(pool, table, 'awaited')).toBe(true)
      await store.settle('alone', 'mine', answered)
      await store.settle('awaited', 'mine', answered)
      await waited
      await expect.poll(() => heard).toContain('awaited')
      expect(heard).not.toContain('alone')
    } finally {
      await onlooker.end()
    }
  })

  it('a listening connection that is lost wakes everybody, and the next waiter has another', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    const [waiting, settling] = [open(pool, table), open(poolOf(url), table)]
    await waiting.claim(claimOf('a'))
    await waiting.claim(claimOf('b'))
    const early = waiting.waitFor?.('a', forever())
    await expect.poll(() => isAwaited(pool, table, 'a')).toBe(true)
    const { rows } = await pool.query(LISTENERS)
    for (const { pid } of rows) await pool.query('SELECT pg_terminate_backend($1)', [pid])
    await early
    expect(await waiting.read('a')).toMatchObject({ state: 'running' })
    const waited = waiting.waitFor?.('b', forever())
    await expect.poll(() => isAwaited(pool, table, 'b')).toBe(true)
    await settling.settle('b', 'mine', answered)
    await waited
  })

  it('a lease that lapses wakes them, though nobody writes anything', async () => {
    const store = open(poolOf(url), freshTable())
    await store.claim(claimOf('a', { leaseMs: 100 }))
    await store.waitFor?.('a', forever())
    expect(await store.read('a')).toMatchObject({ state: 'unknown' })
  })

  it('the connection may be the caller’s own kind, and is ended with the store', async () => {
    const table = freshTable()
    const pool = poolOf(url, { max: 1 })
    const clients: Client[] = []
    const listen = async () => {
      const client = new Client({ connectionString: url, application_name: table })
      clients.push(client)
      await client.connect()
      return client
    }
    const store = open(pool, table, { listen })
    await store.claim(claimOf('a'))
    const waited = store.waitFor?.('a', forever())
    await expect.poll(() => isAwaited(pool, table, 'a')).toBe(true)
    await store.settle('a', 'mine', answered)
    await waited
    await store.close()
    expect(clients).toHaveLength(1)
    const left = async () =>
      (await pool.query('SELECT FROM pg_stat_activity WHERE application_name = $1', [table])).rowCount
    await expect.poll(left).toBe(0)
  })

  it('a pool too small to spare a connection polls instead', async () => {
    const table = freshTable()
    const pool = poolOf(url, { max: 3 })
    const [waiting, settling] = [open(pool, table), open(poolOf(url), table)]
    await waiting.claim(claimOf('a'))
    const waited = waiting.waitFor?.('a', forever())
    await waiting.read('a')
    expect(await isAwaited(pool, table, 'a')).toBe(false)
    await settling.settle('a', 'mine', answered)
    await waited
  })
})

const noBouncer = typeof bouncer === 'string' ? ` (skipped: ${bouncer})` : ` (${bouncer.title})`
describe.skipIf(typeof bouncer === 'string')(`X5: behind PgBouncer in transaction mode${noBouncer}`, () => {
  const bouncerUrl = typeof bouncer === 'string' ? '' : bouncer.url

  it('LISTEN is not trusted: waiters poll, and are woken by other processes', async () => {
    const table = freshTable()
    const { pool, statements } = watched(bouncerUrl)
    const [waiting, settling] = [open(pool, table), open(poolOf(bouncerUrl), table)]
    await waiting.claim(claimOf('a'))
    const waited = waiting.waitFor?.('a', forever())
    const looks = () => statements.filter(({ text }) => text.includes('t.lease_until >')).length
    await expect.poll(looks).toBeGreaterThan(3)
    expect(await isAwaited(pool, table, 'a')).toBe(false)
    expect(statements.filter(({ text }) => text.startsWith('LISTEN'))).toEqual([])
    await settling.settle('a', 'mine', answered)
    await waited
  })

  it('no statement is prepared under a name, for the next client of the connection would meet it', async () => {
    const table = freshTable()
    const { pool, statements } = watched(bouncerUrl)
    const store = open(pool, table)
    for (let i = 0; i < 20; i++) {
      await Promise.all([store.claim(claimOf(`a${i}`)), store.claim(claimOf(`b${i}`)), store.read(`a${i}`)])
      await store.settle(`a${i}`, 'mine', answered)
      await store.transaction(claimOf(`c${i}`), async () => answered)
    }
    expect(statements.filter(({ name }) => name !== undefined)).toEqual([])
    expect(await store.list({ limit: 100, state: 'settled' })).toHaveLength(40)
  })
})

async function launchBouncer(): Promise<Server | string> {
  try {
    return await launch(pgbouncer(Number(new URL(url).port)))
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}
