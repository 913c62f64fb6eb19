import { Cluster } from 'ioredis'
import { createCluster } from 'redis'
import { afterAll } from 'vitest'
import { findRedisCluster } from '../../../test/services/redis-cluster.ts'
import { suiteOn } from '../../../test/support/redis-suite.ts'

const cluster = await findRedisCluster()

afterAll(async () => {
  if (typeof cluster !== 'string') await cluster.stop()
})

suiteOn('redis, a cluster of six', cluster, async ({ nodes }) => {
  const client = createCluster({ rootNodes: nodes.map((socket) => ({ socket })) })
  client.on('error', () => {})
  await client.connect()
  return [client, () => client.destroy()]
})

suiteOn('ioredis, a cluster of six', cluster, async ({ nodes }) => {
  const client = new Cluster([...nodes])
  return [client, () => client.disconnect()]
})
