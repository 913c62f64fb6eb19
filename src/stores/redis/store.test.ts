import { Cluster, Redis } from 'ioredis'
import { createClient, createCluster, createSentinel } from 'redis'
import { afterAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { findOwn } from '../../../test/services/index.ts'
import { command, until } from '../../../test/services/redis-cluster.ts'
import { answered, claimOf, drivers, ioredis, nodeRedis, open } from '../../../test/support/redis.ts'
import type { Settlement } from '../../store.ts'
import type { RedisClient } from '../redis.ts'
import { redisStore } from '../redis.ts'
import { driverOf } from './drivers.ts'
import { ANSWER_BYTES_MAX, claimOwn } from './record.ts'
import { CLAIM } from './scripts.ts'

const server = await findOwn('redis')
const missing = typeof server === 'string' ? server : ''
const { url, port } = typeof server === 'string' ? { url: '', port: 0 } : server
const ask = (...args: string[]): Promise<string> => command(port, ...args)
const keyOf = (id: string): string => `oncekey:{${id}}`

afterAll(async () => {
  if (typeof server !== 'string') await server.stop()
})

it('takes the clients of both drivers, as they are typed', () => {
  const clients: RedisClient[] = [
    createClient(),
    createClient({ RESP: 2 }),
    createCluster({ rootNodes: [] }),
    createSentinel({ name: 'main', sentinelRootNodes: [] }),
    new Redis({ lazyConnect: true }),
    new Cluster([], { lazyConnect: true }),
  ]
  for (const client of clients) expect(redisStore(client).name).toBe('redis')
})

it('refuses what is no client, and options that are none', () => {
  for (const client of [undefined, {}, 'redis://127.0.0.1']) {
    expect(() => redisStore(client as RedisClient)).toThrow(/createClient.*ioredis/)
  }
  const wrong = { whenEvicting: 'never' } as unknown as { whenEvicting: 'warn' }
  expect(() => redisStore(createClient(), wrong)).toThrow('whenEvicting is never')
})

describe.skipIf(missing)(`one server${missing && ` (skipped: ${missing})`}`, () => {
  beforeEach(async () => {
    await ask('FLUSHALL')
    await ask('CONFIG', 'RESETSTAT')
  })

  it('what is given up before the client has sent it is never sent', async () => {
    const driver = driverOf(await nodeRedis(url))
    const given = new AbortController()
    const reply = driver.run(CLAIM, [keyOf('a')], ['1000', '1000', '', '', claimOwn(claimOf('a'))], given.signal)
    given.abort()
    await expect(reply).rejects.toThrow()
    const next = new AbortController().signal
    await driver.run(CLAIM, [keyOf('b')], ['1000', '1000', '', '', claimOwn(claimOf('b'))], next)
    const existing = [await ask('EXISTS', keyOf('a')), await ask('EXISTS', keyOf('b'))]
    expect(existing.map(Number)).toEqual([0, 1])
  })

  it('spares the client its timer for a command that is sent at once', async () => {
    const store = open(await nodeRedis(url))
    await store.claim(claimOf('a'))
    const timers = vi.spyOn(AbortSignal, 'timeout')
    onTestFinished(() => timers.mockRestore())
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    expect(timers).not.toHaveBeenCalled()
  })

  describe.each(Object.keys(drivers))('%s', (driver) => {
    const client = async () => (await drivers[driver]?.(url)) as RedisClient

    it('64 claims of one moment go out in one write', async () => {
      const store = open(await client())
      await store.claim(claimOf('first'))
      const before = await stat('total_reads_processed')
      const claims = await Promise.all(Array.from({ length: 64 }, (_, i) => store.claim(claimOf(`id-${i}`))))
      const reads = (await stat('total_reads_processed')) - before
      expect(new Set(claims.map(({ state }) => state))).toEqual(new Set(['acquired']))
      // Two are not the claims': the question itself, and the end of the connection that asked before.
      expect(reads).toBeLessThanOrEqual(1 + 2)
    })

    it('claims of one moment are one command, and so are settles; one that cannot be used harms no other', async () => {
      const store = open(await client())
      const ids = Array.from({ length: 64 }, (_, i) => `id-${i}`)
      await store.claim(claimOf('first'))
      await store.settle('first', 'mine', answered)
      await ask('SET', keyOf('id-7'), 'something else')
      await ask('CONFIG', 'RESETSTAT')
      const claims = await Promise.allSettled(ids.map((id) => store.claim(claimOf(id, { fingerprint: id }))))
      const settles = await Promise.allSettled(ids.map((id) => store.settle(id, 'mine', answerOf(id))))
      expect(await calls('evalsha')).toBe(2)
      for (const all of [claims, settles]) {
        expect(all.filter(({ status }) => status === 'fulfilled')).toHaveLength(63)
        expect(all[7]).toMatchObject({ reason: { code: 'store-incompatible' } })
      }
      const again = await Promise.allSettled(ids.map((id) => store.claim(claimOf(id, { token: 'other' }))))
      for (const [index, claim] of again.entries()) {
        if (index === 7) continue
        const id = `id-${index}`
        expect(claim).toMatchObject({ value: { state: 'settled', fingerprint: id, answer: answerOf(id).answer } })
      }
    })

    it('decides the same after many known keys, when it looks first, as after many new ones', async () => {
      const decisions: unknown[] = []
      for (const warmUp of ['known', 'new']) {
        await ask('FLUSHALL')
        const store = open(await client())
        for (const id of ['settled', 'running', 'left']) await store.claim(claimOf(id))
        await store.settle('settled', 'mine', answered)
        await store.renew('left', 'mine', 0)
        await ask('SET', keyOf('foreign'), 'something else')
        await ask('SET', keyOf('cut'), (await ask('GET', keyOf('settled'))).slice(0, 30))
        await ask('SET', keyOf('empty'), '')
        await ask('RPUSH', keyOf('list'), 'something else')
        for (let i = 0; i < 40; i++)
          await store.claim(claimOf(warmUp === 'new' ? `${i}` : 'settled', { token: `${i}` }))
        const ids = ['fresh', 'settled', 'running', 'left', 'foreign', 'cut', 'empty', 'list']
        await ask('CONFIG', 'RESETSTAT')
        const claims = await Promise.allSettled(
          ids.map((id) => store.claim(claimOf(id, { token: 'other', takeover: true }))),
        )
        expect((await calls('mget')) > 0).toBe(warmUp === 'known')
        decisions.push(claims.map((claim) => ('value' in claim ? claim.value.state : claim.reason.code)))
        expect(await store.claim(claimOf('running'))).toMatchObject({ state: 'acquired', attempt: 1 })
        expect(await store.claim(claimOf('left', { token: 'other' }))).toMatchObject({ state: 'acquired', attempt: 2 })
      }
      const expected = [
        'acquired',
        'settled',
        'running',
        'acquired',
        'store-incompatible',
        'store-incompatible',
        'acquired',
        'store-incompatible',
      ]
      expect(decisions).toEqual([expected, expected])
    })

    it('every verb is one round trip, and one more when the server does not know the script', async () => {
      const store = open(await client())
      await store.claim(claimOf('a'))
      await ask('SCRIPT', 'FLUSH')
      const verbs: Array<() => unknown> = [
        () => store.claim(claimOf('a')),
        () => store.renew('a', 'mine', 1_000),
        () => store.settle('a', 'mine', answered),
        () => store.read('a'),
        () => store.release('a', 'mine'),
        () => store.forget('a'),
      ]
      for (const verb of verbs) {
        await ask('CONFIG', 'RESETSTAT')
        await verb()
        expect([await calls('evalsha'), await calls('eval')]).toEqual([1, 1])
        await verb()
        expect([await calls('evalsha'), await calls('eval')]).toEqual([2, 1])
      }
    })

    it('Redis itself frees a record when it is gone, in whatever way its time was set', async () => {
      const store = open(await client())
      const expiry = async () => Number(await ask('PEXPIRETIME', keyOf('a')))
      await store.claim(claimOf('a'))
      expect(await expiry()).toBe((await store.read('a'))?.goneAt)
      await store.renew('a', 'mine', 5_000)
      expect(await expiry()).toBe((await store.read('a'))?.goneAt)
      await store.renew('a', 'mine', 0)
      expect(await store.claim(claimOf('a', { token: 'taker', takeover: true }))).toMatchObject({ attempt: 2 })
      expect(await expiry()).toBe((await store.read('a'))?.goneAt)
      await store.settle('a', 'taker', { ...answered, ttlMs: 100, expiredTtlMs: 100 })
      expect(await expiry()).toBe((await store.read('a'))?.goneAt)
      await until('the key is gone', async () => (await ask('DBSIZE')).trim() === '0')
    })

    it('close frees its own connection, and leaves the one that it was given', async () => {
      const given = await client()
      const store = redisStore(given)
      await store.claim(claimOf('a'))
      const connected = Number(await stat('connected_clients'))
      const waiting = store.waitFor?.('a', new AbortController().signal)
      await until('the waiters have a connection', async () => (await subscribers()) === 1)
      expect(await stat('connected_clients')).toBe(connected + 1)
      await Promise.all([store.close(), waiting])
      await until('it is gone', async () => (await subscribers()) === 0)
      expect(await open(given).read('a')).toMatchObject({ state: 'running' })
    })

    it('X5: it is a message that wakes a waiter, and not only a look at the clock', async () => {
      // From here on no timer rings: nobody looks again by himself.
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
      onTestFinished(() => void vi.useRealTimers())
      const [store, other] = [open(await client()), open(await client())]
      for (const end of [
        (id: string) => store.settle(id, 'mine', answered),
        (id: string) => store.release(id, 'mine'),
        (id: string) => store.renew(id, 'mine', 0),
        (id: string) => store.forget(id),
      ]) {
        await store.claim(claimOf('a'))
        const waiting = other.waitFor?.('a', new AbortController().signal)
        const isNoted = async () => (await ask('GETRANGE', keyOf('a'), '7', '7')).trim() === 'w'
        while (!(await isNoted()) || (await subscribers()) === 0);
        expect(await end('a')).toBe(true)
        await waiting
        await store.forget('a')
      }
    })

    it('J2: an evicting server is refused in plain words, and used when it is set right', async () => {
      await ask('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru')
      onTestFinished(async () => void (await ask('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')))
      const store = open(await client())
      await expect(store.claim(claimOf('a'))).rejects.toMatchObject({
        code: 'config-invalid',
        message: expect.stringMatching(/may evict live claims: its maxmemory-policy is allkeys-lru.*noeviction/),
      })
      await expect(store.list()).rejects.toMatchObject({ code: 'config-invalid' })
      expect((await ask('DBSIZE')).trim()).toBe('0')
      await ask('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')
      expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    })

    it('what the server will not say is warned of, once', async () => {
      await ask('ACL', 'SETUSER', 'shy', 'on', '>secret', '~*', '&*', '+@all', '-info', '-config')
      const shy = `redis://shy:secret@127.0.0.1:${port}`
      const warnings = await warningsOf(async () => {
        const store = open((await drivers[driver]?.(shy)) as RedisClient)
        for (const id of ['a', 'b']) expect(await store.claim(claimOf(id))).toMatchObject({ state: 'acquired' })
      })
      expect(warnings).toEqual([expect.stringContaining('does not tell its maxmemory-policy')])
    })

    it('X5: a user who may not publish or subscribe writes all the same, and waiters are woken', async () => {
      await ask('ACL', 'SETUSER', 'mute', 'on', '>secret', '~*', '+@all', 'resetchannels')
      const mute = `redis://mute:secret@127.0.0.1:${port}`
      const store = open((await drivers[driver]?.(mute)) as RedisClient)
      await store.claim(claimOf('a'))
      const waiting = store.waitFor?.('a', new AbortController().signal)
      const other = open((await drivers[driver]?.(mute)) as RedisClient)
      await until('the wait is noted', async () => (await ask('GETRANGE', keyOf('a'), '7', '7')).trim() === 'w')
      expect(await other.settle('a', 'mine', answered)).toBe(true)
      await waiting
    })
  })

  it('a server without an append-only file is warned of once, refused, or taken in silence, as asked', async () => {
    await ask('CONFIG', 'SET', 'appendonly', 'no')
    onTestFinished(async () => void (await ask('CONFIG', 'SET', 'appendonly', 'yes')))
    const client = ioredis(url)
    const claim = async (options: object) => void (await open(client, options).claim(claimOf('a')))
    expect(await warningsOf(() => claim({}))).toEqual([expect.stringContaining('keeps no append-only file')])
    expect(await warningsOf(() => claim({ whenVolatile: 'ignore' }))).toEqual([])
    await expect(claim({ whenVolatile: 'refuse' })).rejects.toMatchObject({ code: 'config-invalid' })
  })

  it('an evicting server that is wanted is used, with a warning', async () => {
    await ask('CONFIG', 'SET', 'maxmemory-policy', 'volatile-ttl')
    onTestFinished(async () => void (await ask('CONFIG', 'SET', 'maxmemory-policy', 'noeviction')))
    const store = open(ioredis(url), { whenEvicting: 'warn' })
    const warnings = await warningsOf(async () => void (await store.claim(claimOf('a'))))
    expect(warnings).toEqual([expect.stringContaining('maxmemory-policy is volatile-ttl')])
  })

  it.each([
    ['ioredis with keyPrefix', () => ioredis(url, { keyPrefix: 'app[1]:' })],
    ['ioredis with enableAutoPipelining', () => ioredis(url, { enableAutoPipelining: true })],
    ['ioredis with stringNumbers', () => ioredis(url, { stringNumbers: true })],
    ['ioredis with RESP2', () => ioredis(url, { protocol: 2 })],
    ['redis with RESP2', () => nodeRedis(url, { RESP: 2 })],
    ['redis with a type mapping of its own', () => nodeRedis(url, { commandOptions: { typeMapping: { 58: String } } })],
  ])('works with a client of other settings: %s', async (_name, connect) => {
    const client = await connect()
    const store = open(client, { prefix: 'p*:' })
    const other = open(await connect(), { prefix: 'p*:' })
    expect(await store.claim(claimOf('a'))).toEqual({ state: 'acquired', attempt: 1 })
    expect(await store.claim(claimOf('b'))).toEqual({ state: 'acquired', attempt: 1 })
    const waiting = other.waitFor?.('a', new AbortController().signal)
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    await waiting
    const { outcome, answer } = answered
    expect(await other.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'settled', outcome, answer })
    expect((await other.list()).map(({ id, state }) => [id, state])).toEqual([
      ['a', 'settled'],
      ['b', 'running'],
    ])
    expect(await store.sweep()).toBe(0)
  })

  it('what it did not write is reported, and left as it is', async () => {
    const store = open(ioredis(url))
    await ask('SET', keyOf('text'), 'something else')
    await ask('HSET', keyOf('hash'), 'a', 'b')
    await ask('SET', keyOf('newer'), `once3${'0'.repeat(200)}`)
    await ask('SET', keyOf('older'), `once1${'0'.repeat(200)}`)
    for (const id of ['text', 'hash', 'newer', 'older']) {
      for (const verb of [
        () => store.claim(claimOf(id)),
        () => store.settle(id, 'mine', answered),
        () => store.read(id),
        () => store.forget(id),
      ]) {
        await expect(verb()).rejects.toMatchObject({ code: 'store-incompatible' })
      }
    }
    expect((await ask('GET', keyOf('text'))).trim()).toBe('something else')
  })

  it('a record under the name of another is not believed', async () => {
    const store = open(ioredis(url))
    await store.claim(claimOf('a'))
    await store.settle('a', 'mine', answered)
    await ask('RENAME', keyOf('a'), keyOf('b'))
    await expect(store.claim(claimOf('b', { token: 'other' }))).rejects.toMatchObject({ code: 'store-incompatible' })
    await expect(store.read('b')).rejects.toThrow('holds the record a')
  })

  it('ids, tokens and fingerprints that UTF-8 cannot hold stay apart', async () => {
    const store = open(ioredis(url))
    const odd = ['\ud800', '\udfff', '\ufffd', '\u0001', '\u0001"x"', 'nul\0']
    for (const text of odd) {
      expect(await store.claim(claimOf(text, { token: text, fingerprint: text }))).toMatchObject({ state: 'acquired' })
    }
    for (const text of odd) {
      expect(await store.read(text)).toMatchObject({ id: text, fingerprint: text })
      for (const other of odd) expect(await store.renew(text, other, 1_000)).toBe(text === other)
    }
    expect((await store.list()).map(({ id }) => id)).toEqual([...odd].sort())
  })

  it('sweep frees the answer of an expired record, and the key stays used', async () => {
    const store = open(ioredis(url))
    const body = Buffer.alloc(10_000, 'x')
    for (const id of ['a', 'b']) {
      await store.claim(claimOf(id, { labels: { route: '/orders' } }))
      const settlement = { ...answered, answer: { ...answered.answer, body }, ttlMs: id === 'a' ? 1 : 60_000 }
      await store.settle(id, 'mine', { ...settlement, expiredTtlMs: 60_000 })
    }
    await until('it has expired', async () => (await store.read('a'))?.state === 'expired')
    const before = await store.read('a')
    expect(await store.sweep()).toBe(0)
    expect(Number(await ask('STRLEN', keyOf('a')))).toBeLessThan(1_000)
    expect(Number(await ask('STRLEN', keyOf('b')))).toBeGreaterThan(10_000)
    const { goneInMs: _left, ...after } = (await store.read('a')) as unknown as Record<string, unknown>
    expect(before).toMatchObject(after)
    expect(Number(await ask('PEXPIRETIME', keyOf('a')))).toBe(before?.goneAt)
    expect(await store.claim(claimOf('a', { token: 'other' }))).toMatchObject({ state: 'expired' })
  })

  it('X4: a body over the limit of Redis is refused before it is sent; the record can still be settled', async () => {
    const store = open(ioredis(url))
    await store.claim(claimOf('a'))
    // Never touched, so never really there.
    const body = new Uint8Array(ANSWER_BYTES_MAX + 1)
    const settle = store.settle('a', 'mine', { ...answered, answer: { ...answered.answer, body } })
    await expect(settle).rejects.toMatchObject({ code: 'body-too-large', message: expect.stringContaining('512 MB') })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
  })

  it('X4: a body of 64 MB comes back byte for byte', async () => {
    for (const client of [ioredis(url), await nodeRedis(url)]) {
      const store = open(client)
      await store.claim(claimOf('a'))
      const body = Buffer.alloc(64 * 1_024 * 1_024)
      for (let i = 0; i < body.length; i += 4_093) body[i] = i * 31
      expect(await store.settle('a', 'mine', { ...answered, answer: { ...answered.answer, body } })).toBe(true)
      const claim = await store.claim(claimOf('a', { token: 'other' }))
      expect(claim.state === 'settled' && claim.answer.body && Buffer.compare(claim.answer.body, body)).toBe(0)
      await store.forget('a')
    }
  })
})

/** No two of the same length, some empty, and none that UTF-8 could hold. */
function answerOf(id: string): Settlement {
  const body = Buffer.alloc(Number(id.slice(3)), 0xff)
  return { ...answered, answer: { status: 201, headers: [['x-id', id]], body } }
}

async function stat(name: string): Promise<number> {
  const line = new RegExp(`^${name}:(\\d+)`, 'm').exec(await ask('INFO', 'everything'))
  return Number(line?.[1])
}

async function calls(name: string): Promise<number> {
  const line = new RegExp(`^cmdstat_${name}:calls=(\\d+)`, 'm').exec(await ask('INFO', 'commandstats'))
  return Number(line?.[1] ?? 0)
}

async function subscribers(): Promise<number> {
  const list = await ask('CLIENT', 'LIST')
  return [...list.matchAll(/ sub=1 /g)].length
}

async function warningsOf(body: () => Promise<void>): Promise<readonly string[]> {
  const warnings: string[] = []
  const listen = (warning: Error): void => {
    if (warning.name === 'OncekeyWarning') warnings.push(warning.message)
  }
  process.on('warning', listen)
  try {
    await body()
    // Warnings are emitted in the next tick.
    await new Promise((resolve) => setImmediate(resolve))
  } finally {
    process.off('warning', listen)
  }
  return warnings
}
