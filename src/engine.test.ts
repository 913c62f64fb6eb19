import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { describe, expect, it } from 'vitest'
import { type ContractChanges, defineContract } from './contract-check.ts'
import { ietf } from './contracts/ietf.ts'
import { Engine } from './engine.ts'
import type { OncekeyEvent } from './events.ts'
import type { Done, Operation, Reconcile, Run } from './execution.ts'
import type { Store } from './store.ts'
import { memoryStore } from './stores/memory.ts'
import { manualClock } from './testing/manual-clock.ts'

const encode = (text: string) => Buffer.from(text)
const answered = (text: string, status = 200): Done => ({
  kind: 'answered',
  answer: { status, headers: [], body: encode(text) },
})
const pay: Operation = { id: 'pay-1', key: 'pay-1', fingerprint: 'f1' }

describe('engine', () => {
  it('runs once and replays the same answer', async () => {
    const world = makeWorld()
    const first = await world.engine.execute(pay, world.work('paid'))
    const second = await world.engine.execute(pay, world.work('paid again'))
    expect(first).toMatchObject({ kind: 'executed', record: 'kept' })
    expect(second).toMatchObject({ kind: 'replayed', answer: { status: 200, body: encode('paid') } })
    expect(world.effects).toEqual(['paid'])
  })

  it('refuses another payload under the same key, in every state, and leaves the record alone', async () => {
    const world = makeWorld()
    const running = world.start(pay)
    expect(await world.engine.execute({ ...pay, fingerprint: 'f2' }, world.work('x'))).toMatchObject(
      refusedWith('key-conflict'),
    )
    await running.finish(answered('paid'))
    expect(await world.engine.execute({ ...pay, fingerprint: 'f2' }, world.work('x'))).toMatchObject(
      refusedWith('key-conflict'),
    )
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ kind: 'replayed' })
    expect(world.effects).toEqual([])
  })

  it('refuses a duplicate in flight, with the lease that is left', async () => {
    const world = makeWorld({ lease: { ms: 9_000 } })
    const running = world.start(pay)
    await world.clock.advance(2_000)
    const duplicate = await world.engine.execute(pay, world.work('twice'))
    expect(duplicate).toMatchObject({ kind: 'refused', refusal: { code: 'in-flight', retryAfterMs: 7_000 } })
    await running.finish(answered('paid'))
    expect(world.effects).toEqual([])
  })

  describe('by status', () => {
    it.each([200, 201, 204, 303, 400, 404, 409, 422, 500, 501])('%i is kept', async (status) => {
      const world = makeWorld()
      await world.engine.execute(pay, async () => answered('first', status))
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ kind: 'replayed', answer: { status } })
    })

    it.each([408, 425, 429, 503])('%i is released, and the next request runs', async (status) => {
      const world = makeWorld()
      const first = await world.engine.execute(pay, async () => answered('busy', status))
      expect(first).toMatchObject({ kind: 'executed', record: 'released' })
      expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
    })

    it.each([502, 504, 507])('%i leaves the outcome unknown, at once', async (status) => {
      const world = makeWorld()
      const first = await world.engine.execute(pay, async () => answered('gateway', status))
      expect(first).toMatchObject({ kind: 'executed', record: 'unknown' })
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
      expect(world.effects).toEqual([])
    })
  })

  it('X2: a broken answer is unknown at once, and runs again only after the TTL', async () => {
    const world = makeWorld({ ttl: { unknownMs: 60_000 } })
    await world.engine.execute(pay, async () => ({ kind: 'broken' }))
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
    await world.clock.advance(60_000)
    expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
  })

  it('X2: work that throws has told nothing, so the outcome is unknown and the error reaches the caller', async () => {
    const world = makeWorld()
    await expect(world.engine.execute(pay, () => Promise.reject(new Error('bug')))).rejects.toThrow('bug')
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
  })

  it('X2: after a crash the key is held for one lease, then the outcome is unknown', async () => {
    const world = makeWorld({ lease: { ms: 30_000 } })
    await world.crashDuring(pay)
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('in-flight'))
    await world.clock.advance(30_000)
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
    expect(world.effects).toEqual([])
  })

  it('X2: crash policy rerun takes the operation over and tells the handler', async () => {
    const world = makeWorld({ crash: 'rerun' })
    await world.crashDuring(pay)
    await world.clock.advance(ietf.lease.ms)
    let attempt = 0
    await world.engine.execute(pay, async (run) => {
      attempt = run.attempt
      return answered('paid')
    })
    expect(attempt).toBe(2)
  })

  describe('X2: crash policy reconcile', () => {
    const crashed = async (reconcile: Reconcile) => {
      const world = makeWorld({ crash: 'reconcile' }, { reconcile })
      await world.crashDuring(pay)
      await world.clock.advance(ietf.lease.ms)
      return world
    }

    it('takes the answer of the hook, and keeps it', async () => {
      const world = await crashed(() => ({ status: 201, headers: [], body: encode('found') }))
      const expected = { kind: 'replayed', answer: { status: 201, body: encode('found') } }
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(expected)
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(expected)
      expect(world.effects).toEqual([])
    })

    it('runs again when the hook says that nothing happened', async () => {
      const world = await crashed(() => 'rerun')
      expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
    })

    it('stays unknown when the hook does not know, and asks again next time', async () => {
      let asked = 0
      const world = await crashed(() => {
        asked++
        return 'unknown'
      })
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
      expect(asked).toBe(2)
    })

    it('stays unknown when the hook throws, and the error reaches the caller', async () => {
      const world = await crashed(() => {
        throw new Error('ledger is away')
      })
      await expect(world.engine.execute(pay, world.work('x'))).rejects.toThrow('ledger is away')
      expect(world.effects).toEqual([])
    })

    it('is told when the answer of the hook was too large to keep', async () => {
      const world = await crashed(() => ({ status: 201, headers: [], body: null }))
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('answer-not-kept'))
    })

    it('does not forget the crash when the run after it did nothing', async () => {
      const world = await crashed(() => 'rerun')
      await world.engine.execute(pay, async () => answered('busy', 503))
      let attempt = 0
      await world.engine.execute(pay, async (run) => {
        attempt = run.attempt
        return answered('paid')
      })
      expect(attempt).toBe(3)
    })

    it('is refused at start without a hook', () => {
      expect(() => makeWorld({ crash: 'reconcile' })).toThrow(/crash is "reconcile", but no reconcile hook/)
    })
  })

  describe('X1: leases', () => {
    it('are renewed while the handler runs, for far longer than one lease', async () => {
      const world = makeWorld({ lease: { ms: 3_000 } })
      const running = world.start(pay)
      await world.clock.advance(60_000)
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('in-flight'))
      await running.finish(answered('paid'))
      expect(await running.result).toMatchObject({ record: 'kept' })
    })

    it('abort the handler when another owner has taken over, and its late answer changes nothing', async () => {
      const world = makeWorld({ lease: { ms: 3_000 }, crash: 'rerun' })
      const late = world.start(pay)
      const { signal } = late.run()
      world.faults.renew = () => Promise.reject(new Error('partition'))
      await world.clock.advance(3_000)
      expect(signal.aborted).toBe(true)
      world.faults = {}
      expect(await world.engine.execute(pay, world.work('second'))).toMatchObject({ kind: 'executed', record: 'kept' })
      await late.finish(answered('first'))
      expect(await late.result).toMatchObject({ kind: 'executed', record: 'unrecorded' })
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ answer: { body: encode('second') } })
    })

    it('abort the handler when the store refuses a renewal', async () => {
      const world = makeWorld({ lease: { ms: 3_000 } })
      const running = world.start(pay)
      const { signal } = running.run()
      await world.store.forget(pay.id)
      await world.clock.advance(1_000)
      expect(signal.aborted).toBe(true)
      expect(String(signal.reason)).toMatch(/taken the operation over, or its record was removed/)
      await running.finish(answered('paid'))
    })

    it('abort the handler when the store hangs until the lease has run out', async () => {
      const world = makeWorld({ lease: { ms: 3_000 } })
      const running = world.start(pay)
      const { signal } = running.run()
      world.faults.renew = () => new Promise(() => {})
      await world.clock.advance(2_999)
      expect(signal.aborted).toBe(false)
      await world.clock.advance(1_001)
      expect(signal.aborted).toBe(true)
      await running.finish(answered('paid'))
    })

    it('are not renewed for a handler that runs for longer than its limit', async () => {
      const world = makeWorld({ lease: { ms: 3_000, handlerMsMax: 6_000 } })
      const running = world.start(pay)
      await world.clock.advance(12_000)
      expect(running.run().signal.aborted).toBe(true)
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
      await running.finish(answered('paid'))
      expect(await running.result).toMatchObject({ record: 'kept' })
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ kind: 'replayed' })
    })

    it('that ran out before the handler could start are asked for again, and the loser does not run', async () => {
      const world = makeWorld({ lease: { ms: 3_000 }, crash: 'rerun' })
      let paused = false
      world.faults.claim = async (request) => {
        const claim = await world.store.claim(request)
        if (paused) return claim
        paused = true
        world.clock.jump(5_000)
        await world.store.claim({ ...request, token: 'other', takeover: true })
        return claim
      }
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('in-flight'))
      expect(world.effects).toEqual([])
    })

    it('survive a pause that was longer than the lease, if nobody took over', async () => {
      const world = makeWorld({ lease: { ms: 3_000 } })
      const running = world.start(pay)
      const { signal } = running.run()
      world.clock.jump(60_000)
      await world.clock.advance(1_000)
      expect(signal.aborted).toBe(false)
      await running.finish(answered('paid'))
      expect(await running.result).toMatchObject({ record: 'kept' })
    })
  })

  describe('waiting duplicates', () => {
    const waiting = { inFlight: 'wait', waitMsMax: 10_000 } as const

    it('J9 R10: get the answer of the first, all of them', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicates = Array.from({ length: 20 }, () => world.engine.execute(pay, world.work('x')))
      await world.clock.advance(100)
      await running.finish(answered('paid'))
      for (const duplicate of await Promise.all(duplicates)) {
        expect(duplicate).toMatchObject({ kind: 'replayed', answer: { body: encode('paid') } })
      }
      expect(world.effects).toEqual([])
    })

    it('J10: a thousand share one watch of the store', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicates = Array.from({ length: 1_000 }, () => world.engine.execute(pay, world.work('x')))
      await world.clock.advance(100)
      await running.finish(answered('paid'))
      await Promise.all(duplicates)
      expect(world.calls.read).toBeLessThan(5)
      expect(world.calls.waitFor).toBeLessThan(5)
    })

    it('X5: are woken by the store, not by the clock', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicate = world.engine.execute(pay, world.work('x'))
      await running.finish(answered('paid'))
      expect(await duplicate).toMatchObject({ kind: 'replayed' })
    })

    it('poll a store that cannot push', async () => {
      const world = makeWorld(waiting, { push: false })
      const running = world.start(pay)
      const duplicate = world.engine.execute(pay, world.work('x'))
      await running.finish(answered('paid'))
      await world.clock.advance(1_000)
      expect(await duplicate).toMatchObject({ kind: 'replayed' })
    })

    it('are refused when their time is up', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicate = world.engine.execute(pay, world.work('x'))
      await world.clock.advance(10_000)
      expect(await duplicate).toMatchObject(refusedWith('in-flight'))
      await running.finish(answered('paid'))
    })

    it('run, one of them, when the first was released', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicates = Array.from({ length: 5 }, () => world.engine.execute(pay, world.work('paid')))
      await running.finish(answered('busy', 503))
      const kinds = (await Promise.all(duplicates)).map(({ kind }) => kind).sort()
      expect(kinds).toEqual(['executed', 'replayed', 'replayed', 'replayed', 'replayed'])
      expect(world.effects).toEqual(['paid'])
    })

    it('with another payload are refused at once', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const other = { ...pay, fingerprint: 'f2' }
      expect(await world.engine.execute(other, world.work('x'))).toMatchObject(refusedWith('key-conflict'))
      await running.finish(answered('paid'))
    })

    it('are told that the outcome is unknown when the first breaks off', async () => {
      const world = makeWorld(waiting)
      const running = world.start(pay)
      const duplicate = world.engine.execute(pay, world.work('x'))
      await running.finish({ kind: 'broken' })
      expect(await duplicate).toMatchObject(refusedWith('outcome-unknown'))
    })
  })

  describe('a store that fails', () => {
    const down = () => Promise.reject(new Error('ECONNREFUSED'))

    it('closed: the request is refused and nothing runs', async () => {
      const world = makeWorld()
      world.faults.claim = down
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('store-unavailable'))
      expect(world.effects).toEqual([])
    })

    it('A10: open: the request runs without protection, and says so', async () => {
      const world = makeWorld({ storeFailure: 'open' })
      world.faults.claim = down
      const events = await eventsOf(async () => {
        expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({
          kind: 'executed',
          record: 'unrecorded',
        })
      })
      expect(events).toContain('unprotected')
    })

    it('A10: a store that hangs counts as one that fails', async () => {
      const world = makeWorld({ storeFailure: 'open' }, { storeMsMax: 200 })
      world.faults.claim = () => new Promise(() => {})
      const result = world.engine.execute(pay, world.work('paid'))
      await world.clock.advance(400)
      expect(await result).toMatchObject({ kind: 'executed', record: 'unrecorded' })
    })

    it('a claim whose reply was lost is asked again with the same token, and runs', async () => {
      const world = makeWorld()
      let lost = false
      world.faults.claim = async (request) => {
        const claim = await world.store.claim(request)
        if (lost) return claim
        lost = true
        throw new Error('ECONNRESET')
      }
      expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
    })

    it('a claim that arrived without any reply is released again, because nothing ran', async () => {
      const world = makeWorld()
      world.faults.claim = async (request) => {
        await world.store.claim(request)
        throw new Error('ECONNRESET')
      }
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('store-unavailable'))
      world.faults = {}
      await world.clock.advance(1_000)
      await world.engine.idle()
      expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
    })

    it('dead between effect and record: the client gets the real answer, and the record is made within the lease', async () => {
      const world = makeWorld()
      world.faults.settle = down
      const first = await world.engine.execute(pay, world.work('paid'))
      expect(first).toMatchObject({ kind: 'executed', record: 'unrecorded', done: answered('paid') })
      world.faults = {}
      await world.clock.advance(1_000)
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ kind: 'replayed' })
      expect(world.effects).toEqual(['paid'])
    })

    it('dead for longer than the lease: the outcome is unknown, never a second run', async () => {
      const world = makeWorld({ lease: { ms: 3_000 } })
      world.faults.settle = down
      await world.engine.execute(pay, world.work('paid'))
      await world.clock.advance(10_000)
      await world.engine.idle()
      world.faults = {}
      expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('outcome-unknown'))
      expect(world.effects).toEqual(['paid'])
    })

    it('A10: open, but somebody was seen running: refused, not run beside it', async () => {
      const world = makeWorld({ storeFailure: 'open', inFlight: 'wait', waitMsMax: 10_000 })
      const running = world.start(pay)
      const duplicate = world.engine.execute(pay, world.work('x'))
      world.faults.claim = down
      await running.finish(answered('busy', 503))
      expect(await duplicate).toMatchObject(refusedWith('in-flight'))
      expect(world.effects).toEqual([])
    })

    it('whose patience is longer than the lease is refused at start', () => {
      expect(() => makeWorld({ lease: { ms: 3_000 } }, { storeMsMax: 1_500 })).toThrow(
        /storeMsMax is 1500, but must be/,
      )
    })

    it('a release that fails is tried again', async () => {
      const world = makeWorld()
      world.faults.release = down
      await world.engine.execute(pay, async () => answered('busy', 503))
      world.faults = {}
      await world.clock.advance(1_000)
      expect(await world.engine.execute(pay, world.work('paid'))).toMatchObject({ kind: 'executed', record: 'kept' })
    })
  })

  it('an answer that was too large to keep is not run again', async () => {
    const world = makeWorld()
    await world.engine.execute(pay, async () => ({
      kind: 'answered',
      answer: { status: 200, headers: [], body: null },
    }))
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('answer-not-kept'))
  })

  it('D11 S5 R6: a key is new again when its answer has expired', async () => {
    const world = makeWorld({ ttl: { committedMs: 5_000 } })
    await world.engine.execute(pay, world.work('one'))
    await world.clock.advance(4_999)
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject({ kind: 'replayed' })
    await world.clock.advance(1)
    expect(await world.engine.execute(pay, world.work('two'))).toMatchObject({ kind: 'executed' })
    expect(world.effects).toEqual(['one', 'two'])
  })

  it('an expired key is refused where the contract says so', async () => {
    const world = makeWorld({ ttl: { committedMs: 5_000, expiredMs: 5_000 } })
    await world.engine.execute(pay, world.work('one'))
    await world.clock.advance(5_000)
    expect(await world.engine.execute(pay, world.work('x'))).toMatchObject(refusedWith('key-expired'))
    await world.clock.advance(5_000)
    expect(await world.engine.execute(pay, world.work('two'))).toMatchObject({ kind: 'executed' })
  })

  it('J8: committed and rejected answers have their own TTL', async () => {
    const world = makeWorld({ ttl: { committedMs: 5_000, rejectedMs: 1_000 } })
    await world.engine.execute(pay, async () => answered('no', 422))
    await world.clock.advance(1_000)
    expect(await world.engine.execute(pay, world.work('yes'))).toMatchObject({ kind: 'executed' })
  })

  it('X7: derived keys are stable across retries and takeovers, and differ by name', async () => {
    const world = makeWorld({ crash: 'rerun' })
    const crashed = world.start(pay).run()
    world.faults.renew = () => Promise.reject(new Error('gone'))
    await world.clock.advance(ietf.lease.ms)
    let again: Run | undefined
    await world.engine.execute(pay, async (run) => {
      again = run
      return answered('paid')
    })
    expect(again?.attempt).toBe(2)
    expect(again?.derive('charge')).toBe(crashed.derive('charge'))
    expect(again?.derive('charge')).not.toBe(again?.derive('mail'))
  })

  it('tells each step on the diagnostics channel', async () => {
    const world = makeWorld()
    const events = await eventsOf(async () => {
      await world.engine.execute(pay, world.work('paid'))
      await world.engine.execute(pay, world.work('x'))
      await world.engine.execute({ ...pay, fingerprint: 'f2' }, world.work('x'))
    })
    expect(events).toEqual(['claimed', 'kept', 'replayed', 'conflict'])
  })
})

type Faults = { -readonly [Verb in 'claim' | 'settle' | 'release' | 'renew']?: Store[Verb] }

/** An engine on a real store whose verbs can be made to fail, and time that stands still. */
function makeWorld(
  changes: ContractChanges = {},
  options: { reconcile?: Reconcile; storeMsMax?: number; push?: boolean } = {},
) {
  const time = manualClock()
  let jumpedMs = 0
  const clock = {
    ...time,
    now: () => time.now() + jumpedMs,
    /** As after a pause of the whole machine: the timers have not rung, but the time is gone. */
    jump: (ms: number) => {
      jumpedMs += ms
    },
  }
  const store = memoryStore({ clock })
  const calls = { read: 0, waitFor: 0 }
  const world = {
    clock,
    store,
    calls,
    faults: {} as Faults,
    effects: [] as string[],
    engine: undefined as unknown as Engine,
    work: (effect: string) => async (): Promise<Done> => {
      world.effects.push(effect)
      return answered(effect)
    },
    /** Starts an operation whose handler ends when the test says so. */
    start(operation: Operation) {
      const end = Promise.withResolvers<Done>()
      let current: Run | undefined
      const result = world.engine.execute(operation, (run) => {
        current = run
        return end.promise
      })
      return {
        result,
        run: () => current as Run,
        finish: async (done: Done) => {
          end.resolve(done)
          await result
        },
      }
    },
    /** An owner that claims and is never heard of again. */
    async crashDuring({ id, fingerprint }: Operation) {
      const { lease, ttl } = world.engine.contract
      const token = `dead-${id}`
      await store.claim({ id, token, fingerprint, leaseMs: lease.ms, unknownTtlMs: ttl.unknownMs, takeover: false })
    },
  }
  const faulty: Store = {
    name: store.name,
    claim: (request) => (world.faults.claim ?? store.claim.bind(store))(request),
    settle: (...args) => (world.faults.settle ?? store.settle.bind(store))(...args),
    release: (...args) => (world.faults.release ?? store.release.bind(store))(...args),
    renew: (...args) => (world.faults.renew ?? store.renew.bind(store))(...args),
    read: (id) => {
      calls.read++
      return store.read(id)
    },
    list: (query) => store.list(query),
    forget: (id) => store.forget(id),
    redact: (id) => store.redact(id),
    sweep: (limit) => store.sweep(limit),
    close: () => store.close(),
  }
  if (options.push !== false) {
    faulty.waitFor = async (id, signal) => {
      calls.waitFor++
      await store.waitFor?.(id, signal)
    }
  }
  const { reconcile, storeMsMax } = options
  world.engine = new Engine({
    store: faulty,
    contract: defineContract(ietf, changes),
    clock,
    ...(reconcile && { reconcile }),
    ...(storeMsMax && { storeMsMax }),
  })
  return world
}

function refusedWith(code: string) {
  return { kind: 'refused', refusal: { code } }
}

async function eventsOf(body: () => Promise<void>): Promise<string[]> {
  const types: string[] = []
  const listener = (event: unknown) => void types.push((event as OncekeyEvent).type)
  subscribe('oncekey', listener)
  try {
    await body()
  } finally {
    unsubscribe('oncekey', listener)
  }
  return types
}
