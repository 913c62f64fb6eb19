import { afterAll } from 'vitest'
import { findRedisSentinel } from '../../../test/services/redis-sentinel.ts'
import { bySentinel } from '../../../test/support/redis-sentinel.ts'
import { suiteOn } from '../../../test/support/redis-suite.ts'

const sentinel = await findRedisSentinel()

afterAll(async () => {
  if (typeof sentinel !== 'string') await sentinel.stop()
})

for (const [driver, connect] of Object.entries(bySentinel)) suiteOn(`${driver}, by Sentinel`, sentinel, connect)
