import { describe, expect, it } from 'vitest'
import { Alarms } from './alarms.ts'
import { manualClock } from './testing/manual-clock.ts'

describe('alarms', () => {
  it('ring in order, each after its delay, on one timer', async () => {
    const clock = manualClock()
    const alarms = new Alarms(clock, 100)
    const rung: Array<readonly [string, number]> = []
    const start = clock.now()
    const set = (name: string) => alarms.set(() => rung.push([name, clock.now() - start]))
    set('a')
    await clock.advance(40)
    const cancelled = set('b')
    await clock.advance(10)
    set('c')
    alarms.cancel(cancelled)
    await clock.advance(1_000)
    expect(rung).toEqual([
      ['a', 100],
      ['c', 150],
    ])
  })

  it('one that is set while another rings does not delay the next', async () => {
    const clock = manualClock()
    const alarms = new Alarms(clock, 30)
    const start = clock.now()
    const rung: number[] = []
    alarms.set(() => void alarms.set(() => {}))
    await clock.advance(20)
    alarms.set(() => rung.push(clock.now() - start))
    await clock.advance(100)
    expect(rung).toEqual([50])
  })

  it('one that takes its time, and then sets another, is not rung again before its delay', async () => {
    const time = manualClock()
    let aheadMs = 0
    let rung = 0
    const alarms = new Alarms({ now: () => time.now() + aheadMs, schedule: time.schedule }, 30)
    const ring = (): void => {
      rung++
      aheadMs += 1
      if (rung < 100) alarms.set(ring)
    }
    alarms.set(ring)
    await time.advance(30)
    expect(rung).toBe(1)
    await time.advance(30)
    expect(rung).toBe(2)
  })

  it('ring when the clock was set back, instead of waiting for it to catch up', async () => {
    const time = manualClock()
    let backMs = 0
    const alarms = new Alarms({ now: () => time.now() - backMs, schedule: time.schedule }, 30)
    let rung = false
    alarms.set(() => {
      rung = true
    })
    backMs = 1_000_000
    await time.advance(30)
    expect(rung).toBe(true)
  })
})
