import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { afterAll, describe, expect, it } from 'vitest'
import { startGate } from '../../src/gate/gate.ts'
import { startWorkers, type Workers, type WorkersOptions } from '../../src/gate/workers.ts'
import type { Store } from '../../src/store.ts'
import { redisStore } from '../../src/stores/redis.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { findService } from '../services/index.ts'
import { later } from './scene.ts'
import { answer, TestUpstream } from './upstream.ts'
import { values, Wire } from './wire.ts'

const RACERS = 50
const redis = await findService('redis')
afterAll(async () => {
  if (typeof redis !== 'string') await redis.stop()
})

async function directory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'oncekey-gates-'))
  later(() => rm(path, { recursive: true, force: true }))
  return path
}

/** Holds the first request until all others have their answer, so that all of them meet it while it runs. */
async function raceThrough(urls: readonly string[], upstream: TestUpstream, key: string): Promise<number[]> {
  const before = upstream.seen.length
  const held: Array<() => void> = []
  upstream.behave = (request, socket) => {
    held.push(() => answer('201 Created', '{"id":1}')(request, socket))
  }
  const statuses: number[] = []
  let seen = (): void => {}
  const othersDone = new Promise<void>((resolve) => {
    seen = () => {
      if (statuses.length === RACERS - 1) resolve()
    }
  })
  const racers = Array.from({ length: RACERS }, async (_, at) => {
    const wire = new Wire(urls[at % urls.length] as string)
    later(() => wire.destroy())
    statuses.push((await wire.post(key).message()).status)
    seen()
  })
  await othersDone
  // The first one may still be on its way.
  upstream.behave = answer('201 Created', '{"id":1}')
  for (const finish of held.splice(0)) finish()
  await Promise.all(racers)
  expect(upstream.seen.length - before).toBe(1)
  return statuses.sort()
}

const ONE_AND_THE_REST = [201, ...Array<number>(RACERS - 1).fill(409)]

describe('several gates on one store', () => {
  it('X8: two gates on one SQLite file are one gate: a race of 50 is one effect', async () => {
    const upstream = await new TestUpstream().listen()
    later(() => upstream.stop())
    const path = join(await directory(), 'gates.db')
    await race(upstream, [sqliteStore({ path }), sqliteStore({ path })])
  })

  it.skipIf(typeof redis === 'string')('X8: two gates on one Redis are one gate', async () => {
    const upstream = await new TestUpstream().listen()
    later(() => upstream.stop())
    const stores = [1, 2].map(() => {
      const client = new Redis((redis as { url: string }).url)
      later(() => client.disconnect())
      return redisStore(client)
    })
    await race(upstream, stores)
  })

  async function race(upstream: TestUpstream, stores: readonly Store[]): Promise<void> {
    const urls: string[] = []
    for (const store of stores) {
      later(() => store.close())
      const gate = await startGate({ upstream: upstream.url, store, port: 0, principal: 'public' })
      later(() => gate.stop())
      urls.push(gate.url)
    }
    expect(await raceThrough(urls, upstream, 'race')).toEqual(ONE_AND_THE_REST)
    // Whichever of them ran it, each has the answer.
    for (const url of urls) {
      const wire = new Wire(url)
      later(() => wire.destroy())
      const replay = await wire.post('race').message()
      expect([replay.status, values(replay, 'idempotent-replayed')]).toEqual([201, ['true']])
    }
    expect(upstream.seen).toHaveLength(1)
  }
})

describe('several workers on one port', () => {
  it('X8: a race of 50 through two workers is one effect, and a killed worker is replaced', async () => {
    const upstream = await new TestUpstream().listen()
    later(() => upstream.stop())
    const env = { UPSTREAM: upstream.url, DATABASE: join(await directory(), 'workers.db') }
    const workers = await startWorkers({ count: 2, script: join(import.meta.dirname, 'worker.ts'), env })
    later(() => workers.stop())
    expect(await raceThrough([workers.url], upstream, 'first')).toEqual(ONE_AND_THE_REST)
    const before = workers.pids
    expect(before).toHaveLength(2)
    process.kill(before[0] as number, 'SIGKILL')
    while (workers.pids.includes(before[0] as number)) await new Promise((resolve) => setImmediate(resolve))
    await workers.ready(2)
    expect(workers.pids).not.toContain(before[0])
    expect(await raceThrough([workers.url], upstream, 'second')).toEqual(ONE_AND_THE_REST)
    await workers.stop()
    expect([await workers.ended, workers.pids]).toEqual([undefined, []])
  })

  it('X8: a signal to the whole group ends nothing that runs: the primary says when to stop', async () => {
    const { workers, upstream, open } = await group({ count: 2 })
    const held: Array<() => void> = []
    upstream.behave = (request, socket) => {
      held.push(() => answer('201 Created', '{"id":1}')(request, socket))
    }
    const running = ['a', 'b', 'c', 'd'].map((key) => open().post(key))
    await upstream.arrived(running.length)
    // As from a terminal, or from a service manager: to every process.
    for (const pid of workers.pids) for (const signal of ['SIGINT', 'SIGTERM'] as const) process.kill(pid, signal)
    const stopped = workers.stop()
    for (const finish of held) finish()
    expect(await Promise.all(running.map(async (wire) => (await wire.message()).status))).toEqual([201, 201, 201, 201])
    await stopped
    expect(await workers.ended).toBeUndefined()
  })

  it('a worker that stops is not killed before its gate has had its time', async () => {
    const options = { count: 1, workerMsMax: 40_000 }
    const { workers, upstream, open } = await group(options)
    const idle = open().post('idle')
    expect((await idle.message()).status).toBe(201)
    const finish = upstream.holdBack(answer('201 Created', '{"id":1}'))
    const running = open().post('running')
    await upstream.arrived(2)
    // For the start of a worker, and nothing else.
    options.workerMsMax = 1
    const stopped = workers.stop()
    await idle.closed
    finish()
    expect((await running.message()).status).toBe(201)
    await stopped
  })

  it('a worker that is not ready yet takes no notice of a signal, and stops at once when it is told', async () => {
    const worker = fork(join(import.meta.dirname, 'worker.ts'), { env: { ...process.env, LATE: '1' } })
    later(() => worker.kill('SIGKILL'))
    expect(await once(worker, 'message')).toEqual(['started', undefined])
    for (const signal of ['SIGINT', 'SIGTERM'] as const) worker.kill(signal)
    worker.send({ oncekey: 'stop' })
    expect(await once(worker, 'exit')).toEqual([0, null])
  })

  interface GroupOfWorkers {
    readonly workers: Workers
    readonly upstream: TestUpstream
    open(): Wire
  }

  /** The options are kept as they are given. */
  async function group(options: Pick<WorkersOptions, 'count' | 'workerMsMax'>): Promise<GroupOfWorkers> {
    const upstream = await new TestUpstream().listen()
    later(() => upstream.stop())
    const env = { UPSTREAM: upstream.url, DATABASE: join(await directory(), 'workers.db') }
    const workers = await startWorkers(Object.assign(options, { script: join(import.meta.dirname, 'worker.ts'), env }))
    later(() => workers.stop())
    const open = (): Wire => {
      const wire = new Wire(workers.url)
      later(() => wire.destroy())
      return wire
    }
    return { workers, upstream, open }
  }

  it('restarts are bounded: workers that keep ending stop the gate, with words', async () => {
    const upstream = await new TestUpstream().listen()
    later(() => upstream.stop())
    const env = { UPSTREAM: upstream.url, DATABASE: join(await directory(), 'workers.db') }
    const script = join(import.meta.dirname, 'worker.ts')
    const workers = await startWorkers({ count: 1, script, env, restartsMax: 1 })
    for (let kills = 0; kills < 2; kills++) {
      await workers.ready(1)
      process.kill(workers.pids[0] as number, 'SIGKILL')
      while (workers.pids.length > 0) await new Promise((resolve) => setImmediate(resolve))
    }
    expect((await workers.ended)?.message).toContain('after 1 restarts')
    await expect(startWorkers({ count: 1, script, env: { ...env, BROKEN: '1' } })).rejects.toThrow('code 3')
  })
})
