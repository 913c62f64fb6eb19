import { jetstream, jetstreamManager } from '@nats-io/jetstream'
import { Kvm, type KvOptions } from '@nats-io/kv'
import { connect, type NatsConnection } from '@nats-io/transport-node'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { claimOf, connectTo, findNats, HOUR_MS, makeBucket, open, settlementOf } from '../../../test/support/nats.ts'
import type { Store } from '../../store.ts'
import { Bucket } from './bucket.ts'
import { Sweeper } from './operators.ts'
import { encode, tombstoneOf } from './record.ts'
import { ServerClock } from './server-clock.ts'

const ACCOUNTS = `
  jetstream: enabled
  accounts {
    FULL { jetstream: enabled, users: [
      { user: owner, password: right }
      { user: reader, password: right, permissions: { publish: { deny: ["$KV.>"] } } }
    ] }
    NONE { users: [ { user: poor, password: right } ] }
  }
  no_auth_user: owner`

const found = await findNats(ACCOUNTS)
const nc = typeof found === 'string' ? undefined : await connectTo(found.url)
let buckets = 0

afterAll(async () => {
  await nc?.close()
  if (typeof found !== 'string') await found.stop()
})

/** A connection, and the name of a fresh bucket with a store on it. */
async function given(options: Partial<KvOptions> = {}): Promise<{ nc: NatsConnection; bucket: string; store: Store }> {
  if (!nc) throw new Error('not connected')
  const bucket = `bucket-${buckets++}`
  await makeBucket(nc, bucket, options)
  const store = open(nc, { bucket })
  onTestFinished(() => store.close())
  return { nc, bucket, store }
}

const refusal = (code: string, ...words: string[]) =>
  expect.objectContaining({
    code,
    message: expect.stringMatching(new RegExp(words.map((word) => `(?=.*${word})`).join(''), 's')),
  })

describe.skipIf(typeof found === 'string')(`limits and settings of a bucket, on ${describeFound()}`, () => {
  it('X4: an answer over the default max_payload of 1 MB is refused by name, and a smaller one is kept after it', async () => {
    const { store } = await given()
    await store.claim(claimOf('a'))
    const large = settlementOf('x'.repeat(1_100_000))
    await expect(store.settle('a', 'owner', large)).rejects.toEqual(
      refusal('body-too-large', 'max_payload', '1100\\d{3} bytes', 'answerBytesMax'),
    )
    expect(await store.read('a')).toMatchObject({ state: 'running' })
    expect(await store.settle('a', 'owner', settlementOf('x'.repeat(1_000_000)))).toBe(true)
  })

  it("an answer over the bucket's own maxValueSize is refused before it is sent", async () => {
    const { store } = await given({ maxValueSize: 10_000 })
    await store.claim(claimOf('a'))
    await expect(store.settle('a', 'owner', settlementOf('x'.repeat(10_000)))).rejects.toEqual(
      refusal('body-too-large', 'maxValueSize of 10000'),
    )
    expect(await store.read('a')).toMatchObject({ state: 'running' })
  })

  it('a bucket that is not there is named; once it is made, the same store works', async () => {
    if (!nc) throw new Error('not connected')
    const store = open(nc, { bucket: 'later' })
    await expect(store.claim(claimOf('a'))).rejects.toEqual(refusal('config-invalid', 'no NATS bucket later'))
    await expect(store.read('a')).rejects.toEqual(refusal('config-invalid', 'no NATS bucket later'))
    await makeBucket(nc, 'later')
    expect(await store.claim(claimOf('a'))).toEqual({ state: 'acquired', attempt: 1 })
  })

  it('J2: a full bucket refuses, and forgets nothing', async () => {
    const { store } = await given({ max_bytes: 200_000 })
    await store.claim(claimOf('running'))
    const refused = await fill(store)
    expect(refused).toEqual(refusal('store-full', 'max_bytes'))
    expect(await store.read('running')).toMatchObject({ state: 'running' })
    expect(await store.read('filler 0')).toMatchObject({ state: 'settled' })
    // A tombstone is smaller than what it replaces: an operator can make room.
    expect(await store.forget('filler 0')).toBe(true)
    expect(await store.settle('running', 'owner', settlementOf())).toBe(true)
  })

  it('J2: a bucket that drops its oldest values is refused', async () => {
    const { nc, bucket, store } = await given()
    const { streams } = await jetstreamManager(nc)
    await streams.delete(`KV_${bucket}`)
    const limits = { max_bytes: 1_000_000, discard: 'old' as const, max_msgs_per_subject: 1 }
    await streams.add({ name: `KV_${bucket}`, subjects: [`$KV.${bucket}.>`], ...limits })
    await expect(store.claim(claimOf('a'))).rejects.toEqual(refusal('config-invalid', 'drops its oldest', 'discard'))
  })

  it("a record that must outlive the bucket's ttl is refused, at the claim and at the settle", async () => {
    const { store } = await given({ ttl: HOUR_MS })
    await expect(store.claim(claimOf('a'))).rejects.toEqual(refusal('config-invalid', 'ttl', '3600000 ms'))
    await store.claim(claimOf('a', { unknownTtlMs: 0 }))
    await expect(store.settle('a', 'owner', settlementOf('', { expiredTtlMs: 1 }))).rejects.toEqual(
      refusal('config-invalid', 'ttl'),
    )
    expect(await store.settle('a', 'owner', settlementOf())).toBe(true)
  })

  it('a value that is not ours, or that names another record, is left alone and reported', async () => {
    const { nc, bucket, store } = await given()
    const kv = await new Kvm(nc).open(bucket)
    const [mine, other] = ['a'.repeat(64), 'b'.repeat(64)]
    await kv.put(mine, 'something else')
    await expect(store.claim(claimOf(mine))).rejects.toEqual(refusal('store-incompatible', mine))
    await kv.put(mine, encode(tombstoneOf(other)))
    await expect(store.claim(claimOf(mine))).rejects.toEqual(refusal('store-incompatible', 'another record'))
  })
})

describe.skipIf(typeof found === 'string')(`who may use it, on ${describeFound()}`, () => {
  it('a user without the right to write is told so, and nothing is claimed', async () => {
    const { bucket, store } = await given()
    const reader = await connectAs('reader')
    await expect(open(reader, { bucket }).claim(claimOf('a'))).rejects.toEqual(
      refusal('store-unavailable', 'refused this client|permission', 'publish'),
    )
    expect(await store.read('a')).toBeUndefined()
  })

  it('an account without JetStream is told so', async () => {
    const poor = await connectAs('poor')
    await expect(open(poor, { bucket: 'any', requestMsMax: 100 }).claim(claimOf('a'))).rejects.toEqual(
      refusal('store-unavailable', 'JetStream'),
    )
  })

  it('a connection that was closed is reported, not waited for', async () => {
    const { bucket } = await given()
    const closed = await connectAs('owner')
    await closed.close()
    await expect(open(closed, { bucket }).claim(claimOf('a'))).rejects.toEqual(refusal('store-unavailable', 'closed'))
  })
})

describe.skipIf(typeof found === 'string')(`time and space, on ${describeFound()}`, () => {
  it('the measured time is between the times of what the server stored before and after it, so it is never early', async () => {
    const { nc, bucket } = await given()
    const rows = new Bucket(jetstream(nc), bucket, HOUR_MS)
    const clock = new ServerClock(rows, async () => 0)
    const stored = async () => {
      await rows.touch('probe')
      return (await rows.lastOfKey('probe'))?.time.getTime() ?? Number.NaN
    }
    for (let round = 0; round < 100; round++) {
      const before = await stored()
      const [fresh, again] = await Promise.all([clock.fresh(), clock.fresh()])
      const now = await clock.now()
      const after = await stored()
      expect(fresh).toBeGreaterThanOrEqual(before)
      for (const seen of [fresh, again, now]) expect(seen).toBeLessThanOrEqual(after)
    }
  })

  it('X1: as long as the clocks of the servers may be apart, a lapsed lease is not taken over', async () => {
    const { nc, bucket, store } = await given()
    const careful = open(nc, { bucket, skewMsMax: HOUR_MS })
    await store.claim(claimOf('a', { leaseMs: 1 }))
    await expect.poll(async () => store.read('a'), { interval: 1 }).toMatchObject({ state: 'unknown' })
    const takeover = claimOf('a', { token: 'taker', takeover: true })
    expect(await careful.claim(takeover)).toMatchObject({ state: 'running' })
    expect(await store.claim(takeover)).toEqual({ state: 'acquired', attempt: 2 })
  })

  it('a key that was released long ago is purged and made anew: of 60 claims one is acquired', async () => {
    // With so short a ttl everything that is gone counts as old.
    const { nc, bucket, store } = await given({ ttl: 30_000 })
    const other = open(nc, { bucket })
    const short = { leaseMs: 10_000, unknownTtlMs: 10_000 }
    for (let round = 0; round < 20; round++) {
      const claims = await Promise.all(
        Array.from({ length: 60 }, (_, i) => {
          const claim = claimOf('key', { ...short, token: `round ${round} claim ${i}` })
          return (i % 2 ? store : other).claim(claim)
        }),
      )
      const winner = claims.findIndex(({ state }) => state === 'acquired')
      expect(claims.filter(({ state }) => state === 'acquired')).toHaveLength(1)
      expect(await store.release('key', `round ${round} claim ${winner}`)).toBe(true)
    }
  })

  it('sweep purges what has been gone for long, and only up to the revision that it saw', async () => {
    const { nc, bucket, store } = await given()
    const rows = new Bucket(jetstream(nc), bucket, HOUR_MS)
    const sweeper = new Sweeper(rows, 0)
    for (const id of ['released', 'forgotten', 'kept']) await store.claim(claimOf(id))
    await store.release('released', 'owner')
    await store.forget('forgotten')
    const seen = await rows.read('released')
    await store.claim(claimOf('released', { token: 'second' }))
    await rows.purge('released', seen?.revision ?? 0)
    expect(await store.read('released')).toMatchObject({ state: 'running' })
    expect(await rows.ids()).toEqual(['forgotten', 'kept', 'released'])
    expect(await sweeper.sweep(10, await new ServerClock(rows, async () => 0).fresh())).toBe(0)
    expect(await rows.ids()).toEqual(['kept', 'released'])
    expect(await store.settle('released', 'second', settlementOf())).toBe(true)
  })
})

function describeFound(): string {
  return typeof found === 'string' ? `nothing (skipped: ${found})` : found.title
}

async function connectAs(user: string): Promise<NatsConnection> {
  if (typeof found === 'string') throw new Error(found)
  const connection = await connect({ servers: found.url, user, pass: 'right' })
  onTestFinished(() => connection.close())
  return connection
}

async function fill(store: Store): Promise<unknown> {
  const FILLERS_MAX = 100
  for (let i = 0; i < FILLERS_MAX; i++) {
    try {
      await store.claim(claimOf(`filler ${i}`))
      await store.settle(`filler ${i}`, 'owner', settlementOf('x'.repeat(20_000)))
    } catch (error) {
      return error
    }
  }
  return undefined
}
