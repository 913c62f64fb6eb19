import type { MongoClient } from 'mongodb'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Server } from '../../../test/services/index.ts'
import { findMongod, findStandalone } from '../../../test/services/mongod.ts'
import { claimOf, connectTo, settlementOf } from '../../../test/support/mongodb.ts'
import { SERVER_TICKS } from '../../../test/support/server-ticks.ts'
import type { Store } from '../../store.ts'
import { runStoreCase, storeCases } from '../../testing/store-suite.ts'
import { mongodbStore } from '../mongodb.ts'
import { Records } from './records.ts'
import { CHANGES, Waiters } from './waiters.ts'

const [found, standalone] = await Promise.all([
  findMongod(['--setParameter', 'enableTestCommands=1']),
  findStandalone(),
])
const clients: MongoClient[] = []

afterAll(async () => {
  for (const client of clients) await client.close()
  for (const server of [found, standalone]) if (typeof server !== 'string') await server.stop()
})

const title = typeof found === 'string' ? `waiting (skipped: ${found})` : `waiting, on ${found.title}`

describe.skipIf(typeof found === 'string')(title, () => {
  it('X5: the settle of another process is heard by the change stream, without polling', async () => {
    const { store, waiters, looks, signal } = await given('heard')
    await store.claim(claimOf('a'))
    const waiting = waiters.wait('a', signal)
    await expect.poll(() => waiters.mode).toBe('push')
    await expect.poll(() => looks.underWay).toBe(0)
    const before = looks.count
    await store.claim(claimOf('b'))
    await store.settle('b', 'owner', settlementOf())
    await store.settle('a', 'owner', settlementOf())
    await waiting
    expect(looks.count - before).toBe(1)
  })

  it('X5: a change stream that fails leaves the waiters to polling, and nobody is forgotten', async () => {
    const { store, waiters, client, signal } = await given('failed')
    await store.claim(claimOf('a'))
    const waiting = waiters.wait('a', signal)
    await expect.poll(() => waiters.mode).toBe('push')
    const data = { failCommands: ['getMore'], errorCode: CHANGE_STREAM_FATAL }
    await client.db('admin').command({ configureFailPoint: 'failCommand', mode: { times: 1 }, data })
    await expect.poll(() => waiters.mode, { timeout: 5_000 }).toBe('poll')
    await store.settle('a', 'owner', settlementOf())
    await waiting
  })

  it('X5: a lease that lapses ends the wait, although nobody writes anything', async () => {
    const { store, waiters, signal } = await given('lapsed')
    await store.claim(claimOf('a', { leaseMs: 200 }))
    await waiters.wait('a', signal)
    expect(await store.read('a')).toMatchObject({ state: 'unknown' })
  })
})

const CHANGE_STREAM_FATAL = 280

const alone = typeof standalone === 'string' ? `(skipped: ${standalone})` : `on ${standalone.title}`

describe.skipIf(typeof standalone === 'string')(`a server without a replica set, ${alone}`, () => {
  const waitCases = storeCases.filter(({ group, needs }) => group === 'waitFor' && needs !== 'exact-clock')
  it.each(waitCases)('$name', async (storeCase) => {
    const handles: Store[] = []
    const handle = (): Store => {
      const store = mongodbStore(clientOf(standalone).db('oncekey').collection('waits'))
      handles.push(store)
      return store
    }
    await runStoreCase(
      storeCase,
      async () => ({
        store: handle(),
        another: async () => handle(),
        elapse: (ms) => new Promise((resolve) => setTimeout(resolve, ms + 1)),
        dispose: async () => {
          await Promise.all(handles.map((store) => store.close()))
          await clientOf(standalone).db('oncekey').collection('waits').deleteMany({})
        },
      }),
      SERVER_TICKS,
    )
  })

  it('transaction says what is missing, and does nothing', async () => {
    const client = clientOf(standalone)
    const store = mongodbStore(client.db('oncekey').collection('none'), { client })
    const work = async () => settlementOf()
    const refusal = { code: 'config-invalid', message: expect.stringContaining('--replSet') }
    await expect(store.transaction(claimOf('a'), work)).rejects.toMatchObject(refusal)
    expect(await store.read('a')).toBeUndefined()
  })
})

interface Given {
  /** Writes as another process does: the waiters learn nothing from it directly. */
  readonly store: Store
  readonly waiters: Waiters
  readonly looks: { count: number; underWay: number }
  readonly client: MongoClient
  readonly signal: AbortSignal
}

async function given(name: string): Promise<Given> {
  const client = clientOf(found)
  const collection = client.db('oncekey').collection(name)
  const store = mongodbStore(collection)
  await store.read('prepared')
  const records = new Records(collection, { writeConcern: { w: 'majority' }, callMsMax: 5_000 })
  const looks = { count: 0, underWay: 0 }
  const waiters = new Waiters({
    async look(ids) {
      looks.count++
      looks.underWay++
      return records.running(ids).finally(() => looks.underWay--)
    },
    watch: () => collection.watch([...CHANGES]),
  })
  onTestFinished(() => waiters.close())
  return { store, waiters, looks, client, signal: new AbortController().signal }
}

function clientOf(server: Server | string): MongoClient {
  if (typeof server === 'string') throw new Error(server)
  const client = connectTo(server.url)
  clients.push(client)
  return client
}
