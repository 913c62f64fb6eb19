import { Redis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll } from 'vitest'
import { findService } from '../../test/services/index.ts'
import { suiteOn } from '../../test/support/redis-suite.ts'

const server = await findService('redis')

afterAll(async () => {
  if (typeof server !== 'string') await server.stop()
})

suiteOn('redis, one server', server, async ({ url }) => {
  const client = createClient({ url })
  client.on('error', () => {})
  await client.connect()
  return [client, () => client.destroy()]
})

suiteOn('ioredis, one server', server, async ({ url }) => {
  const client = new Redis(url)
  return [client, () => client.disconnect()]
})
