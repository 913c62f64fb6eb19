import { spawnSync } from 'node:child_process'
import { resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, expect, it } from 'vitest'

const MAIN = resolve(import.meta.dirname, '../src/cli/main.ts')
const run = (...args: string[]) => spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' })

it('oncekey --version says which it is', () => {
  const { status, stdout } = run('--version')
  expect([status, stdout]).toEqual([0, expect.stringMatching(/^\d+\.\d+\.\d+\n$/)])
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
    [['migrate', '--store', 'postgres'], /Say --print/],
    [['migrate', '--print', '--store', 'oracle'], /--store is "oracle"; give postgres, mysql, sqlite/],
    [['migrate', '--wrong'], /--wrong/],
  ])('%j is refused in words, with code 2', (args, text) => {
    const { status, stderr } = run(...args)
    expect(status).toBe(2)
    expect(stderr).toMatch(text)
  })
})
