import { randomBytes } from 'node:crypto'
import { Pool } from 'pg'
import { createClient } from 'redis'
import { writes } from '../../src/contracts/index.ts'
import { defineContract, type StoredRecord } from '../../src/index.ts'
import { redisStore } from '../../src/stores/redis.ts'
import type { Server } from '../../test/services/index.ts'
import type { Answered, Stage } from '../kit.ts'
import { entryOf } from './entry.ts'
import type { WritesExample } from './example.ts'
import { setFlag } from './flags.ts'
import { startInstance } from './instance.ts'
import type { Change } from './orders.ts'

/** Walks through R1 to R12. */
export async function tour(stage: Stage, example: WritesExample): Promise<void> {
  const pool = new Pool({ connectionString: example.postgres.url })
  pool.on('error', () => {})
  try {
    const guide = new Guide(stage, example, pool)
    await fourMethods(guide)
    await scopes(guide)
    await replays(guide)
    await failures(guide)
    await records(guide)
    await expiry(guide)
    await race(guide)
    await flag(guide)
    await restart(guide)
    await outage(guide)
  } finally {
    await pool.end()
  }
}

/** New names on every tour, because the servers may be somebody's own. */
class Guide {
  readonly stage: Stage
  readonly example: WritesExample
  readonly pool: Pool
  readonly tag: string = randomBytes(3).toString('hex')

  constructor(stage: Stage, example: WritesExample, pool: Pool) {
    this.stage = stage
    this.example = example
    this.pool = pool
  }

  name(name: string): string {
    return `${name}_${this.tag}`
  }

  write(method: string, path: string, key: string, body?: object, who = 'anna'): Promise<Answered> {
    return this.stage.request(path, this.init(method, key, body, who), HEADERS)
  }

  init(method: string, key: string, body?: object, who = 'anna'): RequestInit {
    const named = { authorization: `Bearer ${this.name(who)}`, 'idempotency-key': this.name(key) }
    const headers = { ...named, 'content-type': 'application/json' }
    return { method, headers, ...(body && { body: JSON.stringify(body) }) }
  }

  /** How many writes really took place. */
  async effects(who = 'anna'): Promise<number> {
    const headers = { authorization: `Bearer ${this.name(who)}` }
    const response = await fetch(new URL('/changes', this.example.url), { headers })
    return ((await response.json()) as Change[]).length
  }

  /** Asks, without showing it, until the answer is what a client waits for. */
  async until(isSo: () => Promise<boolean>): Promise<void> {
    const deadline = performance.now() + WAIT_MS_MAX
    while (!(await isSo()) && performance.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS))
    }
  }
}

const HEADERS = ['idempotency-key', 'idempotent-replayed']
const WAIT_MS_MAX = 30_000
const ASK_EVERY_MS = 100

async function fourMethods(guide: Guide): Promise<void> {
  const { stage } = guide
  stage.scene('R1 R4 R9', 'POST, PUT, PATCH and DELETE: each is sent twice, and done once.')
  const writes = [
    ['POST', '/orders', { item: 'tea', quantity: 2 }],
    ['PUT', '/orders/a', { item: 'tea', quantity: 3 }],
    ['PATCH', '/orders/a', { add: 4 }],
    ['DELETE', '/orders/a', undefined],
  ] as const
  for (const [method, path, body] of writes) {
    const before = await guide.effects()
    const original = await guide.write(method, path, `four-${method}`, body)
    const replay = await guide.write(method, path, `four-${method}`, body)
    stage.holds((await guide.effects()) === before + 1, `${method} took place once`)
    stage.holds(original.status < 300 && isReplayOf(replay, original), 'the second answer is the first, byte for byte')
    const echoes = [original, replay].map(({ headers }) => headers.get('idempotency-key'))
    stage.holds(
      echoes.every((echo) => echo === guide.name(`four-${method}`)),
      'both answers carry the key',
    )
  }
}

async function scopes(guide: Guide): Promise<void> {
  const { stage } = guide
  stage.scene('R2 R5', 'One key: its scope is principal, method and route template.')
  const body = { item: 'milk', quantity: 1 }
  await guide.write('PUT', '/orders/1', 'scope', body)
  const sameTemplate = await guide.write('PUT', '/orders/2', 'scope', body)
  stage.holds(sameTemplate.status === 409, '/orders/1 and /orders/2 are one route, /orders/:id: the key is taken')
  stage.holds(JSON.parse(sameTemplate.text).code === 'key-conflict', 'and a program can read why')
  const others = [
    await guide.write('PUT', '/orders/1', 'scope', body, 'ben'),
    await guide.write('POST', '/orders', 'scope', body),
    await guide.write('DELETE', '/orders/1', 'scope'),
  ]
  stage.holds(
    others.every(({ status, headers }) => status < 300 && !headers.has('idempotent-replayed')),
    'another principal, another template and another method never meet it',
  )
}

async function replays(guide: Guide): Promise<void> {
  const { stage } = guide
  stage.scene('R5', 'The same key with another body.')
  await guide.write('POST', '/orders', 'conflict', { item: 'tea', quantity: 2 })
  const before = await guide.effects()
  const conflict = await guide.write('POST', '/orders', 'conflict', { item: 'tea', quantity: 20 })
  stage.holds(conflict.status === 409 && (await guide.effects()) === before, '409, and nothing was done')
  const again = await guide.write('POST', '/orders', 'conflict', { quantity: 2, item: 'tea' })
  stage.holds(again.headers.has('idempotent-replayed'), 'the same content in another order is the same body')
}

async function failures(guide: Guide): Promise<void> {
  const { stage } = guide
  stage.scene('R8', 'Failures are answers, too: the cause goes away, the answer stays.')
  await guide.write('PUT', '/orders/f', 'failure-made', { item: 'salt', quantity: 3 })
  const refused = await guide.write('PATCH', '/orders/f', 'failure-422', { add: -5 })
  const broken = await guide.write('PATCH', '/orders/f', 'failure-500', { add: 2_147_483_647 })
  stage.holds(refused.status === 422 && broken.status === 500, 'one was refused, and one broke the database statement')
  await guide.write('PUT', '/orders/f', 'failure-mended', { item: 'salt', quantity: 9 })
  const refusedAgain = await guide.write('PATCH', '/orders/f', 'failure-422', { add: -5 })
  const brokenAgain = await guide.write('PATCH', '/orders/f', 'failure-500', { add: 2_147_483_647 })
  stage.holds(isReplayOf(refusedAgain, refused) && isReplayOf(brokenAgain, broken), 'both are replayed')
}

async function records(guide: Guide): Promise<void> {
  const { stage, example } = guide
  stage.scene('R3 R6', 'What Redis has of it, under the names of the policy.')
  const record = await recordInRedis(example.redis.url, guide.name('four-POST'))
  if (!record) return stage.holds(false, 'the record is in Redis')
  const entry = entryOf(record)
  for (const [field, value] of Object.entries(entry)) stage.say(`${field.padEnd(13)} ${JSON.stringify(value)}`)
  stage.holds(
    Object.values(entry).every((value) => value !== undefined && value !== null),
    'every part of it is there',
  )
  stage.holds(Math.floor(entry.ttl / 60) === 24 * 60, 'it lives for 24 hours: the contract says so, and can be changed')
}

async function expiry(guide: Guide): Promise<void> {
  const { stage, example } = guide
  stage.scene('R6', 'A third instance, with a contract that keeps answers for one second.')
  const contract = defineContract(writes, { ttl: { committedMs: 1_000, rejectedMs: 1_000 } })
  const stores = { redisUrl: example.redis.url, postgresUrl: example.postgres.url, flagsFile: example.flagsFile }
  const brief = await startInstance({ ...stores, port: 0, contract })
  try {
    const url = new URL('/orders', brief.url)
    const body = { item: 'ice', quantity: 1 }
    const original = await guide.write('POST', url.href, 'expiry', body)
    let later = original
    await guide.until(async () => {
      const response = await fetch(url, guide.init('POST', 'expiry', body))
      later = { status: response.status, headers: response.headers, text: await response.text() }
      return later.text !== original.text
    })
    stage.say(`a second later: ${later.status} ${later.text}`)
    stage.holds(
      later.status === 201 && later.text !== original.text,
      'after that the key is new: the request runs again',
    )
  } finally {
    await brief.stop()
  }
}

async function race(guide: Guide): Promise<void> {
  const { stage, example } = guide
  stage.scene('R10 R12', 'Fifty at once with one key, on two instances.')
  const body = { item: 'bread', quantity: 1 }
  const before = await guide.effects()
  const answers = await Promise.all(
    Array.from({ length: 50 }, async (_, i) => {
      const url = new URL('/orders', example.instances[i % 2 === 0 ? 0 : 1].url)
      const response = await fetch(url, guide.init('POST', 'race', body))
      return { status: response.status, headers: response.headers, text: await response.text() }
    }),
  )
  const replayed = answers.filter(({ headers }) => headers.has('idempotent-replayed')).length
  stage.say(`${answers.length} answers, ${replayed} of them replayed: ${answers[0]?.status} ${answers[0]?.text}`)
  stage.holds((await guide.effects()) === before + 1, 'one order was placed')
  stage.holds(replayed === 49 && new Set(answers.map(({ text }) => text)).size === 1, 'the others got its answer')
}

async function flag(guide: Guide): Promise<void> {
  const { stage, example } = guide
  const body = { item: 'jam', quantity: 1 }
  stage.scene('R11', 'POST /orders is switched off while the service runs, and on again.')
  setFlag(example.flagsFile, 'POST /orders', false)
  const before = await guide.effects()
  const offs = [await guide.write('POST', '/orders', 'flag', body), await guide.write('POST', '/orders', 'flag', body)]
  stage.holds(offs.every(({ status }) => status === 201) && (await guide.effects()) === before + 2, 'off: each is done')
  setFlag(example.flagsFile, 'POST /orders', true)
  await guide.write('POST', '/orders', 'flag', body)
  const replay = await guide.write('POST', '/orders', 'flag', body)
  stage.holds(replay.headers.has('idempotent-replayed') && (await guide.effects()) === before + 3, 'on: done once')
}

async function restart(guide: Guide): Promise<void> {
  const { stage, example } = guide
  const [, second] = example.instances
  stage.scene('R12', 'An instance answers, is killed (kill -9) and started again.')
  const url = new URL('/orders', second.url).href
  const original = await guide.write('POST', url, 'restart', { item: 'rice', quantity: 1 })
  const { pid } = second
  await second.kill()
  await second.restart()
  stage.say(`process ${pid} is dead, process ${second.pid} listens in its place`)
  const replay = await guide.write('POST', url, 'restart', { item: 'rice', quantity: 1 })
  stage.holds(isReplayOf(replay, original), 'the new process replays what the dead one answered')
}

async function outage(guide: Guide): Promise<void> {
  const { stage, example, pool } = guide
  const { redis } = example
  if (!isOwn(redis)) return stage.say('R7 is not shown: it would kill the Redis of REDIS_URL, which is not ours.')
  const body = { item: 'oil', quantity: 1 }
  const send = async (key: string) => fetch(new URL('/orders', example.url), guide.init('POST', key, body))

  stage.scene(
    'R7',
    'Redis is killed. PostgreSQL takes over, best effort: what only Redis knows is not known meanwhile.',
  )
  await redis.kill()
  const first = await guide.write('POST', '/orders', 'outage-1', body)
  stage.holds(first.status === 503, 'one failure is no outage: the client is told to try again, and nothing was done')
  await guide.until(async () => (await send('outage-1')).ok)
  const kept = await guide.write('POST', '/orders', 'outage-1', body)
  stage.holds(kept.status === 201, 'a second later its retry is through, and protected')
  const { rows } = await pool.query('SELECT * FROM system.idempotency_entries WHERE key = $1', [guide.name('outage-1')])
  for (const [field, value] of Object.entries(rows[0] ?? {})) stage.say(`${field.padEnd(13)} ${JSON.stringify(value)}`)
  stage.holds(rows.length === 1, 'its record is in system.idempotency_keys')

  stage.scene('R7', 'Redis is back.')
  await redis.start()
  let turn = 0
  await guide.until(async () => {
    const key = `back-${turn++}`
    await send(key)
    return (await recordInRedis(redis.url, guide.name(key))) !== undefined
  })
  stage.holds((await recordInRedis(redis.url, guide.name(`back-${turn - 1}`))) !== undefined, 'new keys are in Redis')
  const replay = await guide.write('POST', '/orders', 'outage-1', body)
  stage.holds(isReplayOf(replay, kept), 'what was answered in the meantime is still replayed')
}

function isOwn(service: object): service is Server {
  return 'kill' in service
}

function isReplayOf(replay: Answered, original: Answered): boolean {
  const isMarked = replay.headers.get('idempotent-replayed') === 'true'
  return isMarked && replay.status === original.status && replay.text === original.text
}

/** By the key that the client sent, as an operator looks for it. */
async function recordInRedis(url: string, key: string): Promise<StoredRecord | undefined> {
  const client = createClient({ url })
  await client.connect()
  const store = redisStore(client)
  try {
    return (await store.list({ limit: RECORDS_MAX })).find(({ labels }) => labels.key === key)
  } finally {
    await store.close()
    client.destroy()
  }
}

const RECORDS_MAX = 10_000
