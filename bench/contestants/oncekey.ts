import { join } from 'node:path'
import express from 'express'
import fastify from 'fastify'
import { Pool } from 'pg'
import { createClient } from 'redis'
import type { Store } from '../../src/store.ts'
import { addExpressRoute, addFastifyRoute, serveExpress, serveFastify } from './bare.ts'
import { built } from './built.ts'
import type { Started } from './index.ts'
import { serverOf } from './servers.ts'

export async function startFastify(store: StoreName, directory: string): Promise<Started> {
  const { idempotency } = await built<typeof import('../../src/adapters/fastify.ts')>('adapters/fastify.js')
  const opened = await open(store, directory)
  const app = fastify()
  await app.register(idempotency({ store: opened, principal: 'public' }))
  addFastifyRoute(app)
  return closingAlso(opened, await serveFastify(app))
}

export async function startExpress(store: StoreName, directory: string): Promise<Started> {
  const { idempotency } = await built<typeof import('../../src/adapters/express.ts')>('adapters/express.js')
  const opened = await open(store, directory)
  const app = express()
  app.use(express.json())
  app.use(idempotency({ store: opened, principal: 'public' }))
  addExpressRoute(app)
  return closingAlso(opened, await serveExpress(app))
}

type StoreName = 'memory' | 'sqlite' | 'postgres' | 'postgres-unbatched' | 'redis'

/** As a user opens them: every option at its default. */
async function open(store: StoreName, directory: string): Promise<Store> {
  if (store === 'memory') {
    const { memoryStore } = await built<typeof import('../../src/stores/memory.ts')>('stores/memory.js')
    return memoryStore()
  }
  if (store === 'redis') return openRedis()
  if (store !== 'sqlite')
    return openPostgres(store === 'postgres' ? {} : { batchMax: 1, inFlightMax: UNBATCHED_CONNECTIONS })
  const { sqliteStore } = await built<typeof import('../../src/stores/sqlite.ts')>('stores/sqlite.js')
  return sqliteStore({ path: join(directory, 'oncekey.sqlite') })
}

const UNBATCHED_CONNECTIONS = 16

async function openPostgres(options: { batchMax?: number; inFlightMax?: number }): Promise<Store> {
  const { postgresStore } = await built<typeof import('../../src/stores/postgres.ts')>('stores/postgres.js')
  const { url } = await serverOf('postgres')
  return postgresStore(new Pool({ connectionString: url, max: 40 }), options)
}

async function openRedis(): Promise<Store> {
  const { redisStore } = await built<typeof import('../../src/stores/redis.ts')>('stores/redis.js')
  const { url } = await serverOf('redis')
  return redisStore(await createClient({ url }).connect())
}

function closingAlso(store: Store, started: Started): Started {
  return {
    ...started,
    async close() {
      await started.close()
      await store.close()
    },
  }
}
