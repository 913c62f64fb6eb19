import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { ClientSession, MongoClient, MongoClientOptions } from 'mongodb'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { TransactionalStore } from '../../src/store.ts'
import { type MongodbStoreOptions, mongodbStore } from '../../src/stores/mongodb.ts'
import { freePort, type Server } from '../services/index.ts'
import { findMongod, findStandalone } from '../services/mongod.ts'
import { startRacer } from '../support/children.ts'
import { claimOf, connectTo, settlementOf } from '../support/mongodb.ts'
import { Workload } from '../support/workload.ts'

const PROCESSES = 50
/** The indexes may take longer to make than a call may take. */
const READY = { timeout: 10_000 }

const found = await findMongod()
const clients: MongoClient[] = []

afterAll(async () => {
  for (const client of clients) await client.close()
  if (typeof found !== 'string') await found.stop()
})

const title = typeof found === 'string' ? `MongoDB (skipped: ${found})` : `${found.title}, a replica set of one`

describe.skipIf(typeof found === 'string')(title, () => {
  it(`X1: ${PROCESSES} processes race for each key: one effect`, async () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-race-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const effects = join(folder, 'effects')
    writeFileSync(effects, '')
    const racers = Array.from({ length: PROCESSES }, () =>
      startRacer('claim-child.ts', 'mongodb', server().url, effects, 'race'),
    )
    await Promise.all(racers.map(({ said }) => said('ready')))
    const keys = ['first', 'second', 'third']
    for (const key of keys) {
      for (const { tell } of racers) tell(key)
      const seen = await Promise.all(racers.map(({ said }) => said(key)))
      expect(seen.filter((line) => line === `${key} acquired`)).toHaveLength(1)
    }
    expect(readFileSync(effects, 'utf8')).toBe(`${keys.join('\n')}\n`)
  }, 60_000)

  it('S9: kill -9 under load, twice: each key had one effect, and what was acknowledged is there', async () => {
    const load = new Workload([given('killed').store, given('killed').store])
    load.start()
    onTestFinished(() => load.stop())
    for (let round = 1; round <= 2; round++) {
      await load.settled(round * 300)
      await server().kill()
      await load.refused(round * 20)
      await server().start()
    }
    await load.settled(900)
    await load.stop()
    expect(await load.verdict()).toEqual({ doubleEffects: [], lost: [] })
  }, 60_000)

  it('X3: kill -9 in the middle of a transaction leaves nothing, neither of the record nor of the effect', async () => {
    const { store, client } = given('cut')
    const rows = await client.db('oncekey').createCollection('cut-effects')
    const ended = store.transaction(claimOf('a'), async (session) => {
      await rows.insertOne({}, { session })
      await server().kill()
      await server().start()
      return settlementOf()
    })
    await expect(ended).rejects.toMatchObject({ code: 'store-unavailable' })
    await expect.poll(() => rows.countDocuments(), { timeout: 10_000 }).toBe(0)
    expect(await store.read('a')).toBeUndefined()
    expect(await store.transaction(claimOf('a'), async () => settlementOf())).toEqual({ state: 'committed' })
  }, 30_000)

  it('a frozen server is reported in time, and a thawed one goes on', async () => {
    const { store } = given('frozen', { callMsMax: 500 })
    await expect.poll(async () => store.claim(claimOf('before')), READY).toMatchObject({ state: 'acquired' })
    server().freeze()
    const refusal = { code: 'store-unavailable', message: expect.stringContaining('no reply in time') }
    await expect(store.claim(claimOf('during'))).rejects.toMatchObject(refusal)
    server().thaw()
    // The command that got no reply may have been carried out since then: the same token tells.
    await expect
      .poll(async () => store.claim(claimOf('during')), { timeout: 10_000 })
      .toEqual({ state: 'acquired', attempt: 1 })
    expect(await store.claim(claimOf('before', { token: 'second' }))).toMatchObject({ state: 'running' })
  }, 30_000)

  it('a server that takes no writes for a while is reported in time, and goes on afterwards', async () => {
    const { store, client } = given('locked', { callMsMax: 500 })
    await expect.poll(async () => store.claim(claimOf('before')), READY).toMatchObject({ state: 'acquired' })
    const admin = client.db('admin')
    await admin.command({ fsync: 1, lock: true })
    const refusal = { code: 'store-unavailable', message: expect.stringContaining('asking again with the same token') }
    await expect(store.claim(claimOf('during'))).rejects.toMatchObject(refusal)
    await admin.command({ fsyncUnlock: 1 })
    await expect
      .poll(async () => store.claim(claimOf('during')), { timeout: 10_000 })
      .toEqual({ state: 'acquired', attempt: 1 })
  }, 30_000)

  it('X5: a waiter outlives a restart of the server', async () => {
    const { store } = given('waited')
    const other = given('waited').store
    const { signal } = new AbortController()
    await store.claim(claimOf('a'))
    let waiting = other.waitFor?.('a', signal)
    await server().kill()
    await server().start()
    await expect.poll(async () => (await other.read('a'))?.state, { timeout: 10_000 }).toBe('running')
    // Woken for nothing, when it looked while the server was away, it would ask again: that is allowed too.
    waiting = Promise.all([waiting, other.waitFor?.('a', signal)]).then(() => {})
    await expect.poll(async () => store.settle('a', 'owner', settlementOf()), { timeout: 10_000 }).toBe(true)
    await waiting
    expect(await other.read('a')).toMatchObject({ state: 'settled' })
  }, 30_000)

  it('a server that is not there is reported, and used as soon as it is', async () => {
    const port = await freePort()
    const store = open(connect(`mongodb://127.0.0.1:${port}/`, { serverSelectionTimeoutMS: 300 }), 'nowhere')
    const refusal = { code: 'store-unavailable', message: expect.stringContaining('cannot be reached') }
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)

    const { store: late } = given('late', {}, { serverSelectionTimeoutMS: 300 })
    await server().kill()
    await expect(late.claim(claimOf('a'))).rejects.toMatchObject(refusal)
    await server().start()
    await expect.poll(async () => late.claim(claimOf('a')), { timeout: 10_000 }).toMatchObject({ state: 'acquired' })
  }, 30_000)

  it('a client that its owner has closed is told as such, and stays closed', async () => {
    const { store, client } = given('closed')
    await client.close()
    const refusal = { code: 'store-unavailable', message: expect.stringContaining('client is closed') }
    for (let tries = 0; tries < 2; tries++) await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal)
  })

  it('a wrong password is told as such', async () => {
    const guarded = await findStandalone(['--auth'])
    if (typeof guarded === 'string') throw new Error(guarded)
    onTestFinished(() => guarded.stop())
    const wrong = connect(guarded.url.replace('//', '//somebody:wrong@'))
    const refusal = { code: 'store-unavailable', message: expect.stringContaining('refused the login') }
    await expect(open(wrong, 'guarded').claim(claimOf('a'))).rejects.toMatchObject(refusal)
    const nobody = { code: 'store-unavailable', message: expect.stringContaining('readWrite') }
    await expect(open(connect(guarded.url), 'guarded').claim(claimOf('a'))).rejects.toMatchObject(nobody)
  }, 20_000)
})

function server(): Server {
  if (typeof found === 'string') throw new Error(found)
  return found
}

function connect(url: string, options: MongoClientOptions = {}): MongoClient {
  const client = connectTo(url, options)
  clients.push(client)
  return client
}

function open(client: MongoClient, name: string, options: MongodbStoreOptions<ClientSession> = {}) {
  return mongodbStore(client.db('oncekey').collection(name), { client, ...options })
}

function given(
  name: string,
  options: MongodbStoreOptions<ClientSession> = {},
  clientOptions: MongoClientOptions = {},
): { store: TransactionalStore<ClientSession>; client: MongoClient } {
  const client = connect(server().url, clientOptions)
  return { store: open(client, name, options), client }
}
