import { describe, expect, it } from 'vitest'
import { answered, eventsOf, makeWorld, pay, refusedWith } from '../test/support/engine-world.ts'

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
    expect(() => makeWorld({ lease: { ms: 3_000 } }, { storeMsMax: 1_500 })).toThrow(/storeMsMax is 1500, but must be/)
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
