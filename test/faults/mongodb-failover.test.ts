import type { MongoClient } from 'mongodb'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'
import { type MongodbStoreOptions, mongodbStore } from '../../src/stores/mongodb.ts'
import { findMongodSet, type MongodSet } from '../services/mongod-set.ts'
import { claimOf, connectTo } from '../support/mongodb.ts'
import { Workload } from '../support/workload.ts'

const found = await findMongodSet()
const clients: MongoClient[] = []

afterAll(async () => {
  for (const client of clients) await client.close()
  if (typeof found !== 'string') await found.stop()
})

const title = typeof found === 'string' ? `failover (skipped: ${found})` : `failover, on ${found.title}`

describe.skipIf(typeof found === 'string')(title, () => {
  it('S9: kill -9 of the primary under load, twice: each key had one effect, and what was acknowledged is there', async () => {
    const load = new Workload([given('killed'), given('killed')])
    load.start()
    onTestFinished(() => load.stop())
    for (let round = 1; round <= 2; round++) {
      await load.settled(round * 200)
      const primary = await set().primary()
      await primary.kill()
      await set().primary()
      await load.settled(round * 200 + 100)
      await primary.start()
    }
    await load.settled(700)
    await load.stop()
    expect(await load.verdict()).toEqual({ doubleEffects: [], lost: [] })
  }, 90_000)

  it('without a majority nothing is acknowledged; with write concern 1 it is, and a failover loses it', async () => {
    const strict = given('minority', { callMsMax: 300 })
    const careless = given('minority', { writeConcern: { w: 1 } })
    const prepared = { timeout: 20_000 }
    for (const store of [careless, strict]) {
      await expect.poll(async () => (await store.claim(claimOf('prepared'))).state, prepared).toBe('acquired')
    }
    const primary = await set().primary()
    const others = set().servers.filter((server) => server !== primary)
    await Promise.all(others.map((server) => server.kill()))
    const [strictly, carelessly] = await Promise.allSettled([
      strict.claim(claimOf('strict')),
      careless.claim(claimOf('careless')),
    ])
    expect(strictly).toMatchObject({ status: 'rejected', reason: { code: 'store-unavailable' } })
    expect(carelessly).toEqual({ status: 'fulfilled', value: { state: 'acquired', attempt: 1 } })
    await primary.kill()
    for (const server of others) await server.start()
    await set().primary()
    const second = claimOf('careless', { token: 'second' })
    // The failover has let a second owner in: this is why majority is the default.
    await expect.poll(async () => careless.claim(second), { timeout: 20_000 }).toMatchObject({ state: 'acquired' })
    await primary.start()
  }, 60_000)
})

function set(): MongodSet {
  if (typeof found === 'string') throw new Error(found)
  return found
}

function given(name: string, options: MongodbStoreOptions = {}): Store {
  const client = connectTo(set().url, { serverSelectionTimeoutMS: 10_000 })
  clients.push(client)
  return mongodbStore(client.db('oncekey').collection(name), options)
}
