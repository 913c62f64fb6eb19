import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { RedisClient } from '../../src/stores/redis.ts'
import type { Server } from '../services/index.ts'
import { command, findRedisCluster, until } from '../services/redis-cluster.ts'
import { answered, claimOf, ioredis, open } from '../support/redis.ts'
import { Load } from '../support/redis-load.ts'

const cluster = await findRedisCluster()
const missing = typeof cluster === 'string' ? cluster : ''
const servers = typeof cluster === 'string' ? [] : cluster.servers
const nodes = servers.map(({ port }) => ({ host: '127.0.0.1', port }))

afterAll(async () => {
  if (typeof cluster !== 'string') await cluster.stop()
})

const connectors: Record<string, () => Promise<RedisClient>> = {
  async redis() {
    const client = createCluster({
      rootNodes: nodes.map((socket) => ({ socket })),
      commandOptions: { timeout: 500 },
      topologyRefreshOnReconnectionAttemptStrategy: 200,
    })
    client.on('error', () => {})
    onTestFinished(() => client.destroy())
    await client.connect()
    return client
  },
  async ioredis() {
    const client = new Cluster(nodes)
    client.on('error', () => {})
    onTestFinished(() => client.disconnect())
    return client
  },
}

describe.skipIf(missing)(`a Redis Cluster that fails${missing && ` (skipped: ${missing})`}`, () => {
  it('a client for one server is told to be one for a cluster', async () => {
    const store = open(ioredis(servers[0]?.url ?? ''))
    const claims = Array.from({ length: 20 }, async (_, i) => store.claim(claimOf(`id-${i}`)))
    const refused = (await Promise.allSettled(claims)).filter(({ status }) => status === 'rejected')
    expect(refused.length).toBeGreaterThan(0)
    for (const { reason } of refused as PromiseRejectedResult[]) {
      expect(reason).toMatchObject({ code: 'store-unavailable', message: expect.stringContaining('createCluster') })
    }
  })

  it('records live on all masters, and list finds them in the order of their ids', async () => {
    const prefix = 'spread:'
    const store = open(await (connectors.ioredis as () => Promise<RedisClient>)(), { prefix })
    const ids = Array.from({ length: 60 }, (_, i) => `id-${i}`).sort()
    await Promise.all(ids.map((id) => store.claim(claimOf(id))))
    expect((await store.list()).map(({ id }) => id)).toEqual(ids)
    for (const { port } of servers.slice(0, 3)) {
      const keys = await command(port, 'KEYS', `${prefix}*`)
      expect(keys.split(prefix).length).toBeGreaterThan(5)
    }
  })

  it('a master dies under load: its replica takes over, and both drivers go on without a restart', async () => {
    const stores = await Promise.all(Object.values(connectors).map(async (connect) => open(await connect())))
    const loads = stores.map((store, i) => new Load(store, `load-${i}`))
    await Promise.all(loads.map((load) => load.more(300)))
    const [dead, heir] = [servers[0] as Server, servers[3] as Server]
    await dead.kill()
    await until('the replica took over', async () =>
      (await command(heir.port, 'INFO', 'replication')).includes('role:master'),
    )
    await Promise.all(loads.map((load) => load.more(600)))
    await Promise.all(loads.map((load) => load.end()))
    for (const load of loads) expect(new Set(load.effects).size).toBe(load.effects.length)
    const [first, second] = stores
    for (let i = 0; i < 6; i++) {
      await first?.claim(claimOf(`awaited-${i}`))
      const waiting = second?.waitFor?.(`awaited-${i}`, new AbortController().signal)
      expect(await first?.settle(`awaited-${i}`, 'mine', answered)).toBe(true)
      await waiting
    }
    await dead.start()
  })

  it('a part of the cluster is gone for good: said so', async () => {
    const [survivor] = [servers[2] as Server]
    await Promise.all([servers[1], servers[4]].map((server) => server?.kill()))
    await until('the others know', async () =>
      (await command(survivor.port, 'CLUSTER', 'INFO')).includes('cluster_state:fail'),
    )
    const store = open(ioredis(survivor.url))
    const claim = async () => store.claim(claimOf('a'))
    await expect(claim()).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringMatching(/A part of the Redis Cluster has no master/),
    })
  })
})
