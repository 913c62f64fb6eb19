import type { NatsConnection } from '@nats-io/transport-node'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'
import type { Server } from '../services/index.ts'
import { claimOf, connectTo, findNats, makeBucket, open, settlementOf } from '../support/nats.ts'
import { Workload } from '../support/workload.ts'

const found = await findNats()
const connections: NatsConnection[] = []

afterAll(async () => {
  for (const connection of connections) await connection.close()
  if (typeof found !== 'string') await found.stop()
})

async function given(bucket: string): Promise<{ server: Server; stores: Store[] }> {
  if (typeof found === 'string') throw new Error(found)
  const stores: Store[] = []
  for (let i = 0; i < 2; i++) {
    const connection = await connectTo(found.url)
    connections.push(connection)
    if (i === 0) await makeBucket(connection, bucket)
    stores.push(open(connection, { bucket, requestMsMax: 1_000 }))
  }
  return { server: found, stores }
}

const title = typeof found === 'string' ? `one server (skipped: ${found})` : `one server, ${found.title}`

describe.skipIf(typeof found === 'string')(title, () => {
  it('S9: kill -9 under load, twice: each key had one effect, and what was acknowledged is there', async () => {
    const { server, stores } = await given('killed')
    const load = new Workload(stores)
    load.start()
    onTestFinished(() => load.stop())
    for (let round = 1; round <= 2; round++) {
      await load.settled(round * 500)
      await server.kill()
      await load.refused(round * 20)
      await server.start()
    }
    await load.settled(1_500)
    await load.stop()
    expect(await load.verdict()).toEqual({ doubleEffects: [], lost: [] })
  }, 60_000)

  it('a frozen server is reported in time, and a thawed one goes on', async () => {
    const { server, stores } = await given('frozen')
    const [store] = stores
    expect(await store?.claim(claimOf('before'))).toMatchObject({ state: 'acquired' })
    server.freeze()
    const refusal = expect.objectContaining({
      code: 'store-unavailable',
      message: expect.stringContaining('no reply in time'),
    })
    await expect(store?.claim(claimOf('during'))).rejects.toEqual(refusal)
    server.thaw()
    // The request that got no reply may have been carried out since then: the same token tells.
    await expect.poll(() => store?.claim(claimOf('during')), { timeout: 10_000 }).toMatchObject({ state: 'acquired' })
    expect(await store?.claim(claimOf('before', { token: 'second' }))).toMatchObject({ state: 'running' })
  }, 30_000)

  it('X5: a waiter outlives a restart of the server, and is woken by a settle after it', async () => {
    const { server, stores } = await given('waited')
    const [store, other] = stores
    if (!store || !other?.waitFor) throw new Error('no stores')
    const { signal } = new AbortController()
    for (const id of ['probe', 'awaited']) await store.claim(claimOf(id))
    // When this one is woken, the consumer that wakes the next one is in place.
    const probe = other.waitFor('probe', signal)
    await store.settle('probe', 'owner', settlementOf())
    await probe
    let woken = false
    const wake = () => {
      woken = true
    }
    const waiting = other.waitFor('awaited', signal).then(wake, wake)
    await other.read('awaited')
    await server.kill()
    await server.start()
    const record = async () => other.read('awaited')
    await expect.poll(record, { timeout: 10_000 }).toMatchObject({ state: 'running' })
    // Woken for nothing, when it looked while the server was away, it would ask again: that is allowed too.
    const again = woken ? other.waitFor('awaited', signal) : waiting
    const settle = async () => store.settle('awaited', 'owner', settlementOf())
    await expect.poll(settle, { timeout: 10_000 }).toBe(true)
    await again
    expect(await other.read('awaited')).toMatchObject({ state: 'settled' })
  }, 30_000)
})
