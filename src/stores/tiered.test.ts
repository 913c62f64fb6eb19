import { describe, expect, it } from 'vitest'
import { combined, type Line, line, operation, process, told, turn } from '../../test/support/stores.ts'
import type { Clock } from '../clock.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { type Planted, type StoreEnv, simulate } from '../testing/simulator/index.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { memoryStore } from './memory.ts'
import { type TieredOptions, tiered } from './tiered.ts'

describe('the store suite: a memory cache before a SQLite ledger, two processes', () => {
  storeSuite({ describe, it, skip: it.skip }, () =>
    combined((open, clock) => tiered({ cache: memoryStore({ clock }), ledger: open.sqlite('ledger'), clock })),
  )
})

describe('tiered', () => {
  it('J1 J12: the answer that the owner settled is replayed from the cache, without the ledger', async () => {
    const world = makeWorld()
    const gate = world.gate()
    expect(told(await gate.process.run(submit, 'job abc'))).toBe('executed, kept')
    gate.ledger.cut('down')
    expect(told(await gate.process.run(submit, 'job def'))).toBe('replayed job abc')
    expect(world.effects).toEqual(['job abc'])
  })

  it('J12: an answer learned from the ledger fills the cache for as long as it has left', async () => {
    const world = makeWorld()
    const [first, second] = [world.gate(), world.gate()]
    await first.process.run(submit, 'job abc')
    await world.clock.advance(TTL_MS - 1_000)
    expect(told(await second.process.run(submit, 'x'))).toBe('replayed job abc')
    second.ledger.cut('down')
    expect(told(await second.process.run(submit, 'x'))).toBe('replayed job abc')
    await world.clock.advance(1_000)
    // Expired in the ledger: the cache must not know it any more, although the ledger cannot be asked.
    expect(told(await second.process.run(submit, 'x'))).toBe('store-unavailable')
    second.ledger.cut(undefined)
    expect(told(await second.process.run(submit, 'job def'))).toBe('executed, kept')
    expect(world.effects).toEqual(['job abc', 'job def'])
  })

  it('J9: a duplicate of a pending key waits for it; of a committed or rejected one it is answered at once', async () => {
    const world = makeWorld({ contract: { inFlight: 'wait', waitMsMax: 10_000 } })
    const gate = world.gate()
    const owner = gate.process.start(submit, 'job abc')
    await turn()
    const duplicate = gate.process.run(submit, 'x')
    await turn()
    await owner.finish()
    expect(told(await duplicate)).toBe('replayed job abc')
    expect(told(await gate.process.run(submit, 'x'))).toBe('replayed job abc')
    await gate.process.engine.execute(operation('refused'), async () => {
      return { kind: 'answered', answer: { status: 422, headers: [], body: Buffer.from('no room') } }
    })
    expect(told(await gate.process.run(operation('refused'), 'x'))).toBe('replayed no room')
    expect(world.effects).toEqual(['job abc'])
  })

  it('J10: a thousand duplicates of one pending key are one claim in the ledger', async () => {
    const world = makeWorld({ contract: { inFlight: 'wait', waitMsMax: 10_000 } })
    const gate = world.gate()
    const owner = gate.process.start(submit, 'job abc')
    await turn()
    const duplicates = Array.from({ length: 1_000 }, () => gate.process.run(submit, 'x'))
    await turn()
    expect(gate.ledger.calls).toMatchObject({ claim: 1, read: 0 })
    await owner.finish()
    expect(new Set((await Promise.all(duplicates)).map(told))).toEqual(new Set(['replayed job abc']))
    expect(gate.ledger.calls).toMatchObject({ claim: 1, settle: 1 })
    expect(gate.ledger.calls.read).toBeLessThanOrEqual(1)
    expect(world.effects).toEqual(['job abc'])
  })

  it('J10: a thousand that come before the ledger has answered the first are one claim, too', async () => {
    const world = makeWorld()
    const gate = world.gate()
    const reply = gate.ledger.hold('claim')
    const all = Array.from({ length: 1_000 }, (_, i) => gate.process.run(submit, `job ${i}`))
    await turn()
    reply()
    const results = (await Promise.all(all)).map(told)
    expect(results.filter((result) => result === 'executed, kept')).toHaveLength(1)
    expect(gate.ledger.calls.claim).toBe(1)
    expect(world.effects).toEqual(['job 0'])
  })

  it('J10: duplicates of a key that another process holds share the question', async () => {
    const world = makeWorld()
    const [first, second] = [world.gate(), world.gate()]
    const owner = first.process.start(submit, 'job abc')
    await turn()
    const reply = second.ledger.hold('claim')
    const all = Array.from({ length: 1_000 }, () => second.process.run(submit, 'x'))
    await turn()
    reply()
    expect(new Set((await Promise.all(all)).map(told))).toEqual(new Set(['in-flight']))
    expect(second.ledger.calls.claim).toBe(2)
    await owner.finish()
    expect(world.effects).toEqual(['job abc'])
  })

  it('a question that is never answered holds nobody back for longer than a second', async () => {
    const world = makeWorld()
    const gate = world.gate()
    gate.ledger.cut('hangs')
    const lost = gate.process.run(submit, 'x')
    await world.clock.advance(1_000)
    gate.ledger.cut(undefined)
    expect(told(await gate.process.run(submit, 'job abc'))).toBe('executed, kept')
    await world.clock.advance(10_000)
    expect(told(await lost)).toBe('replayed job abc')
    expect(world.effects).toEqual(['job abc'])
  })

  it('another payload is a conflict, whether the key is pending here, settled in the cache, or neither', async () => {
    const world = makeWorld()
    const [first, second] = [world.gate(), world.gate()]
    const owner = first.process.start(submit, 'job abc')
    await turn()
    for (const gate of [first, second]) expect(told(await gate.process.run(other, 'x'))).toBe('key-conflict')
    await owner.finish()
    for (const gate of [first, second]) expect(told(await gate.process.run(other, 'x'))).toBe('key-conflict')
    expect(told(await first.process.run(submit, 'x'))).toBe('replayed job abc')
  })

  it('another payload that is asking the ledger does not turn a true retry into a conflict', async () => {
    const world = makeWorld()
    const [first, second] = [world.gate(), world.gate()]
    await first.process.run(submit, 'job abc')
    const reply = second.ledger.hold('claim')
    const impostor = second.process.run(other, 'x')
    await turn()
    const retry = second.process.run(submit, 'x')
    await turn()
    reply()
    expect([told(await impostor), told(await retry)]).toEqual(['key-conflict', 'replayed job abc'])
  })

  describe('losing the cache costs only time', () => {
    it('J3: a cache that is emptied between claim and settle, and after it, changes no answer', async () => {
      const world = makeWorld()
      const gate = world.gate()
      const owner = gate.process.start(submit, 'job abc')
      await turn()
      await gate.cache.forget(submit.id)
      expect(told(await gate.process.run(submit, 'x'))).toBe('in-flight')
      await owner.finish()
      await gate.cache.forget(submit.id)
      expect(told(await gate.process.run(submit, 'x'))).toBe('replayed job abc')
      expect(world.effects).toEqual(['job abc'])
    })

    it('J3: a process that starts again with an empty cache finds everything in the ledger', async () => {
      const world = makeWorld()
      const before = world.gate()
      await before.process.run(submit, 'job abc')
      before.process.start(operation('pending'), 'job pending')
      await turn()
      before.ledger.cut('hangs')
      const after = world.gate()
      expect(told(await after.process.run(submit, 'x'))).toBe('replayed job abc')
      expect(told(await after.process.run(operation('pending'), 'x'))).toBe('in-flight')
      await world.clock.advance(LEASE_MS)
      expect(told(await after.process.run(operation('pending'), 'x'))).toBe('outcome-unknown')
      expect(world.effects).toEqual(['job abc', 'job pending'])
    })

    it.each(['down', 'hangs', 'reply-lost'] as const)('a cache server that is away: %s', async (fault) => {
      const world = makeWorld()
      const errors: unknown[] = []
      const cache = line(memoryStore({ clock: world.clock }))
      const gate = world.gate({ cache: cache.store, onCacheError: (error) => errors.push(error) })
      cache.cut(fault)
      const first = gate.process.run(submit, 'job abc')
      await world.clock.advance(100)
      expect(told(await first)).toBe('executed, kept')
      const second = gate.process.run(submit, 'x')
      await world.clock.advance(100)
      expect(told(await second)).toBe('replayed job abc')
      expect(errors.length).toBeGreaterThan(0)
      // It is left alone for a second, and used again afterwards.
      cache.cut(undefined)
      await world.clock.advance(1_000)
      await gate.process.run(submit, 'x')
      await turn()
      gate.ledger.cut('down')
      expect(told(await gate.process.run(submit, 'x'))).toBe('replayed job abc')
      expect(world.effects).toEqual(['job abc'])
    })

    it('J2: the cache is bounded; what had to make room is found in the ledger', async () => {
      const world = makeWorld()
      const cache = memoryStore({ clock: world.clock, recordsMax: 10 })
      const gate = world.gate({ cache })
      const pending = gate.process.start(submit, 'pending')
      await turn()
      for (let i = 0; i < 50; i++) await gate.process.run(operation(`key ${i}`), `job ${i}`)
      expect((await cache.list({ limit: 100 })).length).toBe(10)
      expect(told(await gate.process.run(submit, 'x'))).toBe('in-flight')
      expect(told(await gate.process.run(operation('key 0'), 'x'))).toBe('replayed job 0')
      await pending.finish()
      expect(world.effects).toHaveLength(51)
    })
  })

  describe('what the cache may not say', () => {
    it('after forget through this store the key is new, in the ledger and in the cache', async () => {
      const world = makeWorld()
      const gate = world.gate()
      await gate.process.run(submit, 'job abc')
      expect(await gate.store.forget(submit.id)).toBe(true)
      expect(told(await gate.process.run(submit, 'job def'))).toBe('executed, kept')
    })

    it.each(['forget', 'redact'] as const)('%s says so when the cache could not be told', async (verb) => {
      const world = makeWorld()
      const cache = line(memoryStore({ clock: world.clock }))
      const gate = world.gate({ cache: cache.store })
      await gate.process.run(submit, 'job abc')
      cache.cut('down')
      await expect(gate.store[verb](submit.id)).rejects.toMatchObject({ code: 'store-unavailable' })
      cache.cut(undefined)
      await gate.store[verb](submit.id)
      const again = told(await gate.process.run(submit, 'job def'))
      expect(again).toBe(verb === 'forget' ? 'executed, kept' : 'answer-not-kept')
    })

    it('an answer that was on its way while it was forgotten is not put back', async () => {
      const world = makeWorld()
      const [first, second] = [world.gate(), world.gate()]
      await first.process.run(submit, 'job abc')
      const reply = second.ledger.hold('claim')
      const late = second.process.run(submit, 'x')
      await turn()
      await second.store.forget(submit.id)
      reply()
      expect(told(await late)).toBe('replayed job abc')
      expect(told(await second.process.run(submit, 'job def'))).toBe('executed, kept')
    })

    it('after forget in another process the old answer is replayed for cacheTtlMsMax at most', async () => {
      const world = makeWorld()
      const [first, second] = [world.gate({ cacheTtlMsMax: 5_000 }), world.gate()]
      await first.process.run(submit, 'job abc')
      await second.store.forget(submit.id)
      await world.clock.advance(4_999)
      expect(told(await first.process.run(submit, 'x'))).toBe('replayed job abc')
      await world.clock.advance(1)
      expect(told(await first.process.run(submit, 'job def'))).toBe('executed, kept')
    })

    it('X1: a lease that lapsed here and was taken over elsewhere is not called running, and its owner settles nothing', async () => {
      const world = makeWorld({ contract: { crash: 'rerun' } })
      const [first, second] = [world.gate(), world.gate()]
      const slow = first.process.start(submit, 'slow')
      await turn()
      first.ledger.cut('down', ['renew'])
      await world.clock.advance(LEASE_MS)
      expect(told(await second.process.run(submit, 'taken over'))).toBe('executed, kept')
      first.ledger.cut(undefined)
      expect(told(await slow.finish())).toBe('executed, unrecorded')
      expect(told(await first.process.run(submit, 'x'))).toBe('replayed taken over')
    })

    it('a renewed lease is running here for as long as it is there', async () => {
      const world = makeWorld()
      const gate = world.gate()
      const owner = gate.process.start(submit, 'job abc')
      await world.clock.advance(3 * LEASE_MS)
      expect(told(await gate.process.run(submit, 'x'))).toBe('in-flight')
      expect(gate.ledger.calls.claim).toBe(1)
      await owner.finish()
    })

    it('an operation that was given up or released is not called running', async () => {
      const world = makeWorld()
      const gate = world.gate()
      await gate.process.engine.execute(submit, async () => ({ kind: 'nothing-done' }))
      expect(told(await gate.process.run(submit, 'job abc'))).toBe('executed, kept')
      await gate.process.engine.execute(operation('broken'), async () => ({ kind: 'broken' }))
      expect(told(await gate.process.run(operation('broken'), 'x'))).toBe('outcome-unknown')
    })

    it('a claim whose reply comes after its release is not called running', async () => {
      const world = makeWorld()
      const gate = world.gate()
      const reply = gate.ledger.hold('claim')
      const claim = gate.store.claim({ ...CLAIM, token: 'first' })
      await turn()
      await gate.store.release(submit.id, 'first')
      reply()
      await claim
      expect(await gate.store.claim({ ...CLAIM, token: 'second' })).toEqual({ state: 'acquired', attempt: 1 })
    })

    it('a settle whose reply was lost: the answer is the one in the ledger', async () => {
      const world = makeWorld()
      const gate = world.gate()
      gate.ledger.cut('reply-lost', ['settle'])
      expect(told(await gate.process.run(submit, 'job abc'))).toBe('executed, unrecorded')
      expect(told(await gate.process.run(submit, 'x'))).toBe('replayed job abc')
      gate.ledger.cut(undefined)
      await world.clock.advance(1_000)
      gate.ledger.cut('down')
      expect(told(await gate.process.run(submit, 'x'))).toBe('replayed job abc')
      expect(world.effects).toEqual(['job abc'])
    })
  })

  it('X5: without a ledger that pushes, waiters are woken in this process, and look again for those elsewhere', async () => {
    const world = makeWorld({ contract: { inFlight: 'wait', waitMsMax: 10_000 }, push: false })
    const [first, second] = [world.gate(), world.gate()]
    const owner = first.process.start(submit, 'job abc')
    await turn()
    const here = first.process.run(submit, 'x')
    const elsewhere = second.process.run(submit, 'x')
    await turn()
    await owner.finish()
    expect(told(await here)).toBe('replayed job abc')
    await world.clock.advance(1_000)
    expect(told(await elsewhere)).toBe('replayed job abc')
  })

  it('a bound that cannot work, or the same store twice, is refused at once', () => {
    const store = memoryStore()
    expect(() => tiered({ cache: store, ledger: store })).toThrow('two different stores')
    expect(() => tiered({ cache: memoryStore(), ledger: store, cacheTtlMsMax: 0 })).toThrow('cacheTtlMsMax is 0')
  })
})

describe('tiered in the simulator', () => {
  it('J3 X1 X2: a cache in each process, crashes and lost replies: every invariant holds', async () => {
    let clock: Clock = manualClock()
    const combined: Planted = {
      name: 'tiered',
      caughtBy: [],
      // Without timers: nothing in the simulator would stop those of a process that crashed.
      link: (ledger) => {
        const quiet = { now: () => clock.now(), schedule: () => () => {} }
        return tiered({ cache: memoryStore({ clock, recordsMax: 2 }), ledger, clock: quiet })
      },
    }
    const store = (env: StoreEnv) => {
      clock = env.clock
      return memoryStore({ clock })
    }
    const report = await simulate({ seed: 1, schedules: 3_000, store, planted: combined })
    expect(report.failure?.story).toBeUndefined()
    expect(report.coverage.replayed).toBeGreaterThan(0)
  }, 120_000)
})

const LEASE_MS = 10_000
const TTL_MS = 30_000
const submit = operation('submit')
const other = operation('submit', 'f2')
const CLAIM = { ...submit, leaseMs: LEASE_MS, unknownTtlMs: LEASE_MS, takeover: false }

/** One ledger, any number of gates before it: each with its own cache, line and engine. One log of effects. */
function makeWorld(options: { push?: boolean; contract?: object } = {}) {
  const clock = manualClock()
  const records = memoryStore({ clock })
  const ledger = records
  if (options.push === false) delete ledger.waitFor
  const effects: string[] = []
  const contract = { lease: { ms: LEASE_MS }, ttl: { committedMs: TTL_MS }, ...options.contract }
  const gate = (over: Partial<TieredOptions> = {}) => {
    const way: Line = line(ledger)
    const cache = over.cache ?? memoryStore({ clock })
    const store = tiered({ ledger: way.store, clock, ...over, cache })
    return { ledger: way, cache, store, process: process(store, clock, effects, contract) }
  }
  return { clock, effects, gate }
}
