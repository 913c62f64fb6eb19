import { describe, expect, it } from 'vitest'
import { faulty, given, killedAt, neighbours, tell, wrapped } from '../../test/support/meter.ts'
import { traces } from '../contracts/traces.ts'
import { Engine } from '../engine.ts'
import { publish } from '../events.ts'
import { operationId } from '../operation/scope.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { createMeter, type MeterOptions } from './meter.ts'

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
