import { jetstream } from '@nats-io/jetstream'
import { Kvm } from '@nats-io/kv'
import { connect as connectNats } from '@nats-io/transport-node'
import { MongoClient } from 'mongodb'
import { createPool } from 'mysql2/promise'
import { Pool } from 'pg'
import { createClient } from 'redis'
import type { Store } from '../../src/store.ts'
import { mongodbStore } from '../../src/stores/mongodb.ts'
import { mysqlStore } from '../../src/stores/mysql.ts'
import { natsStore } from '../../src/stores/nats.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

/** A store by its name and the address of its server, with a connection of its own. */
export const openStore = async (name: StoreName, url: string): Promise<OpenStore> => OPENERS[name](url)

export type StoreName = keyof typeof OPENERS
interface OpenStore {
  readonly store: Store
  /** Ends the connection. */
  end(): Promise<unknown>
}

const OPENERS = {
  async sqlite(path: string): Promise<OpenStore> {
    return { store: sqliteStore({ path }), end: async () => {} }
  },
  async postgres(url: string): Promise<OpenStore> {
    const pool = new Pool({ connectionString: url, max: 3 })
    return { store: postgresStore(pool), end: () => pool.end() }
  },
  async mysql(url: string): Promise<OpenStore> {
    const pool = createPool({ uri: url, connectionLimit: 3 })
    return { store: mysqlStore(pool), end: () => pool.end() }
  },
  async mongodb(url: string): Promise<OpenStore> {
    const client = await new MongoClient(url).connect()
    return { store: mongodbStore(client.db('race').collection('records'), { client }), end: () => client.close() }
  },
  async redis(url: string): Promise<OpenStore> {
    const client = await createClient({ url }).connect()
    return { store: redisStore(client), end: () => client.close() }
  },
  async nats(url: string): Promise<OpenStore> {
    const connection = await connectNats({ servers: url })
    await new Kvm(connection).create('race')
    return { store: natsStore(jetstream(connection), { bucket: 'race' }), end: () => connection.close() }
  },
}
