import { expect, it } from 'vitest'
import { OncekeyError } from '../../src/error.ts'
import { freePort, type Server } from '../services/index.ts'
import { answered, claimOf } from '../support/requests.ts'
import { effect, freshTable, ledger, type SqlDialect, type SqlPool } from '../support/sql.ts'

/** R12: a server that is killed, that hangs, or that is not there. */
export function crashCases<Pool extends SqlPool>(db: SqlDialect<Pool>, server: () => Server): void {
  it('R12: kill -9 of the server under load: nothing acknowledged is lost, nothing runs twice, all goes on', async () => {
    const table = freshTable()
    const store = db.open(db.poolOf(server().url), table, { callMsMax: 5_000 })
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
      await expect.poll(() => log.settled.size).toBeGreaterThan(before + 300)
      hasFailed = false
      await db.crash(server())
      await expect.poll(() => hasFailed).toBe(true)
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

  it('R12: a claim that was acknowledged before kill -9 is still there, unsettled, and still its owner’s', async () => {
    const store = db.open(db.poolOf(server().url), freshTable())
    await store.claim(claimOf('a'))
    await db.crash(server())
    await server().start()
    expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'running' })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
  })

  it('R12: kill -9 of the server inside a transaction leaves neither row nor record, and it can be asked again', async () => {
    const pool = db.poolOf(server().url)
    const { table, effects } = await ledger(db, pool)
    const store = db.open(pool, table)
    const broken = store.transaction(claimOf('a'), async (tx) => {
      await effect(table, 'a')(tx)
      await db.crash(server())
      return answered
    })
    await expect(broken).rejects.toMatchObject({ code: 'store-unavailable' })
    await server().start()
    expect(await effects()).toEqual([])
    expect(await store.transaction(claimOf('a'), effect(table, 'a'))).toEqual({ state: 'committed' })
    expect(await effects()).toEqual(['a'])
  })

  it('a server that hangs is reported in time; when it goes on, so does the store', async () => {
    const store = db.open(db.poolOf(server().url), freshTable(), { callMsMax: 300, transactionWaitMsMax: 300 })
    await store.claim(claimOf('a'))
    db.freeze(server())
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
      db.thaw(server())
    }
    const settled = async () => {
      try {
        return await store.settle('a', 'mine', answered)
      } catch {
        return 'not yet'
      }
    }
    await expect.poll(settled).toBe(true)
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
  })

  it('R12: waiters of a server that is killed are woken, and later ones too', async () => {
    const table = freshTable()
    const [waiting, settling] = [db.open(db.poolOf(server().url), table), db.open(db.poolOf(server().url), table)]
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
    const store = db.open(db.poolOf(server().url), freshTable())
    await server().kill()
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/cannot be reached.*Nothing was recorded/s),
    })
    await server().start()
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a host that is not there is reported', async () => {
    const nowhere = new URL(server().url)
    nowhere.port = String(await freePort())
    const store = db.open(db.poolOf(nowhere.href), freshTable())
    await expect(store.read('a')).rejects.toMatchObject({ code: 'store-unavailable' })
  })
}
