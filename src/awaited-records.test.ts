import { getEventListeners } from 'node:events'
import { describe, expect, it } from 'vitest'
import { AwaitedRecords, type AwaitedRecordsParts, lookTogether } from './awaited-records.ts'
import { manualClock } from './testing/manual-clock.ts'

const LEASE_MS = 60_000
const POLL_MS = 25
const LINGER_MS = 10_000
const FAILED_MS = 30_000

describe('awaited records', () => {
  it('one that is not running is waited for by nobody', async () => {
    const { records, wait } = world()
    await wait('absent')
    expect(records.size).toBe(0)
  })

  it('wake wakes all who wait for one record, and nobody else', async () => {
    const { records, running, wait, woken } = world()
    running.set('a', LEASE_MS).set('b', LEASE_MS)
    for (const name of ['a', 'a', 'b']) void wait(name)
    await turn()
    expect(woken).toEqual([])
    records.wake('a')
    await turn()
    expect(woken).toEqual(['a', 'a'])
    records.wakeAll()
    await turn()
    expect(woken).toEqual(['a', 'a', 'b'])
    expect(records.size).toBe(0)
  })

  it('an abort ends one wait, and leaves no listener behind, nor does a wake', async () => {
    const { records, running, wait, woken } = world()
    running.set('a', LEASE_MS)
    const [leaving, staying] = [new AbortController(), new AbortController()]
    const left = wait('a', leaving.signal)
    const stayed = wait('a', staying.signal)
    leaving.abort()
    await left
    await wait('a', leaving.signal)
    expect(records.has('a')).toBe(true)
    expect(woken).toEqual(['a', 'a'])
    records.wake('a')
    await stayed
    for (const { signal } of [leaving, staying]) expect(getEventListeners(signal, 'abort')).toEqual([])
  })

  it('no end is missed: what is heard, or who comes, while a look is under way has another look after it', async () => {
    for (const meanwhile of ['heard', 'joined'] as const) {
      const held = heldLooks()
      const { records, wait, woken } = world({ look: held.look })
      void wait('a')
      if (meanwhile === 'heard') records.lookAt('a')
      else void wait('a')
      await held.answer(LEASE_MS)
      expect(woken).toEqual([])
      await held.answer(0)
      expect(woken).toContain('a')
      expect(records.size).toBe(0)
    }
  })

  it('looks of one record never pile up, however often it is heard of', async () => {
    const held = heldLooks()
    const { records, wait } = world({ look: held.look })
    void wait('a')
    for (let i = 0; i < 100; i++) records.lookAt('a')
    await held.answer(LEASE_MS)
    await held.answer(LEASE_MS)
    expect(held.count).toBe(2)
  })

  it('a lease that lapses ends the wait, although nothing is heard', async () => {
    const { clock, running, looks, wait, woken } = world()
    running.set('a', LEASE_MS)
    void wait('a')
    await clock.advance(LEASE_MS - 1)
    expect(looks).toHaveLength(1)
    running.clear()
    await clock.advance(1)
    expect(woken).toEqual(['a'])
  })

  it('no lease is too long for a timer', async () => {
    const delaysMs: number[] = []
    const schedule = (delayMs: number) => {
      delaysMs.push(delayMs)
      return () => {}
    }
    const { running, wait } = world({ clock: { now: () => 0, schedule } })
    running.set('a', Number.POSITIVE_INFINITY)
    void wait('a')
    await turn()
    expect(delaysMs).toHaveLength(1)
    expect(delaysMs[0]).toBeLessThan(2 ** 31)
  })

  it('a first look that fails is reported to its own waiter, and wakes the others', async () => {
    const held = heldLooks()
    const { records, wait, woken } = world({ look: held.look })
    const [first, second] = [wait('a'), wait('a')]
    await Promise.all([
      expect(first).rejects.toThrow('down'),
      second,
      held.answer(Promise.reject(new Error('the store is down'))),
    ])
    expect(woken).toEqual(['a'])
    expect(records.size).toBe(0)
  })

  it('a later look that fails wakes', async () => {
    const held = heldLooks()
    const { clock, wait, woken } = world({ look: held.look })
    void wait('a')
    await held.answer(LEASE_MS)
    await clock.advance(LEASE_MS)
    await held.answer(Promise.reject(new Error('the store is down')))
    expect(woken).toEqual(['a'])
  })

  it('polls all of them in one look, only while somebody waits', async () => {
    const { clock, looks, records, running, wait, woken } = world({ polled: true })
    running.set('a', LEASE_MS).set('b', LEASE_MS)
    for (const name of ['a', 'b']) void wait(name)
    await clock.advance(2 * POLL_MS)
    expect(looks).toEqual([
      ['a', 'b'],
      ['a', 'b'],
      ['a', 'b'],
    ])
    running.delete('a')
    await clock.advance(POLL_MS)
    expect(woken).toEqual(['a'])
    records.wake('b')
    await clock.advance(POLL_MS)
    const before = looks.length
    await clock.advance(100 * POLL_MS)
    expect(looks).toHaveLength(before)
  })

  it('looked at together, whoever cannot be looked at is woken', async () => {
    const look = lookTogether(() => Promise.reject(new Error('the store is down')))
    const { wait, woken } = world({ look })
    await Promise.all([wait('a'), wait('b')])
    expect(woken).toEqual(['a', 'b'])
  })

  it('leave no timer behind', async () => {
    const { clock, timers, records, running, wait } = world({ polled: true })
    running.set('a', LEASE_MS)
    void wait('a')
    await clock.advance(10 * POLL_MS)
    // For the lease's end, and for the poll.
    expect(timers.size).toBe(2)
    records.wake('a')
    await clock.advance(LINGER_MS)
    expect(timers.size).toBe(0)
  })
})

describe('the subscription of awaited records', () => {
  it('is one for all; what ended before it was ready is seen then, and nothing is polled from then on', async () => {
    const { clock, timers, subscriptions, looks, records, running, wait, woken } = world({ polled: true })
    running.set('a', LEASE_MS).set('b', LEASE_MS)
    for (const id of ['a', 'b']) void wait(id)
    await turn()
    running.delete('a')
    expect(records.isHeard).toBe(false)
    subscriptions[0]?.ready.resolve()
    await turn()
    expect(records.isHeard).toBe(true)
    expect(woken).toEqual(['a'])
    await clock.advance(POLL_MS)
    const before = looks.length
    await clock.advance(100 * POLL_MS)
    expect(looks).toHaveLength(before)
    // For the lease's end.
    expect(timers.size).toBe(1)
    expect(subscriptions).toHaveLength(1)
  })

  it('lost, it leaves everybody to looks, and the next who comes has another', async () => {
    const { clock, subscriptions, records, running, wait, woken } = world({ polled: true })
    running.set('a', LEASE_MS).set('b', LEASE_MS).set('c', LEASE_MS)
    for (const id of ['a', 'b']) void wait(id)
    subscriptions[0]?.ready.resolve()
    await clock.advance(POLL_MS)
    running.delete('a')
    subscriptions[0]?.lose()
    await turn()
    expect(records.isHeard).toBe(false)
    expect(subscriptions[0]?.isClosed).toBe(true)
    expect(woken).toEqual(['a'])
    running.delete('b')
    await clock.advance(POLL_MS)
    expect(woken).toEqual(['a', 'b'])
    void wait('c')
    expect(subscriptions).toHaveLength(2)
  })

  it('one that was lost before it was ready is never believed, and none is tried for a while', async () => {
    for (const fail of ['lose', 'reject'] as const) {
      const { clock, subscriptions, records, running, wait } = world()
      running.set('a', LEASE_MS)
      void wait('a')
      if (fail === 'lose') subscriptions[0]?.lose()
      else subscriptions[0]?.ready.reject(new Error('not permitted'))
      subscriptions[0]?.ready.resolve()
      await turn()
      expect(records.isHeard).toBe(false)
      expect(subscriptions[0]?.isClosed).toBe(true)
      await clock.advance(FAILED_MS - 1)
      void wait('a')
      expect(subscriptions).toHaveLength(1)
      await clock.advance(1)
      void wait('a')
      expect(subscriptions).toHaveLength(2)
    }
  })

  it('lingers when nobody waits any more, is kept for whoever comes in time, and then ends', async () => {
    const { clock, subscriptions, records, running, wait } = world()
    running.set('a', LEASE_MS)
    void wait('a')
    subscriptions[0]?.ready.resolve()
    await turn()
    records.wake('a')
    await clock.advance(LINGER_MS - 1)
    void wait('a')
    await clock.advance(LINGER_MS)
    expect(subscriptions[0]?.isClosed).toBe(false)
    records.wake('a')
    await clock.advance(LINGER_MS)
    expect(subscriptions[0]?.isClosed).toBe(true)
    void wait('a')
    expect(subscriptions).toHaveLength(2)
  })

  it('close wakes all, ends it even while it is being opened, and opens no other', async () => {
    const { subscriptions, records, running, wait, woken } = world()
    running.set('a', LEASE_MS)
    void wait('a')
    await records.close()
    expect(woken).toEqual(['a'])
    expect(subscriptions[0]?.isClosed).toBe(true)
    subscriptions[0]?.ready.resolve()
    await turn()
    expect(records.isHeard).toBe(false)
    await wait('a')
    expect(subscriptions).toHaveLength(1)
  })
})

/** Records that run while the test says so. They are looked at one by one; those `polled`, together. */
function world(parts: Partial<AwaitedRecordsParts> & { readonly polled?: boolean } = {}) {
  const clock = manualClock()
  const timers = new Set<object>()
  const schedule = (delayMs: number, callback: () => void) => {
    const timer = {}
    timers.add(timer)
    const cancel = clock.schedule(delayMs, () => {
      timers.delete(timer)
      callback()
    })
    return () => {
      timers.delete(timer)
      cancel()
    }
  }
  const running = new Map<string, number>()
  const looks: Array<readonly string[]> = []
  const lookAt = async (ids: readonly string[]) => {
    looks.push(ids)
    return running
  }
  const look = parts.polled ? lookTogether(lookAt) : async (id: string) => (await lookAt([id])).get(id) ?? 0
  const subscriptions: FakeSubscription[] = []
  const open = (lose: () => void) => {
    const opened = new FakeSubscription(lose)
    subscriptions.push(opened)
    return { ready: opened.ready.promise, close: () => opened.close() }
  }
  const subscription = { open, lingerMs: LINGER_MS, pauseMs: { failed: FAILED_MS, lost: 0 } }
  const polling = parts.polled ? { pollMs: POLL_MS } : {}
  const records = new AwaitedRecords({ clock: { now: clock.now, schedule }, look, subscription, ...polling, ...parts })
  const woken: string[] = []
  const wait = async (id: string, signal = new AbortController().signal) => {
    await records.wait(id, signal)
    woken.push(id)
  }
  return { clock, timers, running, looks, subscriptions, records, wait, woken }
}

class FakeSubscription {
  readonly ready = Promise.withResolvers<void>()
  readonly lose: () => void
  isClosed = false

  constructor(lose: () => void) {
    this.lose = lose
  }

  close(): void {
    this.isClosed = true
  }
}

/** Looks that are answered when the test says so, in order. */
function heldLooks() {
  const asked: Array<(answer: number | Promise<number>) => void> = []
  const held = {
    count: 0,
    look: () => {
      held.count++
      return new Promise<number>((resolve) => asked.push(resolve))
    },
    async answer(answer: number | Promise<number>) {
      asked.shift()?.(answer)
      await turn()
    },
  }
  return held
}

const turn = () => new Promise((resolve) => setImmediate(resolve))
