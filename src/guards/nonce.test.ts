import { describe, expect, it } from 'vitest'
import { tempFile } from '../../test/support/sqlite.ts'
import { OncekeyError } from '../error.ts'
import { oncekey } from '../oncekey.ts'
import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { sqliteStore } from '../stores/sqlite.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { isNonce, type NonceGateOptions, nonceGate } from './nonce.ts'

const HOUR_MS = 3_600_000
const one = { id: 'a'.repeat(64) }
const other = { id: 'b'.repeat(64) }

const stores: ReadonlyArray<readonly [string, (clock: ReturnType<typeof manualClock>) => Store]> = [
  ['memory', (clock) => memoryStore({ clock })],
  ['sqlite', (clock) => sqliteStore({ path: tempFile(), clock, sweepEveryMs: 0 })],
]

describe.each(stores)('nonceGate on %s', (_name, makeStore) => {
  const setUp = (options: Partial<NonceGateOptions> = {}) => {
    const clock = manualClock()
    const store = makeStore(clock)
    const gate = nonceGate({ store, scope: 'test', ttlMs: 48 * HOUR_MS, keyTtlMs: 24 * HOUR_MS, clock, ...options })
    return { clock, store, gate }
  }

  it('S7: a nonce is let through for one operation, which meets it as its own', async () => {
    const { gate, store } = setUp()
    expect(await gate.take('n-1', one)).toBe(true)
    expect(await gate.take('n-1', one)).toBe(true)
    expect(await gate.take('n-1', other)).toBe(false)
    expect(await gate.take('n-2', other)).toBe(true)
    await store.close()
  })

  it('S7: of fifty operations that bring one nonce at the same time, exactly one passes', async () => {
    const { gate, store } = setUp()
    const runs = Array.from({ length: 50 }, (_, i) => ({ id: String(i).padStart(64, '0') }))
    const taken = await Promise.all(runs.map((run) => gate.take('n-1', run)))
    expect(taken.filter(Boolean)).toHaveLength(1)
    await store.close()
  })

  it('refuses the very same operation, too, once its key may be used anew; and forgets after ttlMs', async () => {
    const { gate, store, clock } = setUp()
    expect(await gate.take('n-1', one)).toBe(true)
    await clock.advance(24 * HOUR_MS - 1)
    expect(await gate.take('n-1', one)).toBe(true)
    await clock.advance(1)
    expect(await gate.take('n-1', one)).toBe(false)
    await clock.advance(24 * HOUR_MS - 1)
    expect(await gate.take('n-1', other)).toBe(false)
    await clock.advance(1)
    expect(await gate.take('n-1', other)).toBe(true)
    await store.close()
  })

  it('keeps scopes apart, and principals within one', async () => {
    const { gate, store, clock } = setUp()
    const elsewhere = nonceGate({ store, scope: ['test', 'refunds'], ttlMs: HOUR_MS, clock })
    expect(await gate.take('n-1', one)).toBe(true)
    expect(await elsewhere.take('n-1', other)).toBe(true)
    expect(await gate.take('n-1', other, 'anna')).toBe(true)
    expect(await gate.take('n-1', one, 'anna')).toBe(false)
    expect(await gate.take('n-1', one, 'ben')).toBe(true)
    await store.close()
  })

  it('an operation that was released keeps its nonce: the retry of the same key passes, another key does not', async () => {
    const { gate, store } = setUp()
    const once = oncekey({ store })
    const seen: boolean[] = []
    const attempt = (key: string, isDown: boolean) =>
      once.run({ key, scope: 'public' }, async (run) => {
        seen.push(await gate.take('n-1', run))
        if (isDown) throw new OncekeyError('nothing-done', 'the bank is closed')
        return 'done'
      })
    await expect(attempt('k-1', true)).rejects.toThrow('the bank is closed')
    await attempt('k-2', false)
    await attempt('k-1', false)
    expect(seen).toEqual([true, false, true])
    await store.close()
  })
})

describe('nonceGate', () => {
  it('remembers in another process what the first one took: the store has it', async () => {
    const path = tempFile()
    for (const [run, expected] of [
      [one, true],
      [other, false],
      [one, true],
    ] as const) {
      const store = sqliteStore({ path })
      expect(await nonceGate({ store, scope: 'test', ttlMs: HOUR_MS }).take('n-1', run)).toBe(expected)
      await store.close()
    }
  })

  it('asks again when the reply was lost, and is not refused by its own first claim', async () => {
    const store = memoryStore()
    let lost = 0
    const losesOne: Store = Object.assign(Object.create(store) as Store, {
      async claim(request: Parameters<Store['claim']>[0]) {
        const claim = await store.claim(request)
        if (lost++ === 0) throw new OncekeyError('store-unavailable', 'the reply was lost')
        return claim
      },
    })
    expect(await nonceGate({ store: losesOne, scope: 'test', ttlMs: HOUR_MS }).take('n-1', one)).toBe(true)
    expect(lost).toBe(2)
    expect(await nonceGate({ store, scope: 'test', ttlMs: HOUR_MS }).take('n-1', other)).toBe(false)
  })

  it('throws when the store cannot say: nothing is known then', async () => {
    const store = memoryStore()
    await store.close()
    await expect(nonceGate({ store, scope: 'test', ttlMs: HOUR_MS }).take('n-1', one)).rejects.toMatchObject({
      code: 'store-closed',
    })
  })

  it.each(['', ' ', 'a b', 'ä', 'x'.repeat(256), 'a\n', undefined, 7])('refuses %j as a nonce', async (value) => {
    const gate = nonceGate({ store: memoryStore(), scope: 'test', ttlMs: HOUR_MS })
    expect(isNonce(value)).toBe(false)
    await expect(gate.take(value as string, one)).rejects.toMatchObject({ code: 'config-invalid' })
  })

  it.each([
    [{ scope: '' }, /scope is missing/],
    [{ scope: [] }, /scope is missing/],
    [{ ttlMs: 0 }, /ttlMs is 0/],
    [{ ttlMs: Number.NaN }, /ttlMs is NaN/],
    [{ keyTtlMs: -1 }, /keyTtlMs is -1/],
    [{ store: undefined }, /store is missing/],
  ])('refuses the options %j', (wrong, text) => {
    const options = { store: memoryStore(), scope: 'test', ttlMs: HOUR_MS, ...wrong } as NonceGateOptions
    expect(() => nonceGate(options)).toThrow(text)
  })
})
