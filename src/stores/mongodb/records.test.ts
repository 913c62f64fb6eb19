import type { ClientSession, Collection, CommandStartedEvent, MongoClient, ObjectId } from 'mongodb'
import { afterAll, afterEach, describe, expect, expectTypeOf, it, vi } from 'vitest'
import { findOwn } from '../../../test/services/index.ts'
import { findMongod } from '../../../test/services/mongod.ts'
import { claimOf, connectTo, HOUR_MS, settlementOf } from '../../../test/support/mongodb.ts'
import type { Store, TransactionalStore } from '../../store.ts'
import { type MongodbStoreOptions, mongodbIndexes, mongodbStore } from '../mongodb.ts'
import { DOCUMENT_BYTES_MAX } from './document.ts'

const found = await findMongod(['--setParameter', 'ttlMonitorEnabled=false', '--setParameter', 'ttlMonitorSleepSecs=1'])
const clients: MongoClient[] = []

afterEach(() => void vi.useRealTimers())
afterAll(async () => {
  for (const client of clients) await client.close()
  if (typeof found !== 'string') await found.stop()
})

const title = typeof found === 'string' ? `MongoDB (skipped: ${found})` : `on ${found.title}`

describe.skipIf(typeof found === 'string')(title, () => {
  it('A6: each verb is one command, the claim a findAndModify', async () => {
    const { store, commands } = given('commands')
    await store.read('prepared')
    commands.length = 0
    await store.claim(claimOf('a'))
    await store.claim(claimOf('a', { token: 'second' }))
    await store.renew('a', 'owner', HOUR_MS)
    await store.settle('a', 'owner', settlementOf())
    await store.claim(claimOf('a', { token: 'second' }))
    await store.forget('a')
    await store.claim(claimOf('a'))
    await store.release('a', 'owner')
    const claim = 'findAndModify'
    expect(commands).toEqual([claim, claim, 'update', 'update', claim, 'delete', claim, 'delete'])
  })

  it('A6: majority and journal unless told otherwise', async () => {
    const { store, concerns } = given('concerns')
    await store.claim(claimOf('a'))
    await store.settle('a', 'owner', settlementOf())
    await store.forget('a')
    expect(new Set(concerns.slice(-3))).toEqual(new Set([JSON.stringify({ w: 'majority', j: true })]))
  })

  it('D14: a record is a document that people can read', async () => {
    const { store, collection } = given('readable')
    await store.claim(claimOf('a', { labels: { route: '/orders', key: 'abc' } }))
    await store.settle('a', 'owner', settlementOf('done', { expiredTtlMs: HOUR_MS }))
    const document = await collection.findOne({ _id: 'a' }, { promoteBuffers: true })
    const date = expect.any(Date)
    expect(document).toEqual({
      ...{ _id: 'a', token: 'owner', fingerprint: 'print', attempt: 1, labels: { route: '/orders', key: 'abc' } },
      ...{ createdAt: date, leaseUntil: date, expiresAt: date, goneAt: date, stripAt: date },
      ...{ outcome: 'committed', status: 201, headers: [['content-type', 'text/plain']], body: Buffer.from('done') },
    })
    expect(await collection.countDocuments({ 'labels.route': '/orders' })).toBe(1)
  })

  it('A5 D5 D14: labels and fingerprint are fields of the document under names of its own, unique together', async () => {
    const fields = { key: 'key', userId: 'principal', bodyHash: 'fingerprint' }
    const { store, collection } = given('fields', { fields, unique: ['key', 'userId'] })
    const labels = { key: '$abc', principal: 'anna' }
    await store.claim(claimOf('a', { labels }))
    const document = await collection.findOne({ _id: 'a' })
    expect(document).toMatchObject({ key: '$abc', userId: 'anna', bodyHash: 'print' })
    const indexes = await collection.indexes()
    expect(indexes).toContainEqual(expect.objectContaining({ key: { key: 1, userId: 1 }, unique: true }))
    expect(indexes).toContainEqual(expect.objectContaining({ key: { goneAt: 1 }, expireAfterSeconds: 0 }))
    const copy = { ...document, _id: 'copy' }
    await expect(collection.insertOne(copy as never)).rejects.toMatchObject({ code: 11_000 })
    await expect(store.claim(claimOf('b'))).rejects.toMatchObject({
      code: 'config-invalid',
      message: expect.stringContaining('"key"'),
    })
    expect(await store.read('b')).toBeUndefined()
  })

  it('fields that cannot be are refused by name', () => {
    const make = (options: MongodbStoreOptions) => () => given('refused', options)
    expect(make({ fields: { token: 'key' } })).toThrow('"token"')
    expect(make({ fields: { 'a.b': 'key' } })).toThrow('"a.b"')
    expect(make({ fields: { key: 'key' }, unique: ['route'] })).toThrow('"route"')
  })

  it('nothing that a caller sends is taken for an expression or a path', async () => {
    const { store } = given('literal')
    const odd = ['$token', '$$NOW', '$$ROOT', 'a.b', '$', '%2e', '', '__proto__', 'a\0b', '{"$ne":1}']
    for (const text of odd) {
      const labels = Object.fromEntries([[text, text]])
      const headers = [[text, text]] as const
      const answer = { status: 200, headers, body: new TextEncoder().encode(text) }
      const request = claimOf(`id ${text}`, { token: text, fingerprint: text, labels })
      expect(await store.claim(request), text).toEqual({ state: 'acquired', attempt: 1 })
      expect(await store.settle(request.id, text, { ...settlementOf(), answer }), text).toBe(true)
      const record = await store.read(request.id)
      expect(record, text).toMatchObject({ state: 'settled', fingerprint: text, answer: { headers } })
      expect(Object.entries(record?.labels ?? {}), text).toEqual([[text, text]])
    }
  })

  it('D11: the TTL index is there, and the server frees by it', async () => {
    const { store, collection, client } = given('ttl')
    await store.claim(claimOf('gone', { leaseMs: 1, unknownTtlMs: 0 }))
    await store.claim(claimOf('kept'))
    const indexes = await collection.indexes()
    expect(indexes).toContainEqual(expect.objectContaining({ key: { goneAt: 1 }, expireAfterSeconds: 0 }))
    expect(indexes.map(({ name }) => name)).toEqual(['_id_', ...mongodbIndexes.map(({ options }) => options.name)])
    await client.db('admin').command({ setParameter: 1, ttlMonitorEnabled: true })
    await expect.poll(() => collection.countDocuments({ _id: 'gone' }), { timeout: 10_000 }).toBe(0)
    await client.db('admin').command({ setParameter: 1, ttlMonitorEnabled: false })
    expect(await store.read('kept')).toMatchObject({ state: 'running' })
  }, 20_000)

  it('D11: a record that is gone and that nothing has freed is removed on sight', async () => {
    const { store, collection } = given('sight')
    await store.claim(claimOf('a'))
    await collection.updateOne({ _id: 'a' }, [{ $set: { goneAt: '$$NOW' } }])
    expect(await collection.countDocuments({ _id: 'a' })).toBe(1)
    expect(await store.read('a')).toBeUndefined()
    expect(await collection.countDocuments({ _id: 'a' })).toBe(0)
  })

  it('time is the server’s, whatever the application’s clock shows', async () => {
    const { store, client } = given('clock')
    await store.read('prepared')
    vi.useFakeTimers({ toFake: ['Date'], now: new Date('2001-01-01') })
    await store.claim(claimOf('a', { leaseMs: 1_000 * HOUR_MS }))
    vi.setSystemTime(new Date('2100-01-01'))
    const record = await store.read('a')
    const { localTime } = await client.db('admin').command({ hello: 1 })
    expect(record).toMatchObject({ state: 'running' })
    expect(Math.abs((record?.createdAt ?? 0) - Number(localTime))).toBeLessThan(HOUR_MS)
  })

  it('a sweep frees the body of an expired answer, and the record stays expired', async () => {
    const { store, collection } = given('strip')
    await store.claim(claimOf('a'))
    await store.settle('a', 'owner', settlementOf('done', { ttlMs: 0, expiredTtlMs: HOUR_MS }))
    expect(await store.sweep()).toBe(0)
    expect(await collection.findOne({ _id: 'a' })).not.toHaveProperty('body')
    // As a new primary with a clock that is behind would see it.
    await collection.updateOne({ _id: 'a' }, { $set: { expiresAt: new Date('2999-01-01') } })
    expect(await store.claim(claimOf('a', { token: 'second' }))).toMatchObject({ state: 'expired' })
  })

  it('a lifetime of a million years is kept for as long as dates go', async () => {
    const { store } = given('eternal')
    const eternal = Number.MAX_SAFE_INTEGER
    await store.claim(claimOf('a', { leaseMs: eternal, unknownTtlMs: eternal }))
    await store.settle('a', 'owner', settlementOf('done', { ttlMs: eternal, expiredTtlMs: eternal }))
    expect(await store.read('a')).toMatchObject({ state: 'settled', goneAt: expect.any(Number) })
  })

  it('an answer that fills a document fits; one that is larger is refused with the limit, and stays unanswered', async () => {
    const { store } = given('large')
    const reserved = 64 * 1024
    const settle = (id: string, bytes: number) => {
      const answer = { status: 200, headers: [], body: new Uint8Array(bytes).fill(7) }
      return store.settle(id, 'owner', { ...settlementOf(), answer })
    }
    for (const id of ['fits', 'larger']) await store.claim(claimOf(id))
    expect(await settle('fits', DOCUMENT_BYTES_MAX - reserved)).toBe(true)
    const again = await store.claim(claimOf('fits', { token: 'second' }))
    expect(again.state === 'settled' && again.answer.body?.length).toBe(DOCUMENT_BYTES_MAX - reserved)
    const refusal = { code: 'body-too-large', message: expect.stringContaining('16777216') }
    await expect(settle('larger', DOCUMENT_BYTES_MAX - reserved + 1)).rejects.toMatchObject(refusal)
    // Labels that leave no room are the server's to find.
    await store.claim(claimOf('labelled', { labels: { note: 'x'.repeat(2 * reserved) } }))
    await expect(settle('labelled', DOCUMENT_BYTES_MAX - reserved)).rejects.toMatchObject(refusal)
    for (const id of ['larger', 'labelled']) expect(await store.read(id)).toMatchObject({ state: 'running' })
    expect(await settle('larger', 10)).toBe(true)
  }, 20_000)

  it('50 stores that start at once make one collection', async () => {
    const { collection } = given('started')
    const stores = Array.from({ length: 50 }, () => mongodbStore(collection))
    const claims = await Promise.all(stores.map(async (store, i) => store.claim(claimOf('a', { token: `t${i}` }))))
    expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
    expect(await collection.indexes()).toHaveLength(3)
  }, 20_000)
})

describe.skipIf(typeof found === 'string')(`what does not fit, ${title}`, () => {
  it.each([
    ['w of more members than there are', { w: 5 }, 'fewer members'],
    ['a mode that nobody defined', { w: 'nowhere' }, 'mode'],
  ])('write concern: %s is refused before anything is claimed', async (_what, writeConcern, text) => {
    const { store, collection } = given(`concern-${writeConcern.w}`, { writeConcern })
    const refusal = { code: 'config-invalid', message: expect.stringContaining(text) }
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
    expect(await collection.countDocuments({ _id: 'a' })).toBe(0)
  })

  it('write concern: w 0 and bounds that are no bounds are refused at once', () => {
    for (const options of [{ writeConcern: { w: 0 } }, { callMsMax: 0 }, { transactionWaitMsMax: Number.NaN }]) {
      expect(() => given('refused', options)).toThrow(expect.objectContaining({ code: 'config-invalid' }))
    }
  })

  it('an index of somebody else where the TTL index must be', async () => {
    const { store, collection } = given('foreign-ttl')
    await collection.createIndex({ goneAt: 1 }, { name: 'mine' })
    const refusal = { code: 'store-incompatible', message: expect.stringContaining('mine') }
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
    await collection.dropIndex('mine')
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a unique index of somebody else', async () => {
    const { store, collection } = given('foreign-unique')
    await collection.createIndex({ email: 1 }, { name: 'mine', unique: true })
    await collection.insertOne({ _id: 'their own' })
    const refusal = { code: 'store-incompatible', message: expect.stringContaining('mine') }
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
  })

  it('a collection that a newer oncekey has written', async () => {
    const { store, collection } = given('newer')
    await collection.insertOne({ _id: 'oncekey:schema', schema: 2 })
    const refusal = { code: 'store-incompatible', message: expect.stringContaining('schema 2') }
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
  })

  it('migrate false makes no index', async () => {
    const { store, collection } = given('unmigrated', { migrate: false })
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await collection.indexes()).toHaveLength(1)
  })
})

describe('a server that only speaks the protocol', async () => {
  const ferret = await findOwn('ferretdb')
  const isMissing = typeof ferret === 'string'
  afterAll(async () => void (typeof ferret !== 'string' && (await ferret.stop())))

  it.skipIf(isMissing)(
    `FerretDB 1 lets two owners win one record, so it is refused in words${isMissing ? ` (skipped: ${ferret})` : ''}`,
    async () => {
      if (typeof ferret === 'string') throw new Error(ferret)
      const client = connectTo(ferret.url)
      clients.push(client)
      const store = mongodbStore(client.db('oncekey').collection('refused'))
      const refusal = { code: 'store-incompatible', message: expect.stringContaining('Use MongoDB 5') }
      await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
      expect(await client.db('oncekey').collection('refused').countDocuments()).toBe(0)
    },
  )
})

it('the driver’s own classes fit, whatever the documents are', () => {
  type Mine = Collection<{ _id: ObjectId; name: string }>
  const make = (collection: Mine, client: MongoClient) => mongodbStore(collection, { client })
  expectTypeOf(make).returns.toEqualTypeOf<TransactionalStore<ClientSession>>()
})

interface Given {
  readonly store: Store
  readonly client: MongoClient
  readonly collection: Collection<{ _id: string; schema?: number }>
  /** Names and write concerns of the commands that were sent. */
  readonly commands: string[]
  readonly concerns: string[]
}

function given(name: string, options: MongodbStoreOptions = {}): Given {
  if (typeof found === 'string') throw new Error(found)
  const client = connectTo(found.url, { monitorCommands: true })
  clients.push(client)
  const commands: string[] = []
  const concerns: string[] = []
  client.on('commandStarted', ({ commandName, command }: CommandStartedEvent) => {
    commands.push(commandName)
    concerns.push(JSON.stringify(command.writeConcern))
  })
  const collection = client.db('oncekey').collection<{ _id: string; schema?: number }>(name)
  return { store: mongodbStore(collection, options), client, collection, commands, concerns }
}
