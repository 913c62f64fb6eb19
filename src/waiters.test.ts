import { describe, expect, it } from 'vitest'
import { answered, encode, makeWorld, pay, refusedWith } from '../test/support/engine-world.ts'

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
