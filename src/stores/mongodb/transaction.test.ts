import type { ClientSession, MongoClient } from 'mongodb'
import { afterAll, describe, expect, it } from 'vitest'
import { findMongod } from '../../../test/services/mongod.ts'
import { claimOf, connectTo, settlementOf } from '../../../test/support/mongodb.ts'
import type { TransactionalStore } from '../../store.ts'
import { mongodbStore } from '../mongodb.ts'

/** A transaction that its client has lost holds its record until the server ends it; by default that is a minute. */
const LIFETIME = 'transactionLifetimeLimitSeconds=3'
const found = await findMongod(['--setParameter', 'enableTestCommands=1', '--setParameter', LIFETIME])
const clients: MongoClient[] = []

afterAll(async () => {
  for (const client of clients) await client.close()
  if (typeof found !== 'string') await found.stop()
})

const title = typeof found === 'string' ? `transaction (skipped: ${found})` : `transaction, on ${found.title}`

describe.skipIf(typeof found === 'string')(title, () => {
  it('X3: the record and the user’s own rows commit together', async () => {
    const { store, pay, payments } = await given('together')
    const end = await store.transaction(claimOf('a'), async (tx, attempt) => {
      expect(attempt).toBe(1)
      await pay(tx, 'a')
      expect(await payments(), 'nobody else sees it yet').toEqual([])
      return settlementOf('paid')
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await payments()).toEqual(['a'])
    expect(await store.read('a')).toMatchObject({ state: 'settled', outcome: 'committed', attempt: 1 })
  })

  it('X3: a throw of work is thrown on, and leaves no trace', async () => {
    const { store, pay, payments } = await given('thrown')
    const work = async (tx: ClientSession) => {
      await pay(tx, 'a')
      throw new Error('no such card')
    }
    await expect(store.transaction(claimOf('a'), work)).rejects.toThrow('no such card')
    expect([await store.read('a'), await payments()]).toEqual([undefined, []])
  })

  it('X3: undefined rolls everything back', async () => {
    const { store, pay, payments } = await given('undone')
    const end = await store.transaction(claimOf('a'), async (tx) => {
      await pay(tx, 'a')
      return undefined
    })
    expect(end).toEqual({ state: 'rolled-back' })
    expect([await store.read('a'), await payments()]).toEqual([undefined, []])
  })

  it('X3: a duplicate after the commit gets the answer, and its work does not run', async () => {
    const { store, pay, payments } = await given('after')
    const work = async (tx: ClientSession) => {
      await pay(tx, 'a')
      return settlementOf('paid')
    }
    await store.transaction(claimOf('a'), work)
    const again = await store.transaction(claimOf('a', { token: 'second' }), work)
    expect(again).toMatchObject({ state: 'settled', outcome: 'committed', answer: { status: 201 } })
    expect(await payments()).toEqual(['a'])
  })

  it('X3: of 20 at once through two stores one works, and the others wait for its answer', async () => {
    const { store, other, pay, payments } = await given('race')
    const ends = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        (i % 2 === 0 ? store : other).transaction(claimOf('a', { token: `token ${i}` }), async (tx) => {
          await pay(tx, 'a')
          return settlementOf(`by ${i}`)
        }),
      ),
    )
    expect(ends.filter(({ state }) => state === 'committed')).toHaveLength(1)
    expect(ends.filter(({ state }) => state === 'settled')).toHaveLength(19)
    expect(await payments()).toEqual(['a'])
  }, 20_000)

  it('X3: when the first one rolls back, a waiting duplicate works', async () => {
    const { store, other, pay, payments } = await given('second-chance')
    const began = Promise.withResolvers<void>()
    const end = Promise.withResolvers<undefined>()
    const first = store.transaction(claimOf('a'), async (tx) => {
      await pay(tx, 'first')
      began.resolve()
      return end.promise
    })
    await began.promise
    const second = other.transaction(claimOf('a', { token: 'second' }), async (tx) => {
      await pay(tx, 'second')
      return settlementOf()
    })
    end.resolve(undefined)
    expect([await first, await second]).toEqual([{ state: 'rolled-back' }, { state: 'committed' }])
    expect(await payments()).toEqual(['second'])
  })

  it('a duplicate that may not wait any longer is told running', async () => {
    const { store, impatient, pay } = await given('impatient')
    await store.transaction(claimOf('a'), async (tx) => {
      await pay(tx, 'a')
      const duplicate = await impatient.transaction(claimOf('a', { token: 'second' }), async () => settlementOf())
      expect(duplicate).toMatchObject({ state: 'running', fingerprint: 'print' })
      return settlementOf()
    })
  })

  it('a plain claim waits in the server for the end of the transaction, and gets its answer', async () => {
    const { store, other, client } = await given('plain')
    const began = Promise.withResolvers<void>()
    const end = Promise.withResolvers<void>()
    const first = store.transaction(claimOf('a'), async () => {
      began.resolve()
      await end.promise
      return settlementOf()
    })
    await began.promise
    const hasty = mongodbStore(client.db('oncekey').collection('plain'), { callMsMax: 200 })
    await expect(hasty.claim(claimOf('a', { token: 'hasty' }))).rejects.toMatchObject({ code: 'store-unavailable' })
    const patient = other.claim(claimOf('a', { token: 'second' }))
    end.resolve()
    expect([await first, await patient]).toMatchObject([{ state: 'committed' }, { state: 'settled' }])
  })

  it('a claim of before, by another request, is met as it is', async () => {
    const { store } = await given('met')
    await store.claim(claimOf('a', { fingerprint: 'another' }))
    const end = await store.transaction(claimOf('a', { token: 'second' }), async () => settlementOf())
    expect(end).toMatchObject({ state: 'running', fingerprint: 'another' })
  })

  it('work that took longer than the record would be kept still commits', async () => {
    const { store, client } = await given('slow')
    const end = await store.transaction(claimOf('a', { leaseMs: 1, unknownTtlMs: 0 }), async () => {
      const startedMs = await serverMs(client)
      await expect.poll(async () => (await serverMs(client)) - startedMs).toBeGreaterThan(5)
      return settlementOf()
    })
    expect(end).toEqual({ state: 'committed' })
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
  })

  it('work that ends the transaction by itself is told so', async () => {
    const { store } = await given('ended')
    const work = async (tx: ClientSession) => {
      await tx.abortTransaction()
      return settlementOf()
    }
    await expect(store.transaction(claimOf('a'), work)).rejects.toMatchObject({ code: 'config-invalid' })
    expect(await store.read('a')).toBeUndefined()
  })

  it('work that swallows a failed command does not commit without it', async () => {
    const { store, pay, payments } = await given('swallowed')
    await store.transaction(claimOf('other'), async (tx) => pay(tx, 'a').then(() => settlementOf()))
    const work = async (tx: ClientSession) => {
      await pay(tx, 'b')
      await pay(tx, 'a').catch(() => {})
      return settlementOf()
    }
    await expect(store.transaction(claimOf('a'), work)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringContaining('Everything was rolled back'),
    })
    expect([await store.read('a'), await payments()]).toEqual([undefined, ['a']])
  })

  it('without client it says what to pass', async () => {
    const { client } = await given('clientless')
    const store = mongodbStore(client.db('oncekey').collection('clientless'))
    await expect(store.transaction(claimOf('a'), async () => settlementOf())).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringContaining('{ client }'),
    })
  })

  it('a commit whose reply is lost is asked for again', async () => {
    const { store, client, pay, payments } = await given('lost-once')
    await fail(client, 'commitTransaction', 3)
    const end = await store.transaction(claimOf('a'), async (tx) => {
      await pay(tx, 'a')
      return settlementOf()
    })
    expect([end, await payments()]).toEqual([{ state: 'committed' }, ['a']])
  })

  it('a commit that is never answered throws, and all of it or nothing took place', async () => {
    const { store, client, pay, payments } = await given('lost')
    await fail(client, 'commitTransaction', 1_000)
    const work = async (tx: ClientSession) => {
      await pay(tx, 'a')
      return settlementOf()
    }
    await expect(store.transaction(claimOf('a'), work)).rejects.toMatchObject({
      code: 'store-unavailable',
      message: expect.stringContaining('Either all of it took place or nothing'),
    })
    await fail(client, 'commitTransaction', 0)
    const isRecorded = (await store.read('a')) !== undefined
    expect(await payments()).toEqual(isRecorded ? ['a'] : [])
    const end = await store.transaction(claimOf('a', { token: 'second' }), work)
    expect(end.state).toBe(isRecorded ? 'settled' : 'committed')
    expect(await payments()).toEqual(['a'])
  }, 20_000)

  it('a claim whose reply is lost, also to the driver’s own retry, is acquired when asked again', async () => {
    const { store, client } = await given('claim-lost')
    await store.read('warm')
    await fail(client, 'findAndModify', 2)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject({ code: 'store-unavailable' })
    expect(await store.claim(claimOf('a'))).toEqual({ state: 'acquired', attempt: 1 })
  })
})

interface Given {
  readonly store: TransactionalStore<ClientSession>
  readonly other: TransactionalStore<ClientSession>
  readonly impatient: TransactionalStore<ClientSession>
  readonly client: MongoClient
  pay(tx: ClientSession, name: string): Promise<unknown>
  payments(): Promise<string[]>
}

async function given(name: string): Promise<Given> {
  if (typeof found === 'string') throw new Error(found)
  const client = connectTo(found.url)
  clients.push(client)
  const open = (transactionWaitMsMax: number) =>
    mongodbStore(client.db('oncekey').collection(name), { client, transactionWaitMsMax })
  const rows = await client.db('oncekey').createCollection<{ _id: string }>(`${name}-payments`)
  const [store, other, impatient] = [open(10_000), open(10_000), open(100)]
  await Promise.all([store, other, impatient].map((each) => each.read('prepared')))
  return {
    ...{ store, other, impatient, client },
    pay: (tx, payment) => rows.insertOne({ _id: payment }, { session: tx }),
    payments: async () => (await rows.find().toArray()).map(({ _id }) => _id),
  }
}

async function serverMs(client: MongoClient): Promise<number> {
  return Number((await client.db('admin').command({ hello: 1 })).localTime)
}

/** The server closes the connection instead of carrying the command out, so many times. */
async function fail(client: MongoClient, command: string, times: number): Promise<void> {
  const mode = times === 0 ? 'off' : { times }
  const data = { failCommands: [command], closeConnection: true }
  await client.db('admin').command({ configureFailPoint: 'failCommand', mode, ...(times === 0 ? {} : { data }) })
}
