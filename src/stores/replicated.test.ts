import { describe, expect, it } from 'vitest'
import { answered, combined, line, operation, process, told, turn } from '../../test/support/stores.ts'
import type { Clock } from '../clock.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { type Planted, type StoreEnv, simulate } from '../testing/simulator/index.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { memoryStore } from './memory.ts'
import { type ReplicatedOptions, type ReplicationConflict, replicated } from './replicated.ts'

describe.each(['strict', 'eventual'] as const)('the store suite: %s, two processes of one data centre', (mode) => {
  storeSuite({ describe, it, skip: it.skip }, () =>
    combined((open, clock) => replicated({ mode, local: open.sqlite('local'), global: open.memory('global'), clock })),
  )
})

describe.each(['strict', 'eventual'] as const)('replicated, %s, while the network is whole', (mode) => {
  it('J4: a key runs in one data centre, and the other replays its answer', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    expect(told(await east.process.run(job, 'east'))).toBe('executed, kept')
    expect(told(await west.process.run(job, 'west'))).toBe('replayed east')
    expect(told(await west.process.run(operation(job.id, 'f2'), 'west'))).toBe('key-conflict')
    expect(world.effects).toEqual(['east'])
  })

  it('J4: of a thousand claims in two data centres at once, one runs', async () => {
    const world = makeWorld(mode)
    const centres = [world.centre(), world.centre()]
    const all = Array.from({ length: 1_000 }, (_, i) => centres[i % 2]?.process.run(job, `${i}`))
    const results = await Promise.all(all)
    expect(results.filter((result) => result?.kind === 'executed')).toHaveLength(1)
    expect(world.effects).toHaveLength(1)
  })

  it('J9: a duplicate waits for the owner in the other data centre', async () => {
    const world = makeWorld(mode, { inFlight: 'wait', waitMsMax: LEASE_MS })
    const [east, west] = [world.centre(), world.centre()]
    const owner = east.process.start(job, 'east')
    await turn()
    const duplicate = west.process.run(job, 'west')
    await turn()
    await owner.finish()
    expect(told(await duplicate)).toBe('replayed east')
    expect(world.effects).toEqual(['east'])
  })

  it('an answer of the other data centre is kept here for as long as it has left, and replayed without the global ledger', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    await east.process.run(job, 'east')
    await world.clock.advance(TTL_MS - 1_000)
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    west.global.cut('down')
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    west.global.cut(undefined)
    await world.clock.advance(1_000)
    expect(told(await west.process.run(job, 'again'))).toBe('executed, kept')
    expect(world.effects).toEqual(['east', 'again'])
  })

  it('another payload that is asking the global ledger does not turn a true retry into a conflict', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    await east.process.run(job, 'east')
    const reply = west.global.hold('claim')
    const impostor = west.process.run(operation(job.id, 'f2'), 'x')
    await turn()
    const retry = west.process.run(job, 'x')
    await turn()
    reply()
    expect([told(await impostor), told(await retry)]).toEqual(['key-conflict', 'replayed east'])
  })

  it('J3: an owner that dies is running for its lease and unknown after it, in both data centres', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    east.process.start(job, 'east')
    await turn()
    for (const each of [east.local, east.global]) each.cut('hangs')
    expect(told(await west.process.run(job, 'x'))).toBe('in-flight')
    await world.clock.advance(LEASE_MS)
    for (const each of [east.local, east.global]) each.cut(undefined)
    for (const centre of [west, world.centre(east)]) {
      expect(told(await centre.process.run(job, 'x'))).toBe('outcome-unknown')
    }
    expect(world.effects).toEqual(['east'])
  })

  it('X1: what was taken over in the other data centre is lost to its first owner', async () => {
    const world = makeWorld(mode, { crash: 'rerun' })
    const [east, west] = [world.centre(), world.centre()]
    const slow = east.process.start(job, 'slow')
    await turn()
    for (const each of [east.local, east.global]) each.cut('down', ['renew'])
    await world.clock.advance(LEASE_MS)
    expect(told(await west.process.run(job, 'taken over'))).toBe('executed, kept')
    for (const each of [east.local, east.global]) each.cut(undefined)
    await slow.finish()
    await turn()
    expect(told(await world.centre(west).process.run(job, 'x'))).toBe('replayed taken over')
    if (mode === 'eventual') expect(world.conflicts).toMatchObject([{ id: job.id }])
  })

  it('a claim whose reply was lost runs once', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    east.global.cut('reply-lost', ['claim'])
    const first = east.process.run(job, 'east')
    await turn()
    east.global.cut(undefined)
    await first
    await world.clock.advance(5_000)
    await west.process.run(job, 'west')
    expect(world.effects).toHaveLength(1)
  })

  it('released in one data centre, it is new in the other', async () => {
    const world = makeWorld(mode)
    const [east, west] = [world.centre(), world.centre()]
    await east.process.engine.execute(job, async () => answered('busy', 503))
    expect(told(await west.process.run(job, 'west'))).toBe('executed, kept')
  })

  it('two processes of one data centre share its ledger', async () => {
    const world = makeWorld(mode)
    const east = world.centre()
    const second = world.centre(east)
    const owner = east.process.start(job, 'east')
    await turn()
    expect(told(await second.process.run(job, 'x'))).toBe('in-flight')
    expect(second.global.calls.claim).toBe(0)
    await owner.finish()
    second.global.cut('down')
    expect(told(await second.process.run(job, 'x'))).toBe('replayed east')
  })
})

describe('replicated, strict, when the network is cut', () => {
  it.each(['down', 'reply-lost'] as const)('J4: without the global ledger nothing new runs: %s', async (fault) => {
    const world = makeWorld('strict')
    const [east, west] = [world.centre(), world.centre()]
    await east.process.run(operation('old'), 'old')
    east.global.cut(fault)
    expect(told(await east.process.run(job, 'x'))).toBe('store-unavailable')
    expect(told(await east.process.run(operation('old'), 'x'))).toBe('replayed old')
    east.global.cut(undefined)
    await world.clock.advance(1_000)
    expect(told(await west.process.run(job, 'west'))).toBe('executed, kept')
    expect(told(await east.process.run(job, 'x'))).toBe('replayed west')
    expect(world.effects).toEqual(['old', 'west'])
  })

  it('J4: a cut between claim and settle: the answer is told when the network is back, and no other runs it', async () => {
    const world = makeWorld('strict')
    const [east, west] = [world.centre(), world.centre()]
    const owner = east.process.start(job, 'east')
    await turn()
    east.global.cut('down')
    expect(told(await owner.finish())).toBe('executed, unrecorded')
    expect(told(await west.process.run(job, 'x'))).toBe('in-flight')
    east.global.cut(undefined)
    await world.clock.advance(5_000)
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    expect(world.effects).toEqual(['east'])
  })

  it('J3: a process that dies between the global and the local claim: unknown after its lease, everywhere', async () => {
    const world = makeWorld('strict')
    const [east, west] = [world.centre(), world.centre()]
    east.global.hold('claim')
    void east.process.run(job, 'never')
    await turn()
    for (const centre of [west, world.centre(east)]) expect(told(await centre.process.run(job, 'x'))).toBe('in-flight')
    for (const each of [east.local, east.global]) each.cut('hangs')
    await world.clock.advance(LEASE_MS)
    for (const centre of [west, world.centre(east)]) {
      expect(told(await centre.process.run(job, 'x'))).toBe('outcome-unknown')
    }
    expect(world.effects).toEqual([])
  })

  it.each(['settle', 'release'] as const)('what is being ended is not called running from here: %s', async (verb) => {
    const world = makeWorld('strict')
    const east = world.centre()
    const second = world.centre(east)
    east.global.hold(verb)
    const done = verb === 'settle' ? answered('east') : ({ kind: 'nothing-done' } as const)
    void east.process.engine.execute(job, async () => done)
    await turn()
    // The global ledger has it, and only the reply is still on its way.
    expect(told(await second.process.run(job, 'second'))).toBe(verb === 'settle' ? 'replayed east' : 'executed, kept')
  })

  it('a settle that is asked again: the local copy ends with the answer that was kept the first time', async () => {
    const world = makeWorld('strict')
    const east = world.centre()
    east.global.cut('reply-lost', ['settle'])
    await east.process.run(job, 'east')
    await world.clock.advance(2_000)
    east.global.cut(undefined)
    await world.clock.advance(5_000)
    expect(await east.ledger.read(job.id)).toMatchObject({ state: 'settled' })
    await world.clock.advance(TTL_MS - 7_000)
    expect(told(await east.process.run(job, 'again'))).toBe('executed, kept')
  })

  it('a local ledger that fails after the global one has the answer costs time only', async () => {
    const world = makeWorld('strict')
    const east = world.centre()
    const owner = east.process.start(job, 'east')
    await turn()
    east.local.cut('down')
    expect(told(await owner.finish())).toBe('executed, kept')
    east.local.cut(undefined)
    await world.clock.advance(LEASE_MS)
    expect(told(await east.process.run(job, 'x'))).toBe('replayed east')
    expect(world.errors.length).toBeGreaterThan(0)
  })
})

describe('replicated, eventual, when the network is cut', () => {
  it.each(['down', 'hangs'] as const)('J4: each data centre goes on alone: %s', async (fault) => {
    const world = makeWorld('eventual')
    const east = world.centre()
    east.global.cut(fault)
    const first = east.process.run(job, 'east')
    await world.clock.advance(500)
    expect(told(await first)).toBe('executed, kept')
    expect(told(await east.process.run(job, 'x'))).toBe('replayed east')
    expect(world.effects).toEqual(['east'])
  })

  it('J4: when it is whole again, what ran in one data centre is found in the other', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    for (const { global } of [east, west]) global.cut('down')
    for (let i = 0; i < 200; i++) await east.process.run(operation(`key ${i}`), `east ${i}`)
    await west.process.run(operation('other'), 'west')
    for (const { global } of [east, west]) global.cut(undefined)
    await world.clock.advance(2_000)
    for (let i = 0; i < 200; i++) {
      expect(told(await west.process.run(operation(`key ${i}`), 'x'))).toBe(`replayed east ${i}`)
    }
    expect(told(await east.process.run(operation('other'), 'x'))).toBe('replayed west')
    expect(world.effects).toHaveLength(201)
    expect(world.conflicts).toEqual([])
  })

  it('what is told late ends when it would have ended', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    east.global.cut('down')
    await east.process.run(job, 'east')
    await world.clock.advance(TTL_MS - 2_000)
    east.global.cut(undefined)
    await world.clock.advance(1_999)
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    await world.clock.advance(1)
    expect(told(await west.process.run(job, 'west'))).toBe('executed, kept')
  })

  it('the loss that is promised as possible: a key sent to both during the cut runs twice, and is reported', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    for (const { global } of [east, west]) global.cut('down')
    await east.process.run(job, 'east')
    await west.process.run(job, 'west')
    expect(world.effects).toEqual(['east', 'west'])
    east.global.cut(undefined)
    await world.clock.advance(2_000)
    expect(world.conflicts).toEqual([])
    west.global.cut(undefined)
    await world.clock.advance(2_000)
    expect(world.conflicts).toMatchObject([{ id: job.id, fingerprint: 'f1', global: { state: 'settled' } }])
    expect(Buffer.from(world.conflicts[0]?.local.body ?? []).toString()).toBe('west')
    // Each data centre stays with what it told its clients; a third gets what came first.
    expect(told(await east.process.run(job, 'x'))).toBe('replayed east')
    expect(told(await west.process.run(job, 'x'))).toBe('replayed west')
    expect(told(await world.centre().process.run(job, 'x'))).toBe('replayed east')
  })

  it('the loss that is promised as possible: what a process owed when it died, the other data centre runs again', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    east.global.cut('down')
    await east.process.run(job, 'east')
    expect(told(await west.process.run(job, 'west'))).toBe('executed, kept')
    expect(told(await world.centre(east).process.run(job, 'x'))).toBe('replayed east')
    expect(world.effects).toEqual(['east', 'west'])
  })

  it('a cut between claim and settle: the answer is told when the network is back', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    const owner = east.process.start(job, 'east')
    await turn()
    east.global.cut('down')
    expect(told(await owner.finish())).toBe('executed, kept')
    expect(told(await west.process.run(job, 'x'))).toBe('in-flight')
    east.global.cut(undefined)
    await world.clock.advance(2_000)
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    expect(world.conflicts).toEqual([])
  })

  it.each(['claim', 'settle'] as const)('a lost reply while it is told is no conflict: %s', async (verb) => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    east.global.cut('down')
    await east.process.run(job, 'east')
    east.global.cut(undefined)
    east.global.cut('reply-lost', [verb])
    await world.clock.advance(2_000)
    east.global.cut(undefined)
    await world.clock.advance(2_000)
    expect(told(await west.process.run(job, 'x'))).toBe('replayed east')
    expect(world.conflicts).toEqual([])
  })

  it('what it owes is bounded: at untoldMax nothing new runs, and answers are still replayed', async () => {
    const world = makeWorld('eventual')
    const east = world.centre(undefined, { untoldMax: 10 })
    east.global.cut('down')
    for (let i = 0; i < 10; i++) expect(told(await east.process.run(operation(`${i}`), `${i}`))).toBe('executed, kept')
    expect(told(await east.process.run(job, 'x'))).toBe('store-unavailable')
    expect(told(await east.process.run(operation('0'), 'x'))).toBe('replayed 0')
    east.global.cut(undefined)
    await world.clock.advance(2_000)
    expect(told(await east.process.run(job, 'east'))).toBe('executed, kept')
  })

  it('close tells what can be told, and reports what cannot', async () => {
    const world = makeWorld('eventual')
    const [east, west] = [world.centre(), world.centre()]
    for (const { global } of [east, west]) global.cut('down')
    await east.process.run(job, 'east')
    await west.process.run(operation('lost'), 'west')
    east.global.cut(undefined)
    await world.clock.advance(0)
    await west.store.close()
    expect(String(world.errors[0])).toContain('1 answers were not told')
  })

  it('forget is refused while the global ledger is away', async () => {
    const world = makeWorld('eventual')
    const east = world.centre()
    await east.process.run(job, 'east')
    east.global.cut('down')
    await expect(east.store.forget(job.id)).rejects.toMatchObject({ code: 'store-unavailable' })
    expect(told(await east.process.run(job, 'x'))).toBe('replayed east')
  })
})

describe('replicated in the simulator', () => {
  it('J4 X1 X2: strict, each process a data centre of its own: every invariant holds', async () => {
    let clock: Clock = manualClock()
    const combination: Planted = {
      name: 'replicated, strict',
      caughtBy: [],
      link: (global) => replicated({ mode: 'strict', local: memoryStore({ clock }), global, clock }),
    }
    const store = (env: StoreEnv) => {
      clock = env.clock
      return memoryStore({ clock })
    }
    const report = await simulate({ seed: 1, schedules: 3_000, store, planted: combination })
    expect(report.failure?.story).toBeUndefined()
    expect(report.coverage.replayed).toBeGreaterThan(0)
  }, 120_000)
})

it('a mode or bound that cannot work is refused at once', () => {
  const stores = { local: memoryStore(), global: memoryStore() }
  expect(() => replicated({ ...stores, mode: 'both' as 'strict' })).toThrow('mode is both')
  expect(() => replicated({ ...stores, mode: 'eventual', untoldMax: 0 })).toThrow('untoldMax is 0')
  expect(() => replicated({ ...stores, global: stores.local, mode: 'strict' })).toThrow('two different stores')
})

const LEASE_MS = 10_000
const TTL_MS = 60_000
const job = operation('job')

/** A global ledger, and any number of data centres, each with a ledger of its own and one process or more. */
function makeWorld(mode: ReplicatedOptions['mode'], changes: object = {}) {
  const clock = manualClock()
  const shared = memoryStore({ clock })
  const effects: string[] = []
  const conflicts: ReplicationConflict[] = []
  const errors: unknown[] = []
  const contract = { lease: { ms: LEASE_MS }, ttl: { committedMs: TTL_MS }, ...changes }
  const centre = (same?: { ledger: ReturnType<typeof memoryStore> }, over: Partial<ReplicatedOptions> = {}) => {
    const ledger = same?.ledger ?? memoryStore({ clock })
    const [local, global] = [line(ledger), line(shared)]
    const hooks = { onConflict: conflicts.push.bind(conflicts), onError: errors.push.bind(errors) }
    const store = replicated({ mode, ...hooks, clock, ...over, local: local.store, global: global.store })
    return { ledger, local, global, store, process: process(store, clock, effects, contract) }
  }
  return { clock, effects, conflicts, errors, centre }
}
