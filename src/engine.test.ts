import { describe, expect, it } from 'vitest'
import { answered, encode, eventsOf, makeWorld, pay, refusedWith } from '../test/support/engine-world.ts'
import { ietf } from './contracts/ietf.ts'
import type { Reconcile, Run } from './execution.ts'

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
