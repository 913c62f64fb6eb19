import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { jetstream } from '@nats-io/jetstream'
import { Kvm, type KvOptions } from '@nats-io/kv'
import { connect, type NatsConnection } from '@nats-io/transport-node'
import type { Store } from '../../src/store.ts'
import { type NatsStoreOptions, natsStore } from '../../src/stores/nats.ts'
import { launch, nats, type Server, Unavailable } from '../services/index.ts'

export { HOUR_MS, ownersClaimOf as claimOf, settlementOf } from './requests.ts'

/** A server with these lines in its configuration, or the reason why there is none. */
export async function findNats(config = ''): Promise<Server | string> {
  try {
    const recipe = nats()
    return await launch({
      ...recipe,
      prepare: (folder) => writeFileSync(join(folder, 'nats.conf'), config),
      args: (folder, port) => [...recipe.args(folder, port), '-c', join(folder, 'nats.conf')],
    })
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

/** Connects, and goes on trying for as long as the test runs: servers come and go. */
export function connectTo(servers: string | readonly string[]): Promise<NatsConnection> {
  const urls = typeof servers === 'string' ? servers : [...servers]
  return connect({
    servers: urls,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 50,
    waitOnFirstConnect: true,
    pingInterval: 1_000,
    maxPingOut: 2,
  })
}

/** Waits until the servers take it: a cluster elects its leader first. */
export async function makeBucket(nc: NatsConnection, bucket: string, options: Partial<KvOptions> = {}): Promise<void> {
  const deadline = performance.now() + CLUSTER_READY_MS_MAX
  for (;;) {
    try {
      await new Kvm(jetstream(nc, { timeout: 2_000 })).create(bucket, options)
      return
    } catch (error) {
      if (performance.now() > deadline) throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}

const CLUSTER_READY_MS_MAX = 30_000

export function open(nc: NatsConnection, options: NatsStoreOptions): Store {
  return natsStore(jetstream(nc), options)
}
