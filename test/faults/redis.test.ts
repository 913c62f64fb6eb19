import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { createClient } from 'redis'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { OncekeyError } from '../../src/error.ts'
import type { RedisClient } from '../../src/stores/redis.ts'
import { launch, redis, type Server } from '../services/index.ts'
import { command, until } from '../services/redis-cluster.ts'
import { startChild } from '../support/children.ts'
import { answered, claimOf, drivers, ioredis, nodeRedis, open, reasonOf } from '../support/redis.ts'
import { Load, lostOf } from '../support/redis-load.ts'

const missing = reasonOf(() => redis())

describe.skipIf(missing)(`a Redis server that fails${missing && ` (skipped: ${missing})`}`, () => {
  describe.each(Object.keys(drivers))('%s', (driver) => {
    const connect = async (url: string) => (await drivers[driver]?.(url)) as RedisClient

    it('down at start: a clear error, and used as soon as it is there', async () => {
      const server = await own()
      await server.kill()
      const store = open(impatient(driver, server.url))
      const claim = await failureOf(() => store.claim(claimOf('a')))
      expect(claim).toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/could not be reached/) })
      await server.start()
      await until('the store is used', async () => (await store.claim(claimOf('a'))).state === 'acquired')
      expect(await store.settle('a', 'mine', answered)).toBe(true)
    })

    it('kill -9 under load, with appendfsync always: nothing acknowledged is lost, and it goes on by itself', async () => {
      const server = await own()
      const store = open(await connect(server.url))
      const load = new Load(store, 'key')
      await load.more(1_000)
      await server.kill()
      await server.start()
      await load.more(1_000)
      await load.end()
      expect(await lostOf(store, load.claimed)).toEqual([])
      const again = await Promise.all(load.effects.map((id) => store.claim(claimOf(id, { token: 'another' }))))
      expect(again.filter(({ state }) => state !== 'settled')).toEqual([])
      expect(new Set(load.effects).size).toBe(load.effects.length)
      expect(load.errors.filter((error) => !isUnavailable(error))).toEqual([])
    })

    it('frozen: nothing hangs for ever, and the claim can be asked again with its token', async () => {
      const server = await own()
      const client = await connect(server.url)
      await open(client).claim(claimOf('before'))
      vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
      onTestFinished(() => void vi.useRealTimers())
      const store = open(client)
      await store.read('warm')
      server.freeze()
      const failure = failureOf(() => store.claim(claimOf('a')))
      vi.advanceTimersByTime(15_000)
      expect(await failure).toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/no reply/) })
      vi.useRealTimers()
      server.thaw()
      expect(await store.claim(claimOf('a'))).toEqual({ state: 'acquired', attempt: 1 })
    })

    it('wrong password: said so, in plain words', async () => {
      const server = await own()
      await command(server.port, 'CONFIG', 'SET', 'requirepass', 'secret')
      const wrong = `redis://:guess@127.0.0.1:${server.port}`
      const store = open(impatient(driver, wrong))
      expect(await failureOf(() => store.claim(claimOf('a')))).toMatchObject({ code: 'store-unavailable' })
      const none = open(impatient(driver, server.url))
      expect(await failureOf(() => none.claim(claimOf('a')))).toMatchObject({ code: 'store-unavailable' })
      const right = open(await connect(`redis://:secret@127.0.0.1:${server.port}`))
      expect(await right.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    })

    it('X5: waiters are woken although their connection was dropped, again and again', async () => {
      const server = await own()
      const [store, other] = [open(await connect(server.url)), open(await connect(server.url))]
      for (const id of ['a', 'b', 'c']) {
        await store.claim(claimOf(id))
        const waiting = other.waitFor?.(id, new AbortController().signal)
        await until('it listens', async () => /sub=1/.test(await command(server.port, 'CLIENT', 'LIST')))
        await command(server.port, 'CLIENT', 'KILL', 'TYPE', 'pubsub')
        expect(await store.settle(id, 'mine', answered)).toBe(true)
        await waiting
      }
    })
  })

  it('without an append-only file, kill -9 loses acknowledged claims: best effort, as the table says', async () => {
    const server = await own(['--appendonly', 'no'])
    const store = open(ioredis(server.url), { whenVolatile: 'ignore' })
    const load = new Load(store, 'key')
    await load.more(500)
    const acknowledged = [...load.claimed]
    await server.kill()
    await server.start()
    await load.end()
    const again = await Promise.all(acknowledged.map((id) => store.claim(claimOf(id, { token: 'another' }))))
    expect(again.filter(({ state }) => state === 'acquired').length).toBeGreaterThan(0)
  })

  it('J2: out of memory: new claims are refused as store-full, nothing pending is lost, and what runs may finish', async () => {
    const server = await own(['--maxmemory', '6mb'])
    const store = open(await nodeRedis(server.url))
    const body = Buffer.alloc(10_000, 'x')
    const large = { ...answered, answer: { ...answered.answer, body } }
    const claimed: string[] = []
    await store.claim(claimOf('answered'))
    await store.settle('answered', 'mine', answered)
    let refusal: unknown
    for (let i = 0; refusal === undefined && i < 10_000; i++) {
      try {
        await store.claim(claimOf(`running-${i}`))
        claimed.push(`running-${i}`)
        await store.claim(claimOf(`filler-${i}`))
        await store.settle(`filler-${i}`, 'mine', large)
      } catch (error) {
        refusal = error
      }
    }
    expect(refusal).toMatchObject({ code: 'store-full', message: expect.stringMatching(/maxmemory/) })
    expect(claimed.length).toBeGreaterThan(10)
    expect(await lostOf(store, claimed)).toEqual([])
    expect(await store.claim(claimOf('answered', { token: 'another' }))).toMatchObject({ state: 'settled' })
    const [first = '', second = '', third = ''] = claimed
    expect(await store.renew(first, 'mine', 1_000_000)).toBe(true)
    expect(await store.settle(first, 'mine', large)).toBe(true)
    expect(await store.release(second, 'mine')).toBe(true)
    expect(await store.forget(third)).toBe(true)
    await command(server.port, 'CONFIG', 'SET', 'maxmemory', '0')
    expect(await store.claim(claimOf('new'))).toMatchObject({ state: 'acquired' })
  })

  it('a replica that takes no writes: said so', async () => {
    const master = await own(['--repl-diskless-sync-delay', '0'])
    const replica = await own(['--replicaof', '127.0.0.1', String(master.port), '--repl-diskless-sync-delay', '0'])
    await until('it follows', async () => /link_status:up/.test(await command(replica.port, 'INFO', 'replication')))
    const store = open(ioredis(replica.url))
    const refusal = await failureOf(() => store.claim(claimOf('a')))
    expect(refusal).toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/is a replica/) })
    await command(replica.port, 'REPLICAOF', 'NO', 'ONE')
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a master with too few replicas, as it was told to want: said so, and used when it may be', async () => {
    const server = await own()
    const store = open(await nodeRedis(server.url))
    await store.claim(claimOf('before'))
    await command(server.port, 'CONFIG', 'SET', 'min-replicas-to-write', '1')
    for (const verb of [() => store.claim(claimOf('a')), () => store.settle('before', 'mine', answered)]) {
      const refusal = await failureOf(verb)
      expect(refusal).toMatchObject({ code: 'store-unavailable', message: expect.stringMatching(/too few replicas/) })
    }
    await command(server.port, 'CONFIG', 'SET', 'min-replicas-to-write', '0')
    expect(await store.settle('before', 'mine', answered)).toBe(true)
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('S9: 50 processes race for 20 keys: one effect for each', async () => {
    const server = await own()
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-'))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
    const effects = join(folder, 'effects')
    const keys = Array.from({ length: 20 }, (_, i) => `key-${i}`)
    const children = Array.from({ length: 50 }, (_, i) => child(i % 2 ? 'redis' : 'ioredis', server.url, effects))
    await Promise.all(children.map(({ ready }) => ready))
    for (const { process } of children) process.stdin?.end(`${keys.join('\n')}\n`)
    const seen = (await Promise.all(children.map(({ lines }) => lines))).flat()
    expect(seen.length).toBe(keys.length * children.length)
    expect(seen.filter((line) => line.endsWith(' acquired')).length).toBe(keys.length)
    expect(readFileSync(effects, 'utf8').trim().split('\n').sort()).toEqual([...keys].sort())
  })
})

function child(...args: string[]): { process: ChildProcess; ready: Promise<void>; lines: Promise<string[]> } {
  const started = startChild('claim-child.ts', ...args)
  const isReady = Promise.withResolvers<void>()
  const collect = async (): Promise<string[]> => {
    const lines: string[] = []
    for await (const line of createInterface(started.stdout)) {
      if (line === 'ready') isReady.resolve()
      else lines.push(line)
    }
    return lines
  }
  return { process: started, ready: isReady.promise, lines: collect() }
}

async function own(extra: readonly string[] = []): Promise<Server> {
  const server = await launch(redis(extra))
  onTestFinished(() => server.stop())
  return server
}

/** A client whose own patience is short, so that the test's is not tried; it may never get a connection. */
function impatient(driver: string, url: string): RedisClient {
  if (driver === 'ioredis') return ioredis(url, { maxRetriesPerRequest: 1, commandTimeout: 1_000 })
  const client = createClient({ url, commandOptions: { timeout: 300 } })
  client.on('error', () => {})
  client.connect().catch(() => {})
  onTestFinished(() => {
    if (client.isOpen) client.destroy()
  })
  return client
}

async function failureOf(verb: () => unknown): Promise<OncekeyError> {
  try {
    await verb()
  } catch (error) {
    if (error instanceof OncekeyError) return error
    throw error
  }
  throw new Error('it did not fail')
}

function isUnavailable(error: unknown): boolean {
  return error instanceof OncekeyError && error.code === 'store-unavailable'
}
