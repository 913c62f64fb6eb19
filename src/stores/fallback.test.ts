import { describe, expect, it } from 'vitest'
import { combined, type Line, line, operation, process, told, turn } from '../../test/support/stores.ts'
import type { Clock } from '../clock.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { type Planted, type StoreEnv, simulate } from '../testing/simulator/index.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { type FallbackConflict, type FallbackOptions, fallback } from './fallback.ts'
import { memoryStore } from './memory.ts'

describe('the store suite: on the primary, two processes', () => {
  storeSuite({ describe, it, skip: it.skip }, () =>
    combined((open, clock) =>
      fallback({ primary: open.sqlite('primary'), secondary: open.memory('secondary'), clock }),
    ),
  )
})

describe('the store suite: the primary is back after an outage, and the secondary is still asked', () => {
  storeSuite({ describe, it, skip: it.skip }, () =>
    combined(async (open, clock) => {
      const primary = line(open.memory('primary'))
      const secondary = open.memory('secondary')
      const bounds = { failuresMax: 1, awayMsMin: 0, probeEveryMs: 1, watchEveryMs: 1_000_000_000 }
      const ticking = { now: () => clock.now() + ticks, schedule: clock.schedule }
      let ticks = 0
      const store = fallback({ ...bounds, primary: primary.store, secondary, clock: ticking })
      primary.cut('down')
      await store.claim({ ...CLAIM, token: 'warm' })
      primary.cut(undefined)
      ticks++
      await store.release(CLAIM.id, 'warm')
      await turn()
      return store
    }),
  )
})

describe('fallback', () => {
  it('says in its name that it is best effort', () => {
    const world = makeWorld()
    expect(world.host().store.name).toBe('best-effort fallback(memory, memory)')
  })

  describe('R7: the primary first, the secondary while it is away', () => {
    it('uses the primary alone while it is there', async () => {
      const world = makeWorld()
      const host = world.host()
      await host.process.run(order, 'order')
      expect(told(await host.process.run(order, 'x'))).toBe('replayed order')
      expect(await world.secondary.list()).toEqual([])
      expect(host.secondary.calls).toMatchObject({ claim: 0, read: 0, list: 1 })
    })

    it('a single failure refuses; only failures in a row, over some time, switch', async () => {
      const world = makeWorld()
      const host = world.host()
      host.primary.cut('down')
      for (let i = 0; i < 10; i++) expect(told(await host.process.run(order, 'x'))).toBe('store-unavailable')
      expect(await world.secondary.list()).toEqual([])
      host.primary.cut(undefined)
      expect(told(await host.process.run(operation('between'), 'between'))).toBe('executed, kept')
      host.primary.cut('down')
      await host.process.run(order, 'x')
      await world.clock.advance(AWAY_MS_MIN)
      expect(told(await host.process.run(order, 'order'))).toBe('executed, kept')
      expect(told(await host.process.run(order, 'x'))).toBe('replayed order')
      expect((await world.secondary.list()).map(({ id }) => id)).toEqual([order.id])
      expect(world.effects).toEqual(['between', 'order'])
    })

    it.each(['down', 'hangs', 'reply-lost'] as const)('away means: %s', async (fault) => {
      const world = makeWorld()
      const host = world.host()
      await world.outage(host, fault)
      const first = host.process.run(order, 'order')
      await world.clock.advance(5_000)
      expect(told(await first)).toBe('executed, kept')
      host.primary.cut(undefined)
      await world.back(host)
      expect(told(await host.process.run(order, 'x'))).toBe('replayed order')
      expect(world.effects).toEqual(['order'])
    })

    it('a primary that is full or misused is not away', async () => {
      const world = makeWorld()
      const host = world.host({ primary: memoryStore({ clock: world.clock, recordsMax: 1 }) })
      host.process.start(operation('a'), 'a')
      await turn()
      for (let i = 0; i < 5; i++) {
        expect(told(await host.process.run(order, 'x'))).toBe('store-unavailable')
        await world.clock.advance(1_000)
      }
      expect(await world.secondary.list()).toEqual([])
    })
  })

  describe('R12: a key that was claimed before the switch', () => {
    it('is settled on the secondary when the primary dies between claim and settle, and replayed from there', async () => {
      const world = makeWorld()
      const [host, other] = [world.host(), world.host()]
      const owner = host.process.start(order, 'order')
      await turn()
      for (const { primary } of [host, other]) primary.cut('down')
      expect(told(await owner.finish())).toBe('executed, kept')
      await world.outage(other)
      expect(told(await other.process.run(order, 'x'))).toBe('replayed order')
      expect(told(await other.process.run(operation(order.id, 'f2'), 'x'))).toBe('key-conflict')
      expect(world.effects).toEqual(['order'])
    })

    it('moves to the secondary at once, so that others find it running there, and are woken', async () => {
      // No renewal comes in between that would move it.
      const world = makeWorld({ inFlight: 'wait', waitMsMax: 10_000, lease: { ms: 60_000 } })
      const [host, other] = [world.host(), world.host()]
      const owner = host.process.start(order, 'order')
      await turn()
      for (const each of [host, other]) await world.outage(each)
      expect(await world.secondary.read(order.id)).toMatchObject({ state: 'running' })
      const duplicate = other.process.run(order, 'x')
      await turn()
      expect(told(await owner.finish())).toBe('executed, kept')
      expect(told(await duplicate)).toBe('replayed order')
      expect(world.effects).toEqual(['order'])
    })

    it('is renewed on the secondary for as long as its handler runs', async () => {
      const world = makeWorld()
      const [host, other] = [world.host(), world.host()]
      const owner = host.process.start(order, 'order')
      await turn()
      for (const each of [host, other]) await world.outage(each)
      for (let i = 0; i < 5; i++) {
        await world.clock.advance(LEASE_MS - 1_000)
        expect(told(await other.process.run(order, 'x'))).toBe('in-flight')
      }
      expect(owner.run().signal.aborted).toBe(false)
      expect(told(await owner.finish())).toBe('executed, kept')
    })

    it('X1: does not move once its lease has lapsed: another may have taken it over on the primary', async () => {
      const world = makeWorld({ crash: 'rerun' })
      const [host, other] = [world.host({ failuresMax: 100 }), world.host()]
      const slow = host.process.start(order, 'slow')
      await turn()
      host.primary.cut('down', ['renew', 'settle'])
      await world.clock.advance(LEASE_MS)
      expect(told(await other.process.run(order, 'taken over'))).toBe('executed, kept')
      expect(told(await slow.finish())).toBe('executed, unrecorded')
      expect(await world.secondary.list()).toEqual([])
      expect(told(await host.process.run(order, 'x'))).toBe('replayed taken over')
    })

    it('that is released there is new again, on the primary too when it is back', async () => {
      const world = makeWorld()
      const host = world.host()
      const end = Promise.withResolvers<void>()
      const busy = host.process.engine.execute(order, async () => {
        await end.promise
        return { kind: 'nothing-done' }
      })
      await turn()
      await world.outage(host)
      end.resolve()
      expect(told(await busy)).toBe('executed, released')
      host.primary.cut(undefined)
      await world.back(host)
      expect(told(await host.process.run(order, 'order'))).toBe('executed, kept')
    })
  })

  describe('R12: when the primary is back', () => {
    it('keys that ran during the outage are replayed, in every process, until their records are gone', async () => {
      const world = makeWorld()
      const [host, other] = [world.host(), world.host()]
      await world.outage(host)
      await host.process.run(order, 'order')
      host.primary.cut(undefined)
      await world.back(host)
      await host.process.run(operation('new'), 'new')
      expect(await world.primary.read('new')).toMatchObject({ state: 'settled' })
      // The other process never saw the outage.
      for (const each of [host, other, world.host()]) {
        expect(told(await each.process.run(order, 'x'))).toBe('replayed order')
        expect(await world.primary.read(order.id)).toBeUndefined()
      }
      await world.clock.advance(TTL_MS)
      expect(told(await other.process.run(order, 'again'))).toBe('executed, kept')
      expect(await world.primary.read(order.id)).toMatchObject({ state: 'settled' })
      expect(world.effects).toEqual(['order', 'new', 'again'])
    })

    it('and the last record of the outage is gone, the secondary is no longer asked for each claim', async () => {
      const world = makeWorld()
      const host = world.host()
      await world.outage(host)
      await host.process.run(order, 'order')
      host.primary.cut(undefined)
      await world.back(host)
      await world.clock.advance(TTL_MS)
      await host.process.run(operation('a'), 'a')
      const { read } = host.secondary.calls
      for (let i = 0; i < 100; i++) await host.process.run(operation(`${i}`), `${i}`)
      expect(host.secondary.calls.read).toBe(read)
    })

    it('an operation that is still running on the secondary is running', async () => {
      const world = makeWorld()
      const [host, other] = [world.host(), world.host()]
      await world.outage(host)
      const owner = host.process.start(order, 'order')
      await turn()
      host.primary.cut(undefined)
      await world.back(host)
      for (const each of [host, other]) expect(told(await each.process.run(order, 'x'))).toBe('in-flight')
      expect(told(await owner.finish())).toBe('executed, kept')
      expect(told(await other.process.run(order, 'x'))).toBe('replayed order')
    })

    it('a lapsed claim on the primary is not taken over when the secondary has its answer', async () => {
      const world = makeWorld({ crash: 'rerun' })
      const [host, other] = [world.host(), world.host()]
      const owner = host.process.start(order, 'order')
      await turn()
      host.primary.cut('down')
      await owner.finish()
      await world.clock.advance(LEASE_MS)
      expect((await world.primary.read(order.id))?.state).toBe('unknown')
      expect(told(await other.process.run(order, 'x'))).toBe('replayed order')
      expect(world.effects).toEqual(['order'])
    })

    it('a secondary that cannot be asked, although it has records, refuses and leaves nothing claimed', async () => {
      const world = makeWorld()
      const host = world.host()
      await world.outage(host)
      await host.process.run(order, 'order')
      host.primary.cut(undefined)
      await world.back(host)
      host.secondary.cut('down')
      expect(told(await host.process.run(operation('new'), 'x'))).toBe('store-unavailable')
      expect(await world.primary.read('new')).toBeUndefined()
      host.secondary.cut(undefined)
      expect(told(await host.process.run(operation('new'), 'new'))).toBe('executed, kept')
    })
  })

  it('X2: a takeover that the secondary could not confirm is undone: the outcome stays unknown', async () => {
    const world = makeWorld({ crash: 'rerun' })
    const [host, other] = [world.host(), world.host()]
    host.process.start(order, 'order')
    await turn()
    for (const each of [host.primary, host.secondary]) each.cut('hangs')
    await world.outage(other)
    await other.process.run(operation('b'), 'b')
    other.primary.cut(undefined)
    await world.back(other)
    await world.clock.advance(LEASE_MS)
    other.secondary.cut('down')
    expect(told(await other.process.run(order, 'x'))).toBe('store-unavailable')
    expect((await world.primary.read(order.id))?.state).toBe('unknown')
    expect(world.effects).toEqual(['order', 'b'])
  })

  it('a secondary that is away while the primary is there, and that nobody used, is not missed', async () => {
    const world = makeWorld()
    const host = world.host()
    host.secondary.cut('down')
    expect(told(await host.process.run(order, 'order'))).toBe('executed, kept')
  })

  it('both away: refused, and nothing runs', async () => {
    const world = makeWorld()
    const host = world.host()
    await world.outage(host)
    host.secondary.cut('down')
    expect(told(await host.process.run(order, 'x'))).toBe('store-unavailable')
    expect(world.effects).toEqual([])
  })

  it('an operator sees both stores, and forgets in both; not while the primary is away', async () => {
    const world = makeWorld()
    const host = world.host()
    await host.process.run(operation('a'), 'a')
    await world.outage(host)
    await host.process.run(operation('b'), 'b')
    await expect(host.store.forget('a')).rejects.toMatchObject({ code: 'store-unavailable' })
    host.primary.cut(undefined)
    await world.back(host)
    expect((await host.store.list()).map(({ id }) => id)).toEqual(['a', 'b'])
    expect(await host.store.read('b')).toMatchObject({ state: 'settled' })
    for (const id of ['a', 'b']) expect(await host.store.forget(id)).toBe(true)
    expect(await host.store.list()).toEqual([])
  })

  describe('the loss that is promised as possible: it runs twice', () => {
    it('when it was answered on the primary, and is retried while the primary is away', async () => {
      const world = makeWorld()
      const host = world.host()
      await host.process.run(order, 'first')
      await world.outage(host)
      expect(told(await host.process.run(order, 'second'))).toBe('executed, kept')
      expect(world.effects).toEqual(['first', 'second'])
    })

    it('when its owner dies together with the primary', async () => {
      const world = makeWorld()
      const [host, other] = [world.host(), world.host()]
      host.process.start(order, 'first')
      await turn()
      for (const each of [host.primary, host.secondary]) each.cut('hangs')
      await world.outage(other)
      expect(told(await other.process.run(order, 'second'))).toBe('executed, kept')
      expect(world.effects).toEqual(['first', 'second'])
    })

    it('when the primary itself has lost it', async () => {
      const world = makeWorld()
      const host = world.host()
      await host.process.run(order, 'first')
      await world.primary.forget(order.id)
      expect(told(await host.process.run(order, 'second'))).toBe('executed, kept')
      expect(world.effects).toEqual(['first', 'second'])
    })

    it('when only one of two processes can reach the primary; it is reported', async () => {
      const world = makeWorld()
      const conflicts: FallbackConflict[] = []
      const host = world.host({ onConflict: (conflict) => conflicts.push(conflict) })
      const cutOff = world.host()
      const owner = host.process.start(order, 'first')
      await turn()
      await world.outage(cutOff)
      expect(told(await cutOff.process.run(order, 'second'))).toBe('executed, kept')
      host.primary.cut('down')
      expect(told(await owner.finish())).toBe('executed, unrecorded')
      expect(conflicts).toMatchObject([{ id: order.id }])
      expect(world.effects).toEqual(['first', 'second'])
    })

    it('within watchEveryMs after another process has gone over, and not after it', async () => {
      const world = makeWorld()
      const [host, cutOff] = [world.host(), world.host()]
      await world.outage(cutOff)
      await host.process.run(operation('x'), 'x')
      await cutOff.process.run(order, 'first')
      expect(told(await host.process.run(order, 'second'))).toBe('executed, kept')
      await cutOff.process.run(operation('b'), 'b')
      await world.clock.advance(WATCH_EVERY_MS)
      expect(told(await host.process.run(operation('b'), 'x'))).toBe('replayed b')
      expect(world.effects).toEqual(['x', 'first', 'second', 'b'])
    })
  })

  it('a bound that cannot work is refused at once', () => {
    const options = { primary: memoryStore(), secondary: memoryStore() }
    expect(() => fallback({ ...options, failuresMax: 0 })).toThrow('failuresMax is 0')
    expect(() => fallback({ ...options, secondary: options.primary })).toThrow('two different stores')
  })
})

describe('fallback in the simulator', () => {
  it('R12 X1: answers that the primary did not take and the secondary kept break no invariant', async () => {
    let quiet: Clock = manualClock()
    let secondary = memoryStore()
    const combination: Planted = {
      name: 'fallback',
      caughtBy: [],
      contract: { storeFailure: 'closed' },
      // It never switches: a switch is what the tests above show to be best effort. The secondary is looked at each time.
      link: (primary) => fallback({ primary, secondary, awayMsMin: 1_000_000, watchEveryMs: 1, clock: quiet }),
    }
    const store = ({ clock }: StoreEnv) => {
      // Without timers: nothing in the simulator would stop those of a process that crashed.
      quiet = { now: () => clock.now(), schedule: () => () => {} }
      secondary = memoryStore({ clock })
      return memoryStore({ clock })
    }
    const report = await simulate({ seed: 1, schedules: 3_000, store, planted: combination })
    expect(report.failure?.story).toBeUndefined()
    expect(report.coverage.replayed).toBeGreaterThan(0)
  }, 120_000)
})

const LEASE_MS = 10_000
const TTL_MS = 60_000
const AWAY_MS_MIN = 1_000
const WATCH_EVERY_MS = 1_000
const order = operation('order')
const CLAIM = { ...order, leaseMs: LEASE_MS, unknownTtlMs: LEASE_MS, takeover: false }

/** A primary and a secondary, and any number of hosts that use both, each over lines of its own. */
function makeWorld(changes: object = {}) {
  const clock = manualClock()
  const primary = memoryStore({ clock })
  const secondary = memoryStore({ clock })
  const effects: string[] = []
  const contract = { lease: { ms: LEASE_MS }, ttl: { committedMs: TTL_MS }, ...changes }
  const host = (over: Partial<FallbackOptions> = {}) => {
    const lines = { primary: line(over.primary ?? primary), secondary: line(secondary) }
    const bounds = { awayMsMin: AWAY_MS_MIN, watchEveryMs: WATCH_EVERY_MS }
    const store = fallback({
      ...bounds,
      clock,
      ...over,
      primary: lines.primary.store,
      secondary: lines.secondary.store,
    })
    return { ...lines, store, process: process(store, clock, effects, contract) }
  }
  type Host = { primary: Line; store: ReturnType<typeof fallback> }
  return {
    clock,
    primary,
    secondary,
    effects,
    host,
    /** The primary goes away, and this host has noticed. */
    async outage({ primary: way, store }: Host, fault: 'down' | 'hangs' | 'reply-lost' = 'down') {
      way.cut(fault)
      const failing = Array.from({ length: 3 }, () => Promise.resolve(store.read('any')).catch(() => {}))
      await clock.advance(2_000)
      await Promise.all(failing)
      const last = Promise.resolve(store.read('any')).catch(() => {})
      await clock.advance(2_000)
      await last
    },
    /** The host notices that the primary is back. */
    async back({ store }: Host) {
      await clock.advance(1_000)
      await Promise.resolve(store.renew('any', 'any', 1)).catch(() => {})
      await turn()
    },
  }
}
