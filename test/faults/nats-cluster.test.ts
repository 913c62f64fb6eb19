import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { jetstreamManager } from '@nats-io/jetstream'
import type { NatsConnection } from '@nats-io/transport-node'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'
import type { Server } from '../services/index.ts'
import { findNatsCluster } from '../services/nats-cluster.ts'
import { type Racer, startRacer } from '../support/children.ts'
import { claimOf, connectTo, makeBucket, open, settlementOf } from '../support/nats.ts'
import { Workload } from '../support/workload.ts'

const BUCKET = 'once'
const PROCESSES = 50

const cluster = await findNatsCluster()
const connections: NatsConnection[] = []
const stores: Store[] = []
if (typeof cluster !== 'string') {
  for (const url of cluster.urls) {
    // Each connection starts at another server, and may go to any.
    const connection = await connectTo([url, ...cluster.urls])
    connections.push(connection)
    if (connections.length === 1) await makeBucketOrStop(connection)
    stores.push(open(connection, { bucket: BUCKET, skewMsMax: 0 }))
  }
}

afterAll(async () => {
  for (const connection of connections) await connection.close()
  if (typeof cluster !== 'string') await cluster.stop()
})

const title = typeof cluster === 'string' ? `three servers (skipped: ${cluster})` : `three servers, ${cluster.title}`

describe.skipIf(typeof cluster === 'string')(title, () => {
  it('of 18 claims of a key that was released, forgotten, given up or is gone, one is acquired, 200 times', async () => {
    for (let round = 0; round < 50; round++) {
      for (const before of ['released', 'forgotten', 'given up', 'gone'] as const) {
        const id = `${before} ${round}`
        await leave(id, before)
        const claims = await Promise.all(
          Array.from({ length: 18 }, (_, i) => store(i).claim(claimOf(id, { token: `claim ${i}`, takeover: true }))),
        )
        expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
        const settles = await Promise.all(claims.map((_, i) => store(i + 1).settle(id, `claim ${i}`, settlementOf())))
        expect(settles.filter(Boolean)).toHaveLength(1)
      }
    }
  }, 60_000)

  it('of 18 claims of a key that is old enough to be purged, one is acquired, 50 times', async () => {
    const bucket = 'short'
    await makeBucket(connection(0), bucket, { replicas: 3, ttl: 30_000 })
    const short = connections.map((nc) => open(nc, { bucket, skewMsMax: 0 }))
    const lease = { leaseMs: 10_000, unknownTtlMs: 10_000 }
    for (let round = 0; round < 50; round++) {
      const claims = await Promise.all(
        Array.from({ length: 18 }, (_, i) => {
          return short[i % short.length]?.claim(claimOf('key', { ...lease, token: `claim ${i} of ${round}` }))
        }),
      )
      const winners = claims.flatMap((claim, i) => (claim?.state === 'acquired' ? [i] : []))
      expect(winners).toHaveLength(1)
      expect(await short[0]?.release('key', `claim ${winners[0]} of ${round}`)).toBe(true)
    }
  }, 60_000)

  it('X1: a takeover and the settle of the late owner meet: one of the two is true, 200 times', async () => {
    for (let round = 0; round < 200; round++) {
      const id = `late ${round}`
      await leave(id, 'given up')
      const [settled, ...taken] = await Promise.all([
        store(0).settle(id, 'owner', settlementOf('late')),
        store(1).claim(claimOf(id, { token: 'taker 1', takeover: true })),
        store(2).claim(claimOf(id, { token: 'taker 2', takeover: true })),
      ])
      const takers = taken.filter(({ state }) => state === 'acquired').length
      expect(Number(settled) + takers).toBe(1)
    }
  }, 60_000)

  it(`S9: ${PROCESSES} processes race for a new key, a released one and a forgotten one: one effect each`, async () => {
    const keys = ['new', 'released', 'forgotten']
    for (const key of ['released', 'forgotten'] as const) await leave(key, key)
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-race-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const effects = join(folder, 'effects')
    const children = Array.from({ length: PROCESSES }, () => racer(effects))
    await Promise.all(children.map((child) => child.said('ready')))
    for (const key of keys) {
      for (const child of children) child.tell(key)
      const seen = await Promise.all(children.map((child) => child.said(key)))
      expect(seen.filter((line) => line === `${key} acquired`)).toHaveLength(1)
    }
    expect(readFileSync(effects, 'utf8').trim().split('\n').sort()).toEqual(keys.toSorted())
  }, 60_000)

  it('a follower that hangs makes no difference, and once back it is never asked what it missed', async () => {
    const follower = await server('follower')
    follower.freeze()
    onTestFinished(() => follower.thaw())
    const ids = Array.from({ length: 50 }, (_, i) => `while one hangs ${i}`)
    const [one, two] = await storesOff(follower)
    for (const id of ids) {
      expect(await one.claim(claimOf(id))).toMatchObject({ state: 'acquired' })
      expect(await two.claim(claimOf(id, { token: 'second' }))).toMatchObject({ state: 'running' })
      expect(await two.settle(id, 'owner', settlementOf())).toBe(true)
    }
    follower.thaw()
    const claims = await Promise.all(ids.map((id) => two.claim(claimOf(id, { token: 'second' }))))
    expect(claims.filter(({ state }) => state !== 'settled')).toEqual([])
  }, 60_000)

  it('J3: the leader is killed under load, and then the next one hangs: one effect per key, nothing acknowledged is lost', async () => {
    // Impatient: an operation that waits for a dead leader holds up the load that the next one is to be killed under.
    const load = new Workload(connections.slice(0, 3).map((nc) => open(nc, { bucket: BUCKET, requestMsMax: 1_000 })))
    load.start()
    onTestFinished(() => load.stop())
    await load.settled(300)
    const killed = await server('leader')
    await killed.kill()
    await load.settled(600)
    await killed.start()
    await load.settled(900)
    const frozen = await server('leader')
    frozen.freeze()
    await load.settled(1_200)
    frozen.thaw()
    await load.settled(1_500)
    await load.stop()
    expect(await load.verdict()).toEqual({ doubleEffects: [], lost: [] })
  }, 120_000)

  it('all servers go down and come back: refused meanwhile, and then the same stores go on with all records', async () => {
    if (typeof cluster === 'string') throw new Error(cluster)
    await store(0).claim(claimOf('through it all'))
    await Promise.all(cluster.servers.map((server) => server.kill()))
    const impatient = open(connection(0), { bucket: BUCKET, requestMsMax: 500 })
    await expect(impatient.claim(claimOf('refused'))).rejects.toMatchObject({ code: 'store-unavailable' })
    await Promise.all(cluster.servers.map((server) => server.start()))
    const claim = async () => store(1).claim(claimOf('through it all', { token: 'second' }))
    await expect.poll(claim, { timeout: 40_000, interval: 200 }).toMatchObject({ state: 'running' })
    const settle = async () => store(0).settle('through it all', 'owner', settlementOf())
    await expect.poll(settle, { timeout: 10_000 }).toBe(true)
  }, 120_000)
})

/** When this fails there is no test, and so nobody else who would end the servers. */
async function makeBucketOrStop(connection: NatsConnection): Promise<void> {
  try {
    await makeBucket(connection, BUCKET, { replicas: 3 })
  } catch (error) {
    if (typeof cluster !== 'string') await cluster.stop()
    throw error
  }
}

async function leave(id: string, how: 'released' | 'forgotten' | 'given up' | 'gone'): Promise<void> {
  await store(0).claim(claimOf(id, how === 'gone' ? { leaseMs: 1, unknownTtlMs: 0 } : {}))
  if (how === 'released') await store(0).release(id, 'owner')
  if (how === 'forgotten') await store(1).forget(id)
  if (how === 'given up') await store(0).renew(id, 'owner', 0)
  if (how === 'gone') await expect.poll(async () => store(2).read(id), { interval: 1 }).toBeUndefined()
}

function store(at: number): Store {
  const found = stores[at % stores.length]
  if (!found) throw new Error('there is no store')
  return found
}

function connection(at: number): NatsConnection {
  const found = connections[at]
  if (!found) throw new Error('not connected')
  return found
}

async function server(role: 'leader' | 'follower'): Promise<Server> {
  if (typeof cluster === 'string') throw new Error(cluster)
  const { streams } = await jetstreamManager(connection(0), { checkAPI: false })
  const { leader, replicas = [] } = (await streams.info(`KV_${BUCKET}`)).cluster ?? {}
  const name = role === 'leader' ? leader : replicas[0]?.name
  return cluster.named(`${name}`)
}

/** Stores on connections that do not go through this server. */
async function storesOff(server: Server): Promise<[Store, Store]> {
  if (typeof cluster === 'string') throw new Error(cluster)
  const urls = cluster.urls.filter((url) => url !== server.url)
  const opened = await Promise.all(
    urls.map(async (url) => {
      const connection = await connectTo(url)
      connections.push(connection)
      return open(connection, { bucket: BUCKET })
    }),
  )
  const [one, two] = opened
  if (!one || !two) throw new Error('there are not enough servers')
  return [one, two]
}

function racer(effects: string): Racer {
  if (typeof cluster === 'string') throw new Error(cluster)
  return startRacer('claim-child.ts', 'nats', cluster.urls.join(','), effects, BUCKET)
}
