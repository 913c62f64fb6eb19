import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { findMongod } from '../../../test/services/mongod.ts'
import { type Fault, faulty, given, killedAt, neighbours, tell } from '../../../test/support/meter.ts'
import { connectTo } from '../../../test/support/mongodb.ts'
import type { Store } from '../../store.ts'
import { memoryStore } from '../../stores/memory.ts'
import { mongodbStore } from '../../stores/mongodb.ts'
import { sqliteStore } from '../../stores/sqlite.ts'
import type { MeterOptions } from '../meter.ts'

const mongod = await findMongod()
const client = typeof mongod === 'string' ? undefined : connectTo(mongod.url)
const folder = mkdtempSync(join(tmpdir(), 'oncekey-meter-'))
let made = 0

afterAll(async () => {
  await client?.close()
  if (typeof mongod !== 'string') await mongod.stop()
  rmSync(folder, { recursive: true })
})

/** Each call opens the same records anew, as another process would; where that is possible. */
const STORES: ReadonlyArray<readonly [name: string, opener: () => () => Store]> = [
  ['memory', () => always(memoryStore())],
  ['sqlite', () => opened(join(folder, `${++made}.db`), (path) => sqliteStore({ path }))],
]
const MONGODB: typeof STORES = client
  ? [['mongodb', () => opened(`meter-${++made}`, (name) => mongodbStore(client.db('oncekey').collection(name)))]]
  : []

function always(store: Store): () => Store {
  return () => store
}

function opened(name: string, open: (name: string) => Store): () => Store {
  return () => {
    const store = open(name)
    onTestFinished(() => store.close())
    return store
  }
}

if (typeof mongod === 'string') describe.skip(`the meter on MongoDB (skipped: ${mongod})`, () => {})

describe.each([...STORES, ...MONGODB])('the meter on %s', (_name, opener) => {
  it('A13: an operation is counted once, whichever events tell of it, in whichever process', async () => {
    const open = opener()
    const [one, two] = [given(open()).meter, given(open()).meter]
    for (let i = 0; i < 5; i++) for (const type of ['kept', 'unrecorded', 'replayed'] as const) tell(type, 'a')
    tell('kept', 'b')
    tell('kept', 'failed', 422)
    tell('in-flight', 'c')
    tell('kept', 'elsewhere', 201, 'another contract')
    await Promise.all([one.idle(), two.idle()])
    expect(await one.count('org')).toBe(2)
    expect(await two.count('org')).toBe(2)
    expect(await given(open()).meter.count('org')).toBe(2)
    expect(await one.count('nobody')).toBe(0)
  })

  it('A13: killed at any call, with another operation on its heels: made good, and never double', async () => {
    const store = opener()()
    const ids = neighbours(6 * CALLS_OF_A_COUNT)
    const died = new Set<number>()
    for (const fault of ['not done', 'reply lost'] as const) {
      for (let call = 1; call <= CALLS_OF_A_COUNT; call++) {
        const tenant = `killed at call ${call}, ${fault}`
        const [first = '', second = '', third = ''] = ids.splice(0, 3)
        const before = given(store).meter
        before.add(third, tenant)
        await before.idle()
        const killed = given(killedAt(store, call, fault)).meter
        killed.add(first, tenant)
        await killed.close()
        if (killed.stats().lost === 1) died.add(call)
        const after = given(store).meter
        after.add(second, tenant)
        await after.idle()
        after.add(first, tenant)
        await after.idle()
        expect(await after.count(tenant), tenant).toBe(3)
        const again = given(store).meter
        for (const id of [first, second, third]) again.add(id, tenant)
        await again.idle()
        expect(await again.count(tenant), `again, ${tenant}`).toBe(3)
      }
    }
    // Every call up to the last one was a place to die at.
    expect([...died].sort((a, b) => a - b)).toEqual([1, 2, 3, 4, 5])
  })

  it('processes that count the same operations at once, each with faults of its own, agree on one count', async () => {
    const open = opener()
    const ids = neighbours(12)
    const script = fc.sample(fc.constantFrom<Fault>('none', 'none', 'none', 'not done', 'reply lost'), {
      numRuns: 400,
      seed: 7,
    })
    let at = 0
    const meters = [0, 1, 2].map(
      () =>
        given(
          faulty(open(), () => script[at++] ?? 'none'),
          HASTE,
        ).meter,
    )
    for (const [i, meter] of meters.entries()) for (const id of rotated(ids, 4 * i)) meter.add(id, 'org')
    await Promise.all(meters.map((meter) => meter.idle()))
    expect(at).toBeGreaterThan(100)
    expect(await given(open()).meter.count('org')).toBe(ids.length)
  })
})

/** A thousand times as fast, so that waiting for the next try costs nothing. */
const HASTE: Partial<MeterOptions> = {
  callMsMax: 30_000_000,
  clock: {
    now: () => Math.floor(performance.now() * 1_000),
    schedule(delayMs, callback) {
      const timer = setTimeout(callback, delayMs / 1_000)
      return () => clearTimeout(timer)
    },
  },
}

/** Of one on a chain with one place taken: three reads find the end, a register and a place are written. */
const CALLS_OF_A_COUNT = 6

function rotated(ids: readonly string[], by: number): string[] {
  return [...ids.slice(by), ...ids.slice(0, by)]
}
