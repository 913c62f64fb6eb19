import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { crashCases } from '../sql-cases/crashes.ts'
import { processCases } from '../sql-cases/processes.ts'
import { answered, claimOf, freshTable, lent, open, poolOf, postgresDialect } from '../support/postgres.ts'
import { useOwn } from '../support/service.ts'

const { url, missing, server } = await useOwn('postgres')

describe.skipIf(url === '')(`PostgreSQL that fails${missing}`, () => {
  crashCases(postgresDialect, server)
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
  processCases(postgresDialect, server)
})
