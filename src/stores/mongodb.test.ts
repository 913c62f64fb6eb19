import type { MongoClient } from 'mongodb'
import { afterAll, describe, it } from 'vitest'
import type { Service } from '../../test/services/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { connectTo } from '../../test/support/mongodb.ts'
import { SERVER_TICKS } from '../../test/support/server-ticks.ts'
import type { Store } from '../store.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { mongodbStore } from './mongodb.ts'

const COLLECTION = `oncekey-suite-${process.pid}`
const given = process.env.MONGODB_URL
const found = await find()
const clients: MongoClient[] = []

afterAll(async () => {
  await clients[0]?.db('oncekey').collection(COLLECTION).drop()
  for (const client of clients) await client.close()
  if (typeof found !== 'string') await found.stop()
})

if (typeof found === 'string') {
  describe.skip(`the store suite (skipped: ${found})`, () => {})
} else {
  for (let i = 0; i < 2; i++) clients.push(connectTo(found.url))
  describe(`the store suite, on two clients of ${found.title}`, () => {
    const sweep = { sweep: 'the TTL monitor of this server frees records too' }
    const without = { 'exact-clock': 'the clock is a real server’s', ...(given ? sweep : {}) }
    storeSuite({ describe, it, skip: it.skip }, harness, { ...SERVER_TICKS, without })
  })
}

/** Not FerretDB, which the store refuses. */
async function find(): Promise<Service | string> {
  if (given) return { url: given, title: 'the server of MONGODB_URL', stop: async () => {} }
  return findMongod(['--setParameter', 'ttlMonitorEnabled=false'])
}

async function harness() {
  const handles: Store[] = []
  const handle = (client: MongoClient | undefined): Store => {
    if (!client) throw new Error('not connected')
    const store = mongodbStore(client.db('oncekey').collection(COLLECTION))
    handles.push(store)
    return store
  }
  return {
    store: handle(clients[0]),
    another: async () => handle(clients[1]),
    elapse: (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms + 1)),
    dispose: async () => {
      await Promise.all(handles.map((store) => store.close()))
      await clients[0]?.db('oncekey').collection(COLLECTION).deleteMany({})
    },
  }
}
