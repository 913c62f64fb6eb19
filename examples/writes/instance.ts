/**
 * One instance of the service, as a process of its own. Any number of them share one Redis and one PostgreSQL.
 *
 *     REDIS_URL=… POSTGRES_URL=… FLAGS_FILE=flags.json PORT=8080 node examples/writes/instance.ts
 */
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { createAdaptorServer } from '@hono/node-server'
import { Pool } from 'pg'
import { createClient } from 'redis'
import type { Contract, Store } from '../../src/index.ts'
import { ENTRIES_SQL } from './entry.ts'
import { fileFlags } from './flags.ts'
import { SHOP_SQL } from './orders.ts'
import { createLedger, createOrders, createStore, type Switching } from './service.ts'

export interface InstanceOptions {
  readonly redisUrl: string
  readonly postgresUrl: string
  readonly flagsFile: string
  /** 0: any free one. */
  readonly port: number
  readonly contract?: Contract
  readonly switching?: Switching
}

export interface Instance {
  readonly url: string
  readonly store: Store
  stop(): Promise<void>
}

export async function startInstance(options: InstanceOptions): Promise<Instance> {
  const { redisUrl, postgresUrl, flagsFile, port, contract, switching } = options
  const redis = await connectRedis(redisUrl)
  const pool = new Pool({ connectionString: postgresUrl })
  const ledger = createLedger(pool)
  const store = createStore(redis, ledger, switching)
  await pool.query(SHOP_SQL)
  // The ledger makes schema and table when it is first used, and the view stands on them.
  await ledger.sweep(1)
  await pool.query(ENTRIES_SQL)

  const app = createOrders({ pool, store, flags: fileFlags(flagsFile), ...(contract && { contract }) })
  const server = createAdaptorServer({ fetch: app.fetch })
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    store,
    async stop() {
      if ('closeAllConnections' in server) server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      await store.close()
      redis.destroy()
      await pool.end()
    },
  }
}

/** Also when Redis is away: the instance starts, and goes over to PostgreSQL. */
async function connectRedis(url: string): Promise<ReturnType<typeof createClient>> {
  const client = createClient({
    url,
    // A command that waits for Redis to come back would be no use: PostgreSQL is there now.
    disableOfflineQueue: true,
    socket: { connectTimeout: 1_000, reconnectStrategy: (retries) => Math.min(50 * 2 ** retries, 500) },
  })
  const failed = once(client, 'error')
  client.on('error', () => {})
  await Promise.race([client.connect(), failed])
  return client as ReturnType<typeof createClient>
}

if (import.meta.main) {
  const { REDIS_URL, POSTGRES_URL, FLAGS_FILE = 'flags.json', PORT = '0' } = process.env
  if (!REDIS_URL || !POSTGRES_URL) throw new Error('Set REDIS_URL and POSTGRES_URL.')
  const stores = { redisUrl: REDIS_URL, postgresUrl: POSTGRES_URL, flagsFile: FLAGS_FILE }
  try {
    const instance = await startInstance({ ...stores, port: Number(PORT) })
    console.log(instance.url)
    // It ends with whoever started it.
    process.stdin.resume().once('end', () => void instance.stop())
  } catch (error) {
    console.error(`The instance could not start: ${(error as Error).message}`)
    process.exit(1)
  }
}
