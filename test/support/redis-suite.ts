import { describe, it } from 'vitest'
import type { RedisClient } from '../../src/stores/redis.ts'
import { redisStore } from '../../src/stores/redis.ts'
import type { StoreHarness } from '../../src/testing/store-suite.ts'
import { storeSuite } from '../../src/testing/store-suite.ts'
import { SERVER_TICKS } from './server-ticks.ts'

/** A client and its end. */
type Opened = readonly [client: RedisClient, end: () => unknown]

let stores = 0

/** The whole store suite, every case under a prefix of its own. `found` is the server, or why there is none. */
export function suiteOn<Found extends object>(
  kind: string,
  found: Found | string,
  connect: (found: Found) => Promise<Opened>,
): void {
  if (typeof found === 'string') {
    it.skip(`the store suite: ${kind} (skipped: ${found})`)
    return
  }
  const factory = async (): Promise<StoreHarness> => {
    const prefix = `suite-${process.pid}-${stores++}:`
    const ends: Array<() => unknown> = []
    const another = async () => {
      const [client, end] = await connect(found)
      const store = redisStore(client, { prefix })
      ends.push(async () => {
        await store.close()
        await end()
      })
      return store
    }
    return {
      store: await another(),
      another,
      elapse: (ms) => new Promise((resolve) => setTimeout(resolve, ms)),
      dispose: async () => void (await Promise.all(ends.map((end) => end()))),
    }
  }
  describe(`the store suite: ${kind}`, () => {
    // Together, for most of the time they wait for the server's clock.
    storeSuite({ describe, it: it.concurrent, skip: it.skip }, factory, {
      ...SERVER_TICKS,
      without: { 'exact-clock': 'the clock is the server’s own', sweep: 'Redis frees by itself what is gone' },
    })
  })
}
