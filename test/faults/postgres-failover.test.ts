import { Client } from 'pg'
import { describe, expect, it, onTestFinished } from 'vitest'
import { launch, postgres, type Server, Unavailable } from '../services/index.ts'
import { postgresStandby } from '../services/postgres-standby.ts'
import { answered, claimOf, freshTable, open, poolOf, signalBackends } from '../support/postgres.ts'
import { processWarnings } from '../support/warnings.ts'

/** What the guarantees table says of PostgreSQL beyond a crash of one server, and what is lost where it says so. */
const missing = whyMissing()
const ids = Array.from({ length: 50 }, (_, index) => `id-${index}`)
const PATIENT = { timeout: 60_000, interval: 20 }

describe.skipIf(missing !== '')(`what PostgreSQL keeps${missing}`, () => {
  it('R12: failover to a synchronous standby: every acknowledged record is there', async () => {
    const { primary, standby } = await pair(['-c', 'synchronous_standby_names=standby'])
    const table = freshTable()
    const store = open(poolOf(primary.url), table)
    await Promise.all(ids.map((id) => store.claim(claimOf(id))))
    await Promise.all(ids.slice(0, 25).map((id) => store.settle(id, 'mine', answered)))
    await primary.kill()
    await promote(standby)
    const successor = open(poolOf(standby.url), table)
    const claims = await Promise.all(ids.map((id) => successor.claim(claimOf(id, { token: 'retry' }))))
    expect(claims.map(({ state }) => state)).toEqual(ids.map((_, index) => (index < 25 ? 'settled' : 'running')))
    expect(await successor.settle('id-30', 'mine', answered)).toBe(true)
  })

  it('R12: failover to an asynchronous standby that lags: acknowledged records are lost, as the table says', async () => {
    const { primary, standby } = await pair([])
    const table = freshTable()
    const store = open(poolOf(primary.url), table)
    await store.claim(claimOf('before'))
    await untilOn(standby, `SELECT FROM pg_class WHERE relname = '${table}' AND EXISTS (SELECT FROM ${table})`)
    // The network between the two is cut.
    await untilOn(standby, `ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'`, `SELECT pg_reload_conf()`)
    await untilOn(primary, 'SELECT WHERE NOT EXISTS (SELECT FROM pg_stat_replication)')
    expect(await store.claim(claimOf('after'))).toMatchObject({ state: 'acquired' })
    await primary.kill()
    await promote(standby)
    const successor = open(poolOf(standby.url), table)
    expect(await successor.read('before')).toMatchObject({ state: 'running' })
    expect(await successor.read('after')).toBeUndefined()
  })

  it('R12: a crash with synchronous_commit off: acknowledged records are lost, as the warning says', async () => {
    const server = await launch(postgres(['-c', 'wal_writer_delay=10s']))
    onTestFinished(() => server.stop())
    const table = freshTable()
    const warnings = processWarnings()
    const safe = open(poolOf(server.url), table)
    const unsafe = open(poolOf(server.url, { options: '-c synchronous_commit=off' }), table)
    await safe.claim(claimOf('safe'))
    expect(await unsafe.claim(claimOf('unsafe'))).toMatchObject({ state: 'acquired' })
    signalBackends(server, 'SIGKILL')
    await server.kill()
    await server.start()
    expect(warnings).toEqual([expect.stringMatching(/synchronous_commit is off/)])
    expect(await safe.read('safe')).toMatchObject({ state: 'running' })
    expect(await safe.read('unsafe')).toBeUndefined()
  })

  it('R12: a crash with an UNLOGGED table: every record is lost, as the warning says', async () => {
    const server = await launch(postgres())
    onTestFinished(() => server.stop())
    const table = freshTable()
    const pool = poolOf(server.url)
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    await pool.query(`ALTER TABLE ${table} SET UNLOGGED; CHECKPOINT`)
    signalBackends(server, 'SIGKILL')
    await server.kill()
    await server.start()
    expect(await store.read('a')).toBeUndefined()
  })
})

async function pair(settings: readonly string[]): Promise<{ primary: Server; standby: Server }> {
  const primary = await launch(postgres(['-c', 'wal_level=replica', ...settings]))
  onTestFinished(() => primary.stop())
  const standby = await launch(postgresStandby(primary.port))
  onTestFinished(() => standby.stop())
  await untilOn(primary, `SELECT FROM pg_stat_replication WHERE state = 'streaming'`)
  return { primary, standby }
}

async function promote(standby: Server): Promise<void> {
  await untilOn(standby, 'SELECT pg_promote()')
  await untilOn(standby, 'SELECT WHERE NOT pg_is_in_recovery()')
}

/** Asks until the last statement gives a row. */
async function untilOn(server: Server, ...statements: string[]): Promise<void> {
  const rows = async (): Promise<number | null> => {
    const client = new Client({ connectionString: server.url })
    client.on('error', () => {})
    try {
      await client.connect()
      let rowCount: number | null = 0
      for (const sql of statements) rowCount = (await client.query(sql)).rowCount
      return rowCount
    } catch {
      return 0
    } finally {
      await client.end().catch(() => {})
    }
  }
  await expect.poll(rows, PATIENT).toBeGreaterThan(0)
}

function whyMissing(): string {
  try {
    postgres()
    return ''
  } catch (error) {
    if (error instanceof Unavailable) return ` (skipped: ${error.message})`
    throw error
  }
}
