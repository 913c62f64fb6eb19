import { describe, expect, it, onTestFinished } from 'vitest'
import type { RedisClient } from '../../src/stores/redis.ts'
import { redis } from '../services/index.ts'
import { command, until } from '../services/redis-cluster.ts'
import { findRedisSentinel } from '../services/redis-sentinel.ts'
import { answered, claimOf, open, reasonOf } from '../support/redis.ts'
import { Load } from '../support/redis-load.ts'
import { bySentinel } from '../support/redis-sentinel.ts'

const missing = reasonOf(() => redis())

describe.skipIf(missing).each(Object.keys(bySentinel))(
  `failover by Sentinel: %s${missing && ` (skipped: ${missing})`}`,
  (driver) => {
    const setUp = async () => {
      const found = await findRedisSentinel()
      if (typeof found === 'string') throw new Error(found)
      onTestFinished(() => found.stop())
      const [client, end] = (await bySentinel[driver]?.(found)) ?? []
      onTestFinished(() => void end?.())
      return { ...found, store: open(client as RedisClient) }
    }

    it('the master dies under load: it goes on with the new one, without a restart', async () => {
      const { store, master, replica, isMaster } = await setUp()
      const load = new Load(store, 'key')
      await load.more(300)
      await master.kill()
      await isMaster(replica)
      await load.more(300)
      await load.end()
      expect(new Set(load.effects).size).toBe(load.effects.length)
      const waiting = await store.claim(claimOf('awaited'))
      expect(waiting).toMatchObject({ state: 'acquired' })
      const waited = store.waitFor?.('awaited', new AbortController().signal)
      expect(await store.settle('awaited', 'mine', answered)).toBe(true)
      await waited
    })

    it('an acknowledged claim that the replica had not received is gone: best effort, as the table says', async () => {
      const { store, master, replica, isMaster } = await setUp()
      expect(await store.claim(claimOf('replicated'))).toMatchObject({ state: 'acquired' })
      await until('the replica has it', async () => (await command(replica.port, 'DBSIZE')).trim() === '1')
      replica.freeze()
      await command(master.port, 'CLIENT', 'KILL', 'TYPE', 'replica')
      expect(await store.claim(claimOf('lost', { token: 'first' }))).toMatchObject({ state: 'acquired' })
      await master.kill()
      replica.thaw()
      await isMaster(replica)
      await until('the store has found the new master', async () => (await store.read('replicated')) !== undefined)
      // The first owner still runs, and here is a second one: the effect can take place twice.
      expect(await store.claim(claimOf('lost', { token: 'second' }))).toEqual({ state: 'acquired', attempt: 1 })
      // Fenced all the same: the first owner cannot finish the second one's record.
      expect(await store.settle('lost', 'first', answered)).toBe(false)
      expect(await store.settle('lost', 'second', answered)).toBe(true)
    })
  },
)
