import { describe, expect, it } from 'vitest'
import { answered, encode, makeWorld, pay, refusedWith } from '../test/support/engine-world.ts'

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
