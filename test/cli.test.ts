import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, expect, it, onTestFinished } from 'vitest'

const MAIN = resolve(import.meta.dirname, '../src/cli/main.ts')
const run = (...args: string[]) => spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' })

it('oncekey --version says which it is', () => {
  const { status, stdout } = run('--version')
  expect([status, stdout]).toEqual([0, expect.stringMatching(/^\d+\.\d+\.\d+\n$/)])
})

it('oncekey migrate brings a store to the schema of this version', () => {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-migrate-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  const path = join(folder, 'keys.db')
  const { status, stdout } = run('migrate', '--store', `sqlite:${path}`)
  expect([status, stdout]).toEqual([0, `sqlite:${path} has the schema of this version.\n`])
  const db = new DatabaseSync(path)
  expect(db.prepare('SELECT count(*) AS records FROM oncekey_record').get()).toEqual({ records: 0 })
  db.close()
})

describe('oncekey migrate --print', () => {
  it('prints SQL that a database takes', () => {
    const { status, stdout } = run('migrate', '--print', '--store', 'sqlite')
    expect(status).toBe(0)
    const db = new DatabaseSync(':memory:')
    db.exec(stdout)
    expect(db.prepare('SELECT * FROM oncekey_operation').all()).toEqual([])
    db.close()
  })

  it('takes the name of the table', () => {
    const { stdout } = run('migrate', '--print', '--store', 'postgres', '--table', 'system.idempotency_keys')
    expect(stdout).toMatch(/CREATE TABLE.*"system"\."idempotency_keys"/s)
  })

  it.each([
    [[], /Name a command/],
    [['fly'], /There is no command "fly"/],
    [['migrate', '--store', 'postgres'], /give the address of the store, such as sqlite:once\.db, or say --print/],
    [['migrate', '--print', '--store', 'oracle'], /--store is "oracle"; give postgres, mysql, sqlite/],
    [['migrate', '--wrong'], /--wrong/],
  ])('%j is refused in words, with code 2', (args, text) => {
    const { status, stderr } = run(...args)
    expect(status).toBe(2)
    expect(stderr).toMatch(text)
  })
})
