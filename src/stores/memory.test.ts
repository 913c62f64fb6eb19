import { getEventListeners } from 'node:events'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { describe, expect, it } from 'vitest'
import { OncekeyError } from '../error.ts'
import type { Claim, ClaimRequest, Settlement, Store, StoredRecord } from '../store.ts'
import { storeSuite } from '../testing/store-suite.ts'
import type { MemoryStoreOptions } from './memory.ts'
import { memoryStore } from './memory.ts'

const LEASE_MS = 1_000
const UNKNOWN_TTL_MS = 5_000
const TTL_MS = 60_000

describe('memory', () => {
  storeSuite({ describe, it }, async () => {
    const { store, elapse } = bench()
    return { store, elapse: async (ms) => elapse(ms), dispose: () => store.close() }
  })
})

describe('memory: the bound', () => {
  it('J2: holds 100,000 records by default, and the first one makes room for the next', () => {
    const { answer, has } = bench()
    for (let i = 0; i < 100_000; i++) answer(`id ${i}`)
    expect([has('id 0'), has('id 99999')]).toEqual([true, true])
    answer('one more')
    expect([has('id 0'), has('id 1'), has('id 99999'), has('one more')]).toEqual([false, true, true, true])
  })

  it('J2: forgets the least recently used answer first, and a replay is a use', () => {
    const { answer, claim, has } = bench({ recordsMax: 3 })
    for (const id of ['a', 'b', 'c']) answer(id)
    expect(claim('a', { token: 'duplicate' }).state).toBe('settled')
    answer('d')
    expect(['a', 'b', 'c', 'd'].map(has)).toEqual([true, false, true, true])
    answer('e')
    expect(['a', 'b', 'c', 'd', 'e'].map(has)).toEqual([true, false, false, true, true])
    expect(claim('b')).toEqual({ state: 'acquired', attempt: 1 })
  })

  it('J2: never forgets a running or unknown record: with nothing else left it refuses, and changes nothing', () => {
    const { store, answer, claim, elapse, has } = bench({ recordsMax: 3 })
    claim('unknown')
    elapse(LEASE_MS)
    claim('running')
    answer('answered')
    expect(claim('new').state).toBe('acquired')
    expect(['unknown', 'running', 'answered', 'new'].map(has)).toEqual([true, true, false, true])
    expect(() => claim('one more')).toThrow(expect.objectContaining({ code: 'store-full' }))
    expect(() => claim('one more')).toThrow(/recordsMax/)
    expect(['unknown', 'running', 'new', 'one more'].map(has)).toEqual([true, true, true, false])
    expect(claim('running', { token: 'duplicate' }).state).toBe('running')
    store.release('running', 'owner')
    expect(claim('one more').state).toBe('acquired')
  })

  it('takes over a record of its own when it is full', () => {
    const { claim, elapse } = bench({ recordsMax: 1 })
    claim('a')
    elapse(LEASE_MS)
    expect(claim('a', { token: 'taker', takeover: true })).toEqual({ state: 'acquired', attempt: 2 })
  })

  it('makes room with unknown records that are gone, without a sweeper, before it refuses', () => {
    const { claim, elapse, has } = bench({ recordsMax: 3 })
    claim('long', { unknownTtlMs: 100 * UNKNOWN_TTL_MS })
    claim('a')
    claim('b')
    elapse(LEASE_MS + UNKNOWN_TTL_MS - 1)
    expect(() => claim('c')).toThrow(expect.objectContaining({ code: 'store-full' }))
    elapse(1)
    expect([claim('c').state, claim('d').state]).toEqual(['acquired', 'acquired'])
    expect(['long', 'a', 'b', 'c', 'd'].map(has)).toEqual([true, false, false, true, true])
  })

  it('makes room with what is gone before it forgets an answer that is still good', () => {
    const { answer, claim, elapse, has } = bench({ recordsMax: 2 })
    answer('good')
    claim('gone')
    elapse(LEASE_MS + UNKNOWN_TTL_MS)
    claim('new')
    expect(has('good')).toBe(true)
  })

  it('frees everything that is gone, however many different lifetimes there are', () => {
    const RECORDS = 500
    const { store, claim, elapse } = bench({ recordsMax: RECORDS })
    for (let i = 0; i < RECORDS; i++) claim(`id ${i}`, { unknownTtlMs: (i * 7_919) % 10_007 })
    expect(() => claim('one more')).toThrow(expect.objectContaining({ code: 'store-full' }))
    elapse(LEASE_MS + 10_007)
    expect(store.sweep(RECORDS - 1)).toBe(RECORDS - 1)
    expect(store.sweep()).toBe(1)
    expect(store.sweep()).toBe(0)
  })

  it('a lifetime that is over leaves nothing behind that would delay others', () => {
    const { store, claim, elapse } = bench()
    for (let i = 0; i < 500; i++) claim(`id ${i}`, { unknownTtlMs: i })
    elapse(LEASE_MS + 500)
    expect(store.sweep()).toBe(500)
    expect(store.sweep()).toBe(0)
    claim('long', { unknownTtlMs: 9_000 })
    claim('short', { unknownTtlMs: 8_000 })
    elapse(LEASE_MS + 8_000)
    expect(store.sweep()).toBe(1)
  })

  it('keys that are remembered as used do not hold up what is gone', () => {
    const { store, claim, elapse } = bench()
    claim('remembered')
    store.settle('remembered', 'owner', settlement({ expiredTtlMs: 10 * TTL_MS }))
    elapse(TTL_MS)
    expect(store.sweep()).toBe(0)
    claim('gone', { leaseMs: 1, unknownTtlMs: 0 })
    elapse(1)
    expect(store.sweep()).toBe(1)
    expect(claim('remembered', { token: 'duplicate' }).state).toBe('expired')
  })

  it('frees what is gone behind a record that was renewed', () => {
    const { store, claim, elapse } = bench({ recordsMax: 2 })
    claim('renewed')
    claim('gone')
    elapse(LEASE_MS)
    store.renew('renewed', 'owner', LEASE_MS)
    elapse(UNKNOWN_TTL_MS)
    expect(claim('new').state).toBe('acquired')
    expect(store.renew('renewed', 'owner', LEASE_MS)).toBe(true)
  })

  it.each([0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY])('refuses a bound of %s', (recordsMax) => {
    expect(() => memoryStore({ recordsMax })).toThrow(expect.objectContaining({ code: 'config-invalid' }))
  })
})

describe('memory: its answers', () => {
  it.each([0, 1, 1_023, 1_024, 1_025, 100_000])(
    'X4: gives back a body of %i bytes as it was, in bytes of its own',
    (size) => {
      const { store, claim } = bench()
      const body = Uint8Array.from({ length: size }, (_, i) => i)
      claim('a')
      store.settle('a', 'owner', settlement({ answer: { status: 200, headers: [], body } }))
      const replay = claim('a', { token: 'duplicate' })
      const replayed = replay.state === 'settled' ? replay.answer.body : null
      expect(replayed && Buffer.compare(replayed, body)).toBe(0)
      expect(replayed?.buffer).not.toBe(body.buffer)
    },
  )

  it('an answer that was freed stays expired, though the clock steps back', () => {
    const { store, claim, elapse } = bench()
    claim('a')
    store.settle('a', 'owner', settlement({ expiredTtlMs: TTL_MS }))
    elapse(TTL_MS)
    expect(store.sweep()).toBe(0)
    elapse(-1)
    expect(claim('a', { token: 'duplicate' })).toEqual({ state: 'expired', fingerprint: 'print', goneInMs: TTL_MS + 1 })
    elapse(TTL_MS + 1)
    expect(store.sweep()).toBe(1)
  })

  it('answers without a promise: nothing waits on the hot path', () => {
    const { store, claim } = bench()
    expect(claim('a')).toEqual({ state: 'acquired', attempt: 1 })
    expect(store.renew('a', 'owner', LEASE_MS)).toBe(true)
    expect(store.settle('a', 'owner', settlement())).toBe(true)
    expect(store.read('a')).toMatchObject({ id: 'a', state: 'settled' })
    expect(store.release('a', 'owner')).toBe(false)
  })
})

describe('memory: the cost', () => {
  it('J5: every verb but list takes as many steps among 50,000 records as among 500', () => {
    const stepsAmong = (records: number) => {
      const { store, answer, claim, elapse } = bench({ recordsMax: records })
      times(records, answer)
      return stepsOf(() => {
        for (let i = 0; i < 100; i++) {
          answer(`new ${i}`)
          claim(`new ${i}`, { token: 'duplicate' })
          store.read(`new ${i}`)
          claim(`passing ${i}`)
          store.renew(`passing ${i}`, 'owner', LEASE_MS)
          store.release(`passing ${i}`, 'owner')
          claim(`lost ${i}`, { leaseMs: 1, unknownTtlMs: 0 })
          elapse(1)
          store.sweep(10)
          store.forget(`new ${i}`)
        }
      })
    }
    const few = stepsAmong(500)
    expect(few).toBeGreaterThan(1_000)
    expect(stepsAmong(50_000)).toBe(few)
  })

  it('J5: a full store refuses in as many steps among 50,000 records as among 500', () => {
    const stepsAmong = (records: number) => {
      const { claim, elapse } = bench({ recordsMax: records })
      times(records - 1, claim)
      claim('gone', { leaseMs: 1, unknownTtlMs: 0 })
      elapse(LEASE_MS)
      claim('in its place')
      return stepsOf(() => {
        for (let i = 0; i < 100; i++) refused(() => claim('one more'))
      })
    }
    const few = stepsAmong(500)
    expect(few).toBeGreaterThanOrEqual(100)
    expect(few).toBeLessThan(110)
    expect(stepsAmong(50_000)).toBe(few)
  })

  it('a sweep visits a bounded number of lanes, however many different lifetimes there are', () => {
    const { store, claim, elapse } = bench()
    for (let i = 0; i < 5_000; i++) claim(`id ${i}`, { unknownTtlMs: UNKNOWN_TTL_MS + i })
    elapse(LEASE_MS)
    claim('gone', { leaseMs: 1, unknownTtlMs: 0 })
    elapse(1)
    expect(stepsOf(() => store.sweep(1))).toBeLessThan(150)
  })

  it('the count of steps does see a verb that visits every record', () => {
    const stepsAmong = (records: number) => {
      const { store, answer } = bench()
      times(records, answer)
      return stepsOf(() => store.list({ limit: 1 }))
    }
    expect(stepsAmong(5_000) - stepsAmong(500)).toBe(4_500)
  })
})

describe('memory: its waiters', () => {
  it('leaves no listener behind when a waiter is woken', async () => {
    const { store, claim } = bench()
    const { signal } = new AbortController()
    claim('a')
    const waiting = Array.from({ length: 20 }, () => store.waitFor?.('a', signal))
    expect(getEventListeners(signal, 'abort')).toHaveLength(20)
    store.settle('a', 'owner', settlement())
    await Promise.all(waiting)
    expect(getEventListeners(signal, 'abort')).toHaveLength(0)
  })

  it('leaves nothing behind in the store when a waiter is aborted', async () => {
    const { store, claim } = bench()
    claim('a')
    const aborted = await abortedWaiter(store, 'a')
    // A weak reference holds on until the end of its turn.
    await new Promise((resolve) => setImmediate(resolve))
    collectGarbage()
    expect(aborted.deref()).toBeUndefined()
    expect(store.renew('a', 'owner', LEASE_MS)).toBe(true)
    // close visits every id that is waited for.
    expect(stepsOf(() => void store.close())).toBe(0)
  })

  it('close wakes them, with no listener left', async () => {
    const { store, claim } = bench()
    const { signal } = new AbortController()
    claim('a')
    const waiting = store.waitFor?.('a', signal)
    await store.close()
    await waiting
    expect(getEventListeners(signal, 'abort')).toHaveLength(0)
  })
})

function bench(options: MemoryStoreOptions = {}) {
  let now = Date.UTC(2026, 0, 1)
  const store = memoryStore({ clock: { now: () => now, schedule: () => () => {} }, ...options })
  const claim = (id: string, over: Partial<ClaimRequest> = {}) => {
    const request = { id, token: 'owner', fingerprint: 'print', leaseMs: LEASE_MS, unknownTtlMs: UNKNOWN_TTL_MS }
    return store.claim({ ...request, takeover: false, ...over }) as Claim
  }
  return {
    store,
    claim,
    answer(id: string) {
      claim(id)
      store.settle(id, 'owner', settlement())
    },
    // Not by `read`, which counts as a use.
    has: (id: string) =>
      (store.list({ limit: Number.MAX_SAFE_INTEGER }) as readonly StoredRecord[]).some((record) => record.id === id),
    elapse(ms: number) {
      now += ms
    },
  }
}

function settlement(over: Partial<Settlement> = {}): Settlement {
  const answer = { status: 201, headers: [], body: new TextEncoder().encode('created') }
  return { outcome: 'committed', answer, ttlMs: TTL_MS, expiredTtlMs: 0, ...over }
}

/**
 * Counts the steps on Maps: each lookup, each write, and each entry that an iteration visits. A measure that no busy
 * machine can disturb. Its rings have no loop at all: they are only touched at their ends.
 */
function stepsOf(work: () => unknown): number {
  let steps = 0
  const plain = { ...Object.getOwnPropertyDescriptors(Map.prototype) }
  const { get, set, delete: remove, entries, values, keys } = Map.prototype
  const counted = <A extends unknown[], R>(verb: (this: Map<unknown, unknown>, ...args: A) => R) => {
    return function (this: Map<unknown, unknown>, ...args: A): R {
      steps += 1
      return verb.apply(this, args)
    }
  }
  const visited = <T>(iterate: (this: Map<unknown, unknown>) => Iterator<T>) => {
    return function (this: Map<unknown, unknown>) {
      const iterator = iterate.call(this)
      const next = () => {
        const step = iterator.next()
        if (!step.done) steps += 1
        return step
      }
      return { next, [Symbol.iterator]: () => ({ next }) }
    }
  }
  Object.assign(Map.prototype, { get: counted(get), set: counted(set), delete: counted(remove) })
  Object.assign(Map.prototype, { entries: visited(entries), values: visited(values), keys: visited(keys) })
  Object.assign(Map.prototype, { [Symbol.iterator]: visited(entries) })
  try {
    work()
  } finally {
    Object.defineProperties(Map.prototype, plain)
  }
  return steps
}

/** Without the runner's own checks, which would be counted too. */
function refused(verb: () => unknown): void {
  try {
    verb()
  } catch (error) {
    if (error instanceof OncekeyError && error.code === 'store-full') return
    throw error
  }
  throw new Error('it was not refused')
}

function times(count: number, body: (id: string) => void): void {
  for (let i = 0; i < count; i++) body(`id ${i}`)
}

/** In a function of its own, so that nothing but the store could still hold the signal. */
async function abortedWaiter(store: Store, id: string): Promise<WeakRef<AbortSignal>> {
  const controller = new AbortController()
  const waiting = store.waitFor?.(id, controller.signal)
  controller.abort()
  await waiting
  return new WeakRef(controller.signal)
}

function collectGarbage(): void {
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
}
