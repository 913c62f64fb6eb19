import { channel } from 'node:diagnostics_channel'
import { afterEach, describe, expect, it } from 'vitest'
import type { ListQuery, Store, StoredRecord } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { History } from './history.ts'
import { Operations, SCANNED_MAX } from './operations.ts'

const ends: Array<() => void> = []

afterEach(() => {
  for (const end of ends.splice(0)) end()
})

describe('a search where keys are not shown', () => {
  it('tells nothing of a key to whoever does not know all of it', async () => {
    const { store, operations } = world()
    await put(store, idOf(1), { key: 'sk-8XqZ91' })
    const found = async (q: string) => (await operations(false).search({ q, limit: 10 })).operations.length
    for (const part of ['s', 'sk-', '8XqZ', 'XqZ91', 'sk-8XqZ9', 'SK-8XQZ91']) expect(await found(part), part).toBe(0)
    expect(await found('sk-8XqZ91')).toBe(1)
    expect(await found(idOf(1).slice(0, 60))).toBe(1)
    expect((await operations(true).search({ q: 'xqz', limit: 10 })).operations).toHaveLength(1)
  })
})

describe('the operation that an operator means', () => {
  it('is that with the whole key, before those whose id begins so, and never one with a part of it', async () => {
    const { store, operations } = world()
    const [a, b] = ['abcdef', 'abcde0'].map((beginning) => beginning.padEnd(64, '1'))
    await put(store, String(a), { key: 'order-4711' })
    await put(store, String(b), { key: 'abcdef' })
    const found = async (said: string) => (await operations(false).find(said)).map(({ id }) => id)
    for (const part of ['order-47', '4711', 'ORDER-4711', '', 'abcde', 'a']) expect(await found(part), part).toEqual([])
    expect(await found('order-4711')).toEqual([a])
    expect(await found('abcdef')).toEqual([b])
    expect(await found('ABCDEF1')).toEqual([a])
    await store.forget(String(b))
    expect(await found('abcdef')).toEqual([a])
  })

  it('is the whole id, also when somebody took that for a key', async () => {
    const { store, operations } = world()
    await put(store, idOf(1), { key: 'order' })
    await put(store, idOf(2), { key: idOf(1) })
    expect((await operations(false).find(idOf(1))).map(({ id }) => id)).toEqual([idOf(1)])
  })

  it('may be several of one key', async () => {
    const { store, operations } = world()
    for (const at of [1, 2, 3]) await put(store, idOf(at), { key: 'order', principal: `user-${at}` })
    expect(await operations(false).find('order')).toHaveLength(3)
  })
})

describe('memory', () => {
  const BODY_BYTES = 400_000

  it('holds few records at a time while they are large', async () => {
    const { store, pages, operations } = world()
    for (let at = 0; at < 60; at++) await put(store, idOf(at), { key: `k${at}` }, new Uint8Array(BODY_BYTES))
    await operations(true).search({ q: 'none', limit: 10 })
    await operations(true).search({ limit: 1_000 })
    await operations(true).expiry()
    const heaviest = Math.max(...pages.map(({ bodyBytes }) => bodyBytes))
    expect(heaviest).toBe(20 * BODY_BYTES)
  })

  it('goes on in large steps over small records, and back to small ones when a large one comes', async () => {
    const { store, pages, operations } = world()
    for (let at = 0; at < 1_500; at++) await put(store, idOf(at), {}, new Uint8Array(at === 700 ? 2_000_000 : 10))
    const { scanned, bodyBytes, complete } = await operations(false).expiry()
    expect([scanned, bodyBytes, complete]).toEqual([1_500, 1_499 * 10 + 2_000_000, true])
    expect(pages.map(({ limit }) => limit)).toEqual([20, 40, 80, 160, 320, 500, 20, 40, 80, 160, 320])
  })

  it('stops after many bytes, and goes on from there', async () => {
    const { store, operations } = world()
    // One body under many ids: what is counted is what comes from the store.
    const body = new Uint8Array(16 * 1024 * 1024)
    for (let at = 0; at < 50; at++) await put(store, idOf(at), { key: 'k' }, null)
    const heavy = seen(store, (record) => ({ ...record, answer: { status: 200, headers: [], body } }) as StoredRecord)
    const looking = new Operations(heavy.store, history(), true)
    expect(await looking.expiry()).toMatchObject({ scanned: 20, complete: false })
    const page = await looking.search({ q: 'none', limit: 10 })
    expect(page).toMatchObject({ scanned: 20, next: idOf(19) })
    const rest = await looking.search({ q: 'k', limit: 100, after: idOf(39) })
    expect([rest.operations.length, rest.next]).toEqual([10, null])
    expect((await operations(true).search({ limit: 1_000 })).operations).toHaveLength(50)
  })

  it('looks at so many records in one call, whatever their size', async () => {
    const { store, operations } = world()
    for (let at = 0; at < SCANNED_MAX + 10; at++) await put(store, idOf(at), {}, null)
    expect(await operations(false).expiry()).toMatchObject({ scanned: SCANNED_MAX, complete: false })
    expect(await operations(false).search({ q: 'x', limit: 1 })).toMatchObject({
      scanned: SCANNED_MAX,
      next: idOf(SCANNED_MAX - 1),
    })
  })

  it('counts once for all who ask at the same time or a little later', async () => {
    const { store, pages } = world()
    await put(store, idOf(1), {})
    let now = 1_000_000
    const looking = new Operations(store, history(), false, () => now)
    const all = await Promise.all(Array.from({ length: 10 }, () => looking.expiry()))
    expect(new Set(all).size).toBe(1)
    now += 4_999
    expect(await looking.expiry()).toBe(all[0])
    expect(pages).toHaveLength(1)
    now += 1
    await put(store, idOf(2), {})
    expect(await looking.expiry()).toMatchObject({ scanned: 2 })
    expect(pages).toHaveLength(2)
  })

  it('does not keep that a store failed', async () => {
    const { store } = world()
    let isDown = true
    const flaky = seen(store, (record) => {
      if (isDown) throw new Error('down')
      return record
    })
    await put(store, idOf(1), {})
    const looking = new Operations(flaky.store, history(), false)
    await expect(looking.expiry()).rejects.toThrow('down')
    isDown = false
    expect(await looking.expiry()).toMatchObject({ scanned: 1 })
  })
})

describe('what is told of people', () => {
  const changes = [{ path: '/customers/berta@example.com/limit', was: 'a1', is: 'b2' }]

  function conflict(id: string): void {
    const told = { id, contract: 'ietf', store: 'memory', labels: { key: 'order-berta' } }
    channel('oncekey').publish({ ...told, type: 'conflict' })
    channel('oncekey:gate').publish({ type: 'conflict-paths', id, changes })
    channel('oncekey:gate').publish({ type: 'upstream-failed', id, reason: 'berta hung up' })
  }

  it('names in a body are hidden where keys are', async () => {
    const { operations } = world()
    const [shy, open] = [operations(false), operations(true)]
    conflict(idOf(1))
    const story = JSON.stringify(await shy.show(idOf(1)))
    expect(story).toContain('"was":"a1"')
    expect(story).not.toMatch(/berta@|customers/)
    expect(JSON.stringify(await open.show(idOf(1)))).toContain('/customers/berta@example.com/limit')
  })

  it('a story that is redacted tells what happened, and nothing else', async () => {
    const { store, operations } = world()
    const open = operations(true)
    await put(store, idOf(1), { key: 'order-berta' })
    conflict(idOf(1))
    expect(await open.redact(idOf(1))).toBe('done')
    const story = await open.show(idOf(1))
    expect(story?.history.map(({ type }) => type)).toEqual(['conflict', 'upstream-failed', 'operator-redacted'])
    expect(JSON.stringify(story)).not.toContain('berta')
  })
})

function world() {
  const { store, pages } = seen(memoryStore())
  return { store, pages, operations: (reveals: boolean) => new Operations(store, history(), reveals) }
}

/** The store itself, with an eye on each page that it gives. */
function seen(store: Store, change = (record: StoredRecord): StoredRecord => record) {
  const pages: Array<{ readonly limit: number | undefined; readonly bodyBytes: number }> = []
  const list = async (query?: ListQuery): Promise<readonly StoredRecord[]> => {
    const page = (await store.list(query)).map(change)
    const sizes = page.map((one) => (one.state === 'settled' ? (one.answer.body?.byteLength ?? 0) : 0))
    pages.push({ limit: query?.limit, bodyBytes: sizes.reduce((a, b) => a + b, 0) })
    return page
  }
  const own = (name: string | symbol): unknown => {
    const value: unknown = Reflect.get(store, name)
    return typeof value === 'function' ? value.bind(store) : value
  }
  return { pages, store: new Proxy(store, { get: (_, name) => (name === 'list' ? list : own(name)) }) }
}

function history(): History {
  const made = new History()
  ends.push(() => made.close())
  return made
}

function idOf(at: number): string {
  return at.toString(16).padStart(64, '0')
}

async function put(
  store: Store,
  id: string,
  labels: Readonly<Record<string, string>>,
  body: Uint8Array | null = new Uint8Array(1),
): Promise<void> {
  const claim = { id, token: 't', fingerprint: 'f', leaseMs: 1_000, unknownTtlMs: 60_000, takeover: false, labels }
  await store.claim(claim)
  const answer = { status: 201, headers: [], body }
  await store.settle(id, 't', { outcome: 'committed', answer, ttlMs: 60_000, expiredTtlMs: 0 })
}
