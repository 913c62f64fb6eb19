import { jetstreamManager } from '@nats-io/jetstream'
import type { NatsConnection } from '@nats-io/transport-node'
import { afterAll, describe, it } from 'vitest'
import { connectTo, findNats, makeBucket, open } from '../../test/support/nats.ts'
import { SERVER_TICKS } from '../../test/support/server-ticks.ts'
import type { Store } from '../store.ts'
import { storeSuite } from '../testing/store-suite.ts'

/** The store's clock is behind the server's by the duration of a request, never before it. */
const CLOCK_BEHIND_MS = 20

const found = await findNats('max_payload: 8MB')
const connections: NatsConnection[] = []

afterAll(async () => {
  for (const connection of connections) await connection.close()
  if (typeof found !== 'string') await found.stop()
})

if (typeof found === 'string') {
  describe.skip(`the store suite (skipped: ${found})`, () => {})
} else {
  for (let i = 0; i < 2; i++) connections.push(await connectTo(found.url))
  describe(`the store suite, on two connections to ${found.title}`, () => {
    let buckets = 0
    const options = { ...SERVER_TICKS, without: { 'exact-clock': 'the clock is a real server’s' } }
    storeSuite(
      { describe, it, skip: it.skip },
      async () => {
        const bucket = `suite-${buckets++}`
        const [first, second] = connections
        if (!first || !second) throw new Error('not connected')
        await makeBucket(first, bucket)
        const handles: Store[] = []
        const handle = (connection: NatsConnection): Store => {
          const store = open(connection, { bucket })
          handles.push(store)
          return store
        }
        return {
          store: handle(first),
          another: async () => handle(second),
          elapse: (ms) => new Promise((resolve) => setTimeout(resolve, ms + CLOCK_BEHIND_MS)),
          dispose: async () => {
            await Promise.all(handles.map((store) => store.close()))
            await (await jetstreamManager(first)).streams.delete(`KV_${bucket}`)
          },
        }
      },
      options,
    )
  })
}
