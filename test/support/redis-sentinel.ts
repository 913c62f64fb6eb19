import { Redis } from 'ioredis'
import { createSentinel } from 'redis'
import type { RedisClient } from '../../src/stores/redis.ts'
import { type RedisSentinel, SENTINEL_NAME } from '../services/redis-sentinel.ts'

const HOST = '127.0.0.1'

/** A client of each driver that finds its master by a Sentinel, and its end. */
export const bySentinel: Record<string, (found: RedisSentinel) => Promise<readonly [RedisClient, () => unknown]>> = {
  async redis({ sentinel }) {
    const client = createSentinel({
      name: SENTINEL_NAME,
      sentinelRootNodes: [{ host: HOST, port: sentinel.port }],
      scanInterval: 100,
    })
    client.on('error', () => {})
    await client.connect()
    return [client, () => client.destroy()]
  },
  async ioredis({ sentinel }) {
    const client = new Redis({
      name: SENTINEL_NAME,
      sentinels: [{ host: HOST, port: sentinel.port }],
      retryStrategy: () => 50,
    })
    client.on('error', () => {})
    return [client, () => client.disconnect()]
  },
}
