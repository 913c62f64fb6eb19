import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect, it, onTestFinished } from 'vitest'
import type { Server } from '../services/index.ts'
import { startChild, startRacer } from '../support/children.ts'
import { ledger, type SqlDialect, type SqlPool } from '../support/sql.ts'

const PROCESSES = 50

/** S9 X3: many processes on one server, and what is left of them when they are killed. */
export function processCases<Pool extends SqlPool>(db: SqlDialect<Pool>, server: () => Server): void {
  it(`S9 X3: ${PROCESSES} processes race for one key by claim, and for one by transaction: one effect of each`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const claimed = join(folder, 'effects')
    const pool = db.poolOf(server().url)
    const { table, effects } = await ledger(db, pool)
    const racers = Array.from({ length: PROCESSES }, () =>
      startRacer('sql-child.ts', db.name, 'race', server().url, table, claimed),
    )
    for (const { said } of racers) expect(await said('ready')).toBe('ready')
    for (const { tell } of racers) tell('go')
    const claims = await Promise.all(racers.map(({ said }) => said('')))
    const ends = await Promise.all(racers.map(({ said }) => said('')))

    expect(claims.filter((state) => state === 'acquired')).toHaveLength(1)
    expect(claims.filter((state) => !['acquired', 'running', 'settled'].includes(state))).toEqual([])
    expect(readFileSync(claimed, 'utf8').trim().split('\n')).toHaveLength(1)
    expect(await db.open(pool, table).read('key')).toMatchObject({ state: 'settled', attempt: 1 })
    expect(ends.filter((state) => state === 'committed')).toHaveLength(1)
    expect(ends.filter((state) => state === 'settled')).toHaveLength(PROCESSES - 1)
    expect(await effects()).toEqual(['key'])
  })

  it('X3: exactly once, although processes are killed at random points of their transactions', async () => {
    const pool = db.poolOf(server().url)
    const { table, effects } = await ledger(db, pool)
    const KEYS = 40
    const ROUNDS_MAX = 60
    let [rounds, kills, isDone] = [0, 0, false]
    while (!isDone && rounds++ < ROUNDS_MAX) {
      const children = [1, 2].map(() => startChild('sql-child.ts', db.name, 'loop', server().url, table, String(KEYS)))
      const ends = children.map(async (child, index) => {
        const exited = once(child, 'exit')
        let stepsLeft = index + Math.floor(Math.random() * 12)
        for await (const line of createInterface(child.stdout)) {
          if (!line.startsWith('settled') && stepsLeft-- === 0) child.kill('SIGKILL')
        }
        const [, signal] = await exited
        return signal === 'SIGKILL' ? 'killed' : 'done'
      })
      const outcomes = await Promise.all(ends)
      kills += outcomes.filter((outcome) => outcome === 'killed').length
      isDone = (await effects()).length >= KEYS
    }
    const keys = await effects()
    expect(kills).toBeGreaterThan(5)
    expect(new Set(keys).size).toBe(KEYS)
    expect(keys).toHaveLength(KEYS)
    const records = await db.open(pool, table).list({ limit: 1_000 })
    expect(records.map(({ state }) => state)).toEqual(new Array(KEYS).fill('settled'))
    console.log(`${KEYS} operations, ${kills} processes killed inside: every effect once`)
  })
}
