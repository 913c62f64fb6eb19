import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Pool } from 'pg'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { findOwn, findService, type Server } from '../../test/services/index.ts'
import { effects, holdOrders, idOf, isReplayed, poolOf, rawInRedis, send, somebody, until } from './client.ts'
import { start, type WritesExample } from './example.ts'
import { setFlag } from './flags.ts'
import { type Instance, startInstance } from './instance.ts'

const redis = await findOwn('redis')
const postgres = await findService('postgres')
const missing = [redis, postgres].filter((found) => typeof found === 'string').join('; ')

const TEA = { item: 'tea', quantity: 2 }
/** Over at the first failure, and back within a moment. */
const QUICK = { failuresMax: 1, awayMsMin: 0, probeEveryMs: 50, watchEveryMs: 50 }

describe.skipIf(missing)(`R7: Redis first, PostgreSQL when it is away${missing && ` (skipped: ${missing})`}`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-writes-'))
  let pool: Pool
  let server: Server

  async function started(): Promise<Instance> {
    const urls = { redisUrl: urlOf(redis), postgresUrl: urlOf(postgres) }
    const instance = await startInstance({
      ...urls,
      flagsFile: join(folder, 'flags.json'),
      port: 0,
      switching: QUICK,
    })
    onTestFinished(() => instance.stop())
    return instance
  }

  beforeAll(() => {
    if (typeof redis === 'string') throw new Error(redis)
    server = redis
    pool = poolOf(urlOf(postgres))
  })

  afterAll(async () => {
    await pool?.end()
    for (const service of [redis, postgres]) if (typeof service !== 'string') await service.stop()
    rmSync(folder, { recursive: true, force: true })
  })

  it('R7: one atomic script in Redis makes a provisional record before the handler runs', async () => {
    const who = somebody()
    const { url } = await started()
    const id = idOf(who, 'POST', '/orders', 'k')
    // From here on Redis knows the script.
    await send(url, 'POST /orders', { who, key: 'warm', body: TEA })
    const monitor = await monitored(server.url)
    const orders = await holdOrders(pool)
    const answer = send(url, 'POST /orders', { who, key: 'k', body: TEA })
    await until('the handler runs', async () => (await orders.waiting()) === 1)

    // Provisional: no answer yet, and nothing done.
    const { value } = await rawInRedis(server.url, id)
    expect(value?.slice(0, 6)).toBe('once2r')
    expect(await effects(pool, who)).toEqual(['placed'])
    const commands = (await monitor.commandsOn(id)).filter((command) => command !== 'GET' && command !== 'PTTL')
    expect(commands).toEqual(['EVALSHA'])

    await orders.letGo()
    expect((await answer).status).toBe(201)
    expect(await effects(pool, who)).toEqual(['placed', 'placed'])
    const { rowCount } = await pool.query('SELECT 1 FROM system.idempotency_keys WHERE id = $1', [id])
    expect(rowCount).toBe(0)
  })

  it('R7: Redis is killed in the middle: nothing is done twice, then and after it is back', async () => {
    const who = somebody()
    const write = (instance: Instance, key: string) => send(instance.url, 'POST /orders', { who, key, body: TEA })
    const inLedger = async (key: string) => {
      const entries = 'SELECT response_code FROM system.idempotency_entries WHERE principal = $1 AND key = $2'
      return (await pool.query(entries, [who, key])).rows
    }
    const [one, other] = [await started(), await started()]
    const before = await write(one, 'before')

    const orders = await holdOrders(pool)
    const underWay = write(one, 'under-way')
    await until('the handler runs', async () => (await orders.waiting()) === 1)
    await server.kill()
    await orders.letGo()
    const moved = await underWay
    expect(moved.status).toBe(201)
    expect(moved.headers.has('idempotent-recorded')).toBe(false)
    expect(await inLedger('under-way')).toEqual([{ response_code: 201 }])

    const fresh = await write(one, 'fresh')
    expect([fresh.status, isReplayed(fresh)]).toEqual([201, false])
    expect(await inLedger('fresh')).toEqual([{ response_code: 201 }])
    // Also one that was started when Redis was already gone.
    const late = await started()
    for (const instance of [one, other, late]) {
      for (const [key, original] of [['under-way', moved] as const, ['fresh', fresh] as const]) {
        const replay = await write(instance, key)
        expect([replay.status, replay.text, isReplayed(replay)]).toEqual([201, original.text, true])
      }
    }
    expect((await effects(pool, who)).length).toBe(3)

    await server.start()
    let turn = 0
    for (const instance of [one, other, late]) {
      await until('new keys are in Redis again', async () => {
        const key = `back-${turn++}`
        await write(instance, key)
        return (await rawInRedis(server.url, idOf(who, 'POST', '/orders', key))).value !== null
      })
    }
    const done = await effects(pool, who)
    for (const instance of [one, other, late]) {
      for (const [key, original] of Object.entries({ before, 'under-way': moved, fresh })) {
        const replay = await write(instance, key)
        expect([replay.status, replay.text, isReplayed(replay)]).toEqual([201, original.text, true])
      }
    }
    expect(await effects(pool, who)).toEqual(done)
  })
})

describe.skipIf(missing)(`two instances, as two processes${missing && ` (skipped: ${missing})`}`, () => {
  let example: WritesExample
  let pool: Pool

  beforeAll(async () => {
    example = await start({ port: 0, env: process.env })
    pool = poolOf(example.postgres.url)
  })

  afterAll(async () => {
    await pool?.end()
    await example?.stop()
  })

  it('R10: of fifty at once on two instances one wins, and the others replay its answer', async () => {
    const who = somebody()
    const orders = await holdOrders(pool)
    const sent = Array.from({ length: 50 }, (_, i) =>
      send(example.instances[i % 2 === 0 ? 0 : 1].url, 'POST /orders', { who, key: 'k', body: TEA }),
    )
    await until('the winner is in its handler', async () => (await orders.waiting()) > 0)
    await orders.letGo()
    const answers = await Promise.all(sent)
    expect(await effects(pool, who)).toEqual(['placed'])
    expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1)
    expect(answers[0]?.status).toBe(201)
    expect(answers.filter(isReplayed).length).toBe(49)
  })

  it('R12: what one instance answered the other replays, also when all of them were killed and started again', async () => {
    const who = somebody()
    const [one, other] = example.instances
    const write = (url: string, key: string) => send(url, 'POST /orders', { who, key, body: TEA })
    const originals = { a: await write(one.url, 'a'), b: await write(other.url, 'b') }
    const replays = async () => {
      for (const { url } of [one, other]) {
        for (const [key, original] of Object.entries(originals)) {
          const replay = await write(url, key)
          expect([replay.status, replay.text, isReplayed(replay)]).toEqual([201, original.text, true])
        }
      }
      expect(await effects(pool, who)).toEqual(['placed', 'placed'])
    }
    await replays()
    const pids = [one.pid, other.pid]
    for (const instance of [one, other]) await instance.kill()
    for (const instance of [one, other]) await instance.restart()
    expect([one.pid, other.pid].some((pid) => pids.includes(pid))).toBe(false)
    await replays()
  })

  it('R11: a flag flips on all instances at once', async () => {
    const who = somebody()
    const both = async () => {
      const answers = []
      for (const { url } of example.instances) {
        answers.push(await send(url, 'POST /orders', { who, key: 'k', body: TEA }))
      }
      return answers.map(isReplayed)
    }
    expect(await both()).toEqual([false, true])
    setFlag(example.flagsFile, 'POST /orders', false)
    expect(await both()).toEqual([false, false])
    setFlag(example.flagsFile, 'POST /orders', true)
    expect(await both()).toEqual([true, true])
    expect((await effects(pool, who)).length).toBe(3)
  })
})

/** Every command that a client sends, as Redis itself saw it. */
async function monitored(url: string): Promise<{ commandsOn(id: string): Promise<string[]> }> {
  const [watching, marking] = [createClient({ url }), createClient({ url })]
  await Promise.all([watching.connect(), marking.connect()])
  const lines: string[] = []
  await watching.monitor((line) => void lines.push(String(line)))
  onTestFinished(() => {
    watching.destroy()
    marking.destroy()
  })
  return {
    async commandsOn(id) {
      // What was sent before the mark has been seen when the mark is.
      const mark = crypto.randomUUID()
      await marking.echo(mark)
      await until('the mark is seen', async () => lines.some((line) => line.includes(mark)))
      const sent = lines.filter((line) => line.includes(id) && !line.includes(' lua] '))
      return sent.map((line) => /\] "(\w+)"/.exec(line)?.[1]?.toUpperCase() ?? line)
    },
  }
}

function urlOf(service: { readonly url: string } | string): string {
  if (typeof service === 'string') throw new Error(service)
  return service.url
}
