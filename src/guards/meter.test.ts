import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { findMongod } from '../../test/services/mongod.ts'
import { connectTo } from '../../test/support/mongodb.ts'
import { traces } from '../contracts/traces.ts'
import { Engine } from '../engine.ts'
import { publish } from '../events.ts'
import { operationId } from '../operation/scope.ts'
import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { mongodbStore } from '../stores/mongodb.ts'
import { sqliteStore } from '../stores/sqlite.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { chainOf } from './meter/chains.ts'
import { createMeter, type Meter, type MeterOptions, type MeterTrouble } from './meter.ts'

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

function given(store: Store, over: Partial<MeterOptions> = {}): { meter: Meter; troubles: MeterTrouble[] } {
  const troubles: MeterTrouble[] = []
  const meter = createMeter({
    store,
    tenant: ({ labels }) => labels.principal,
    // Only what this test publishes.
    contract: 'nobody',
    onTrouble: (trouble) => troubles.push(trouble),
    ...over,
  })
  onTestFinished(() => meter.close())
  return { meter, troubles }
}

function tell(
  type: 'kept' | 'unrecorded' | 'replayed' | 'in-flight',
  key: string,
  status = 201,
  contract = 'nobody',
): void {
  const id = operationId(['principal', 'org'], key)
  publish(type, { id, labels: { principal: 'org' } }, 'test', contract, status, undefined)
}

/** Operations that all belong to one chain, so that they meet. */
function neighbours(count: number): string[] {
  const chain = chainOf('org', 'first')
  const found = ['first']
  for (let i = 0; found.length < count; i++) if (chainOf('org', `op-${i}`) === chain) found.push(`op-${i}`)
  return found
}

type Fault = 'none' | 'not done' | 'reply lost'

/** The store as a process sees it whose every call may fail: before it is done, or after. */
function faulty(store: Store, next: () => Fault): Store {
  const through = async <T>(call: () => T | Promise<T>): Promise<T> => {
    const fault = next()
    if (fault === 'not done') throw new Error('planted: not done')
    const result = await call()
    if (fault === 'reply lost') throw new Error('planted: reply lost')
    return result
  }
  return wrapped(store, {
    claim: (request) => through(() => store.claim(request)),
    read: (id) => through(() => store.read(id)),
  })
}

function wrapped(store: Store, over: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, verb) {
      const value: unknown = Reflect.get(over, verb) ?? Reflect.get(target, verb)
      return typeof value === 'function' ? value.bind(Reflect.has(over, verb) ? over : target) : value
    },
  })
}

/** A process that is killed at its n-th call: nothing that it does afterwards arrives. */
function killedAt(store: Store, call: number, fault: Fault): Store {
  let calls = 0
  return faulty(store, () => (++calls < call ? 'none' : calls === call ? fault : 'not done'))
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

describe('the meter', () => {
  it('a write that arrives long after its process died changes nothing', async () => {
    const store = memoryStore()
    const [id = '', other = ''] = neighbours(2)
    const late: Array<() => unknown> = []
    const slow = wrapped(store, {
      claim(request) {
        late.push(() => store.claim(request))
        throw new Error('planted: on its way')
      },
    })
    // Its register, as a proposal for the first place; and then, with the register written, the place itself.
    const one = given(slow).meter
    one.add(id, 'org')
    await one.close()
    const two = given(killedAt(store, 3, 'not done')).meter
    two.add(id, 'org')
    await two.close()
    const three = given(slow).meter
    three.add(id, 'org')
    await three.close()
    const { meter } = given(store)
    meter.add(other, 'org')
    meter.add(id, 'org')
    await meter.idle()
    expect(await meter.count('org')).toBe(2)
    expect(late.length).toBeGreaterThanOrEqual(2)
    for (const arrive of late) await arrive()
    expect(await given(store).meter.count('org')).toBe(2)
  })

  it('a store that repeats the question while another writer has not committed is read again', async () => {
    const store = memoryStore()
    const [id = '', other = ''] = neighbours(2)
    const before = given(store).meter
    before.add(other, 'org')
    await before.idle()
    // This process believes that the chain is empty, and hears of the place as a MySQL session would.
    let isBlind = true
    const echoing = wrapped(store, {
      async claim(request) {
        const claim = await store.claim(request)
        return claim.state === 'running' ? { ...claim, fingerprint: request.fingerprint } : claim
      },
      async read(at) {
        const record = await store.read(at)
        const isHidden = isBlind && record !== undefined
        isBlind = false
        return isHidden ? undefined : record
      },
    })
    const { meter } = given(echoing)
    meter.add(id, 'org')
    await meter.idle()
    expect(await given(store).meter.count('org')).toBe(2)
  })

  it('while its store is away counts wait, are tried again, and what does not fit is counted and told', async () => {
    const clock = manualClock()
    const store = memoryStore()
    let isAway = true
    const away = faulty(store, () => (isAway ? 'not done' : 'none'))
    const { meter, troubles } = given(away, { clock, waitingMax: 3 })
    for (const key of ['a', 'b', 'c', 'd', 'a']) tell('kept', key)
    await clock.advance(60_000)
    expect(meter.stats()).toMatchObject({ waiting: 3, lost: 1, booked: 0 })
    expect(troubles.map(({ kind }) => kind).sort()).toEqual(['overflow', 'store-failed'])
    isAway = false
    await clock.advance(5_000)
    await meter.idle()
    expect(meter.stats()).toMatchObject({ waiting: 0, lost: 1, booked: 3 })
    expect(await meter.count('org')).toBe(3)
    tell('replayed', 'd')
    await meter.idle()
    expect(await meter.count('org')).toBe(4)
  })

  it('closed while its store is away it says what it leaves behind, and does not touch the store again', async () => {
    const store = memoryStore()
    let calls = 0
    const { meter, troubles } = given(faulty(store, () => (++calls > 0 ? 'not done' : 'none')))
    tell('kept', 'a')
    const idle = meter.idle()
    await Promise.all([meter.close(), expect(idle).rejects.toMatchObject({ code: 'store-closed' })])
    expect(troubles).toContainEqual({ kind: 'left-behind', operations: 1 })
    expect(meter.stats().lost).toBe(1)
    const callsThen = calls
    tell('kept', 'b')
    expect(() => meter.add('c', 'org')).toThrow('closed')
    expect(calls).toBe(callsThen)
  })

  it('A13: catchUp counts what was answered by a process that did not live to count it', async () => {
    const records = memoryStore()
    const engine = new Engine({ store: records, contract: traces })
    const answer = (status: number) =>
      ({ kind: 'answered', answer: { status, headers: [], body: new Uint8Array() } }) as const
    for (let i = 0; i < 250; i++) {
      const key = `key-${i}`
      const operation = { id: operationId(['org'], key), key, fingerprint: key, labels: { principal: 'org' } }
      await engine.execute(operation, async () => answer(i % 5 === 0 ? 422 : 201))
    }
    const { meter } = given(memoryStore())
    expect(await meter.catchUp(records)).toBe(250)
    expect(await meter.count('org')).toBe(200)
    await meter.catchUp(records)
    expect(await meter.count('org')).toBe(200)
  })

  it('hears the real engine: a run, its replay, and a run without the store are one', async () => {
    const { meter } = given(memoryStore(), { contract: 'traces' })
    const operation = { id: operationId(['org'], 'k'), key: 'k', fingerprint: 'f', labels: { principal: 'org' } }
    const work = async () =>
      ({ kind: 'answered', answer: { status: 201, headers: [], body: new Uint8Array() } }) as const
    const broken = new Engine({ store: faulty(memoryStore(), () => 'not done'), contract: traces })
    await broken.execute(operation, work)
    await broken.idle()
    await meter.idle()
    expect(await meter.count('org')).toBe(1)
    const engine = new Engine({ store: memoryStore(), contract: traces })
    for (let i = 0; i < 3; i++) await engine.execute(operation, work)
    await meter.idle()
    expect(await meter.count('org')).toBe(1)
  })

  it('count reads a few records, not all', async () => {
    let reads = 0
    const store = memoryStore()
    const { meter } = given(store)
    for (let i = 0; i < 5_000; i++) meter.add(`op-${i}`, 'org')
    await meter.idle()
    const counting = wrapped(store, {
      read(id) {
        reads++
        return store.read(id)
      },
    })
    expect(await given(counting).meter.count('org')).toBe(5_000)
    expect(reads).toBeLessThan(8 * 2 * Math.ceil(Math.log2(5_000)))
  })

  it('a key that runs again after rememberMs is a new operation, before that it is not', async () => {
    const clock = manualClock()
    const store = memoryStore({ clock })
    const { meter } = given(store, { clock, keepMs: 100_000, rememberMs: 2_000 })
    for (const afterMs of [0, 1_999, 1]) {
      await clock.advance(afterMs)
      tell('kept', 'a')
      await meter.idle()
      expect(await meter.count('org')).toBe(afterMs === 1 ? 2 : 1)
    }
  })

  it('an operation that nobody can be charged for is told, and ends nothing', async () => {
    const { meter, troubles } = given(memoryStore(), {
      tenant: ({ labels }) => {
        if (labels.principal === 'org') throw new Error('no directory')
        return undefined
      },
    })
    tell('kept', 'a')
    publish('kept', { id: 'b' }, 'test', 'nobody', 200, undefined)
    expect(troubles.map(({ kind }) => kind)).toEqual(['no-tenant', 'no-tenant'])
    expect(meter.stats().lost).toBe(2)
  })

  it.each<[string, Record<string, unknown>]>([
    ['store', { store: undefined }],
    ['tenant', { tenant: 'org' }],
    ['keepMs', { keepMs: 0 }],
    ['rememberMs', { keepMs: 10, rememberMs: 11 }],
    ['waitingMax', { waitingMax: 1.5 }],
    ['callMsMax', { callMsMax: Number.NaN }],
  ])('refuses an impossible %s by its name', (field, options) => {
    const all = { store: memoryStore(), tenant: () => 'org', ...options }
    expect(() => createMeter(all as MeterOptions)).toThrow(
      expect.objectContaining({ code: 'config-invalid', message: expect.stringContaining(field) }),
    )
  })
})
