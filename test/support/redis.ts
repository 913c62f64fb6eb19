import { Redis, type RedisOptions } from 'ioredis'
import { createClient } from 'redis'
import { onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'
import type { RedisClient, RedisStoreOptions } from '../../src/stores/redis.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { Unavailable } from '../services/index.ts'

export { answered, claimOf } from './requests.ts'

/** A client of `redis`, gone when the test is over. */
export async function nodeRedis(url: string, options: object = {}): Promise<ReturnType<typeof createClient>> {
  const client = createClient({ url, ...options })
  client.on('error', () => {})
  onTestFinished(() => {
    if (client.isOpen) client.destroy()
  })
  await client.connect()
  return client as ReturnType<typeof createClient>
}

/** A client of `ioredis`, gone when the test is over. */
export function ioredis(url: string, options: Omit<RedisOptions, 'replyMapping'> = {}): Redis {
  const { hostname: host, port, username, password } = new URL(url)
  const client = new Redis({ host, port: Number(port), username, password, ...options })
  client.on('error', () => {})
  onTestFinished(() => client.disconnect())
  return client
}

/** One of each driver, on one server. */
export const drivers: Readonly<Record<string, (url: string) => Promise<RedisClient>>> = {
  redis: (url) => nodeRedis(url),
  ioredis: async (url) => ioredis(url),
}

/** A store that is closed when the test is over. */
export function open(client: RedisClient, options: RedisStoreOptions = {}): Store {
  const store = redisStore(client, options)
  onTestFinished(() => store.close())
  return store
}

/** Why there is no such server on this machine, in words; empty when there is. */
export function reasonOf(recipe: () => unknown): string {
  try {
    recipe()
    return ''
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}
