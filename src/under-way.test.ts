import { describe, expect, it } from 'vitest'
import { UnderWay } from './under-way.ts'

describe('UnderWay', () => {
  it('is idle at first, and again when the last one has ended, however it ended', async () => {
    const underWay = new UnderWay()
    await underWay.idle()
    const [one, other] = [Promise.withResolvers<number>(), Promise.withResolvers<number>()]
    const results = Promise.allSettled([underWay.during(one.promise), underWay.during(other.promise)])
    let isIdle = false
    const idle = underWay.idle().then(() => {
      isIdle = true
    })
    one.resolve(1)
    await one.promise
    await new Promise(setImmediate)
    expect([isIdle, underWay.count]).toEqual([false, 1])
    other.reject(new Error('broken'))
    await idle
    expect(underWay.count).toBe(0)
    expect((await results).map(({ status }) => status)).toEqual(['fulfilled', 'rejected'])
  })

  it('waits on when something begins in the moment in which the last one ends', async () => {
    const underWay = new UnderWay()
    underWay.begin()
    let isIdle = false
    const idle = underWay.idle().then(() => {
      isIdle = true
    })
    underWay.end()
    underWay.begin()
    await new Promise(setImmediate)
    expect(isIdle).toBe(false)
    underWay.end()
    await idle
  })
})
