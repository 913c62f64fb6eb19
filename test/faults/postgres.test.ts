import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Pool } from 'pg'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { OncekeyError } from '../../src/error.ts'
import { findOwn, freePort } from '../services/index.ts'
import { answered, claimOf, freshTable, lent, open, poolOf, signalBackends } from '../support/postgres.ts'

const own = await findOwn('postgres')
const url = typeof own === 'string' ? '' : own.url
const missing = typeof own === 'string' ? ` (skipped: ${own})` : ''
afterAll(async () => {
  if (typeof own !== 'string') await own.stop()
})
const server = () => {
  if (typeof own === 'string') throw new Error(own)
  return own
}
const CHILD = fileURLToPath(new URL('../fixtures/postgres-child.ts', import.meta.url))
const PROCESSES = 50

describe.skipIf(url === '')(`PostgreSQL that fails${missing}`, () => {
  it('R12: kill -9 of the server under load: nothing acknowledged is lost, nothing runs twice, all goes on', async () => {
    const table = freshTable()
    const store = open(poolOf(url), table, { callMsMax: 5_000 })
    const log = { effects: new Map<string, number>(), claimed: new Map<string, string>(), settled: new Set<string>() }
    let [next, hasFailed, isOver] = [0, false, false]

    /** As the engine does it: the same token again when no reply came; an effect only when the claim was acquired. */
    const operate = async (id: string): Promise<void> => {
      const token = `token of ${id}`
      const claim = await untilAnswered(() => store.claim(claimOf(id, { token })))
      expect(claim.state).toBe('acquired')
      log.claimed.set(id, token)
      log.effects.set(id, (log.effects.get(id) ?? 0) + 1)
      expect(await untilAnswered(() => store.settle(id, token, answered))).toBe(true)
      log.settled.add(id)
    }
    const untilAnswered = async <T>(verb: () => T | Promise<T>): Promise<T> => {
      for (;;) {
        try {
          return await verb()
        } catch (error) {
          expect(error).toBeInstanceOf(OncekeyError)
          expect(error).toMatchObject({ code: 'store-unavailable' })
          hasFailed = true
          await new Promise((resolve) => setImmediate(resolve))
        }
      }
    }
    const clients = Array.from({ length: 32 }, async () => {
      while (!isOver) await operate(`id-${next++}`)
    })
    for (let kills = 0; kills < 3; kills++) {
      const before = log.settled.size
      await expect.poll(() => log.settled.size, PATIENT).toBeGreaterThan(before + 300)
      hasFailed = false
      await crash()
      await expect.poll(() => hasFailed, PATIENT).toBe(true)
      await server().start()
    }
    isOver = true
    await Promise.all(clients)

    expect([...log.effects.values()].filter((times) => times !== 1)).toEqual([])
    const records = await Promise.all([...log.settled].map((id) => store.read(id)))
    expect(records.filter((record) => record?.state !== 'settled' || record.attempt !== 1)).toEqual([])
    const duplicates = await Promise.all(
      [...log.claimed.keys()].map((id) => store.claim(claimOf(id, { token: 'late' }))),
    )
    expect(duplicates.filter(({ state }) => state !== 'settled')).toEqual([])
    console.log(`${log.settled.size} operations over 3 kills of the server: one effect each, every answer kept`)
  })

  it('R12: kill -9 of the server inside a transaction leaves neither row nor record, and it can be asked again', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    await pool.query(`CREATE TABLE ${table}_effects (key text)`)
    const store = open(pool, table)
    const effect = `INSERT INTO ${table}_effects VALUES ('a')`
    const broken = store.transaction(claimOf('a'), async (tx) => {
      await tx.query(effect)
      await crash()
      return answered
    })
    await expect(broken).rejects.toMatchObject({ code: 'store-unavailable' })
    await server().start()
    expect((await pool.query(`SELECT FROM ${table}_effects`)).rowCount).toBe(0)
    const again = await store.transaction(claimOf('a'), async (tx) => {
      await tx.query(effect)
      return answered
    })
    expect(again).toEqual({ state: 'committed' })
    expect((await pool.query(`SELECT FROM ${table}_effects`)).rowCount).toBe(1)
  })

  it('a server that hangs is reported in time; when it goes on, so does the store', async () => {
    const store = open(poolOf(url), freshTable(), { callMsMax: 300 })
    await store.claim(claimOf('a'))
    server().freeze()
    signalBackends(server(), 'SIGSTOP')
    try {
      const refusals = await Promise.allSettled([
        store.settle('a', 'mine', answered),
        store.claim(claimOf('b')),
        store.read('a'),
        store.transaction(claimOf('c'), async () => answered),
      ])
      for (const refusal of refusals) {
        expect(refusal).toMatchObject({ reason: { code: 'store-unavailable' } })
      }
    } finally {
      server().thaw()
      signalBackends(server(), 'SIGCONT')
    }
    const settled = async () => {
      try {
        return await store.settle('a', 'mine', answered)
      } catch {
        return 'not yet'
      }
    }
    await expect.poll(settled, PATIENT).toBe(true)
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
  })

  it('R12: waiters of a server that is killed are woken, and later ones too', async () => {
    const table = freshTable()
    const [waiting, settling] = [open(poolOf(url), table), open(poolOf(url), table)]
    await waiting.claim(claimOf('a'))
    const early = waiting.waitFor?.('a', new AbortController().signal)
    await waiting.read('a')
    await server().kill()
    await early
    await server().start()
    const late = waiting.waitFor?.('a', new AbortController().signal)
    await settling.settle('a', 'mine', answered)
    await late
    expect(await waiting.read('a')).toMatchObject({ state: 'settled' })
  })

  it('R12: a server that is down at the start: an error in words, and no restart of this process is needed', async () => {
    const store = open(poolOf(url), freshTable())
    await server().kill()
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/cannot be reached.*Nothing was recorded/s),
    })
    await server().start()
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a host that is not there is reported', async () => {
    const store = open(poolOf(`postgres://postgres@127.0.0.1:${await freePort()}/postgres`), freshTable())
    await expect(store.read('a')).rejects.toMatchObject({ code: 'store-unavailable' })
  })
})

describe.skipIf(url === '')(`PostgreSQL that refuses${missing}`, () => {
  it('a wrong password, and the right one later', async () => {
    const admin = poolOf(url)
    const role = `r_${freshTable()}`
    const hba = join(server().folder, 'data', 'pg_hba.conf')
    const before = readFileSync(hba, 'utf8')
    writeFileSync(hba, `host all ${role} 127.0.0.1/32 scram-sha-256\n${before}`)
    await admin.query(`CREATE ROLE ${role} LOGIN SUPERUSER PASSWORD 'right'; SELECT pg_reload_conf()`)
    const withPassword = new URL(url)
    withPassword.username = role
    withPassword.password = 'wrong'
    const store = open(poolOf(withPassword.href), freshTable())
    const refusal = async () => {
      try {
        return await store.claim(claimOf('a'))
      } catch (error) {
        return error
      }
    }
    await expect.poll(refusal).toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/refused the password/),
    })
    await admin.query(`ALTER ROLE ${role} PASSWORD 'wrong'`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('too many connections', async () => {
    const admin = poolOf(url)
    const role = `r_${freshTable()}`
    await admin.query(`CREATE ROLE ${role} LOGIN CONNECTION LIMIT 1`)
    await admin.query(`GRANT ALL ON SCHEMA public TO ${role}`)
    const limited = new URL(url)
    limited.username = role
    const taken = await lent(poolOf(limited.href))
    const store = open(poolOf(limited.href), freshTable())
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no more connections/),
    })
    await taken.query('SELECT 1')
    await admin.query(`ALTER ROLE ${role} CONNECTION LIMIT -1`)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a server that is read-only, as a standby is', async () => {
    const table = freshTable()
    await open(poolOf(url), table).claim(claimOf('a'))
    const store = open(poolOf(url, { options: '-c default_transaction_read_only=on' }), table)
    for (const verb of [() => store.claim(claimOf('b')), () => store.settle('a', 'mine', answered)]) {
      await expect(verb()).rejects.toMatchObject({
        code: 'store-unavailable',
        message: expect.stringMatching(/read-only.*primary/s),
      })
    }
    expect(await store.read('a')).toMatchObject({ state: 'running' })
  })

  it('a statement_timeout that passes, and a table that somebody has locked', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    const hasty = open(poolOf(url, { options: '-c statement_timeout=100' }), table)
    const patient = open(poolOf(url), table, { callMsMax: 300 })
    await hasty.claim(claimOf('a'))
    await patient.read('a')
    const locker = await lent(pool)
    await locker.query(`BEGIN; LOCK TABLE ${table} IN ACCESS EXCLUSIVE MODE`)
    await expect(hasty.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/statement_timeout/),
    })
    await expect(patient.settle('a', 'mine', answered)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/within 300 ms.*same token/s),
    })
    await locker.query('ROLLBACK')
    expect(await hasty.settle('a', 'mine', answered)).toBe(true)
  })

  it('a body that is larger than the store keeps', async () => {
    const store = open(poolOf(url), freshTable())
    await store.claim(claimOf('a'))
    const body = new Uint8Array(128 * 1024 * 1024 + 1)
    await expect(
      store.settle('a', 'mine', { ...answered, answer: { ...answered.answer, body } }),
    ).rejects.toMatchObject({
      code: 'body-too-large',
    })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
  })

  it('a database without space keeps what it had, and goes on when there is room', async () => {
    const pool = poolOf(url)
    const table = freshTable()
    const store = open(pool, table)
    await store.claim(claimOf('a'))
    // Not a real full disk, but the very error that PostgreSQL raises for one, inside the claim itself.
    await pool.query(`CREATE FUNCTION ${table}_full() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
    await pool.query(`CREATE TRIGGER full_disk BEFORE INSERT ON ${table} FOR EACH ROW EXECUTE FUNCTION ${table}_full()`)
    await expect(store.claim(claimOf('b'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/no space left/),
    })
    expect(await store.read('a')).toMatchObject({ state: 'running' })
    await pool.query(`DROP TRIGGER full_disk ON ${table}`)
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
  })
})

describe.skipIf(url === '')(`many processes on one PostgreSQL${missing}`, () => {
  it(`S9 X3: ${PROCESSES} processes race for one key by claim, and for one by transaction: one effect of each`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const effects = join(folder, 'effects')
    const table = freshTable()
    const pool = poolOf(url)
    await pool.query(`CREATE TABLE ${table}_effects (key text, pid int)`)
    const racers = Array.from({ length: PROCESSES }, () => {
      const child = start('race', table, effects)
      return { child, lines: createInterface(child.stdout)[Symbol.asyncIterator]() }
    })
    for (const { lines } of racers) expect((await lines.next()).value).toBe('ready')
    for (const { child } of racers) child.stdin.write('go\n')
    const claims = await Promise.all(racers.map(async ({ lines }) => (await lines.next()).value))
    const ends = await Promise.all(racers.map(async ({ lines }) => (await lines.next()).value))

    expect(claims.filter((state) => state === 'acquired')).toHaveLength(1)
    expect(claims.filter((state) => !['acquired', 'running', 'settled'].includes(String(state)))).toEqual([])
    expect(readFileSync(effects, 'utf8').trim().split('\n')).toHaveLength(1)
    expect(await open(pool, table).read('key')).toMatchObject({ state: 'settled', attempt: 1 })
    expect(ends.filter((state) => state === 'committed')).toHaveLength(1)
    expect(ends.filter((state) => state === 'settled')).toHaveLength(PROCESSES - 1)
    expect(await rowsOf(pool, table)).toEqual(['key'])
  })

  it('X3: exactly once, although processes are killed at random points of their transactions', async () => {
    const table = freshTable()
    const pool = poolOf(url)
    await pool.query(`CREATE TABLE ${table}_effects (key text, pid int)`)
    const KEYS = 40
    const ROUNDS_MAX = 60
    let [rounds, kills, isDone] = [0, 0, false]
    while (!isDone && rounds++ < ROUNDS_MAX) {
      const children = [start('loop', table, String(KEYS)), start('loop', table, String(KEYS))]
      const ends = children.map(async (child, index) => {
        const exited = once(child, 'exit')
        let stepsLeft = index + Math.floor(Math.random() * 6)
        for await (const line of createInterface(child.stdout)) {
          if (!line.startsWith('settled') && stepsLeft-- === 0) child.kill('SIGKILL')
        }
        const [, signal] = await exited
        return signal === 'SIGKILL' ? 'killed' : 'done'
      })
      const outcomes = await Promise.all(ends)
      kills += outcomes.filter((outcome) => outcome === 'killed').length
      isDone = (await rowsOf(pool, table)).length >= KEYS
    }
    const keys = await rowsOf(pool, table)
    expect(kills).toBeGreaterThan(5)
    expect(new Set(keys).size).toBe(KEYS)
    expect(keys).toHaveLength(KEYS)
    const records = await open(pool, table).list({ limit: 1_000 })
    expect(records.map(({ state }) => state)).toEqual(new Array(KEYS).fill('settled'))
    console.log(`${KEYS} operations, ${kills} processes killed inside: every effect once`)
  })
})

const PATIENT = { timeout: 60_000, interval: 20 }

async function rowsOf(pool: Pool, table: string): Promise<string[]> {
  return (await pool.query(`SELECT key FROM ${table}_effects`)).rows.map(({ key }) => key)
}

function start(...[part, table, arg]: [string, string, string]) {
  const child = spawn(process.execPath, [CHILD, part, url, table, arg], { stdio: ['pipe', 'pipe', 'inherit'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

/** kill -9 of every process of the server at once: those that serve connections get no time to finish anything. */
async function crash(): Promise<void> {
  signalBackends(server(), 'SIGKILL')
  await server().kill()
}
