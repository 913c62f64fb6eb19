import { setImmediate as turn } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { describe, expect, it } from 'vitest'
import { answered, claimOf, commitsIn, connect, HOUR_MS, open, tempFile } from '../../../test/support/sqlite.ts'
import type { Clock } from '../../clock.ts'
import { sqliteStore } from '../sqlite.ts'
import { QUEUE_OPS_MAX } from './channel.ts'
import type { ToWorker, WorkerSettings } from './wire.ts'

const ids = (count: number): string[] => Array.from({ length: count }, (_, index) => `id-${index}`)

describe('group commit', () => {
  it('operations of the same moment share one transaction', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('first'))
    const before = commitsIn(path)
    const claims = await Promise.all(ids(100).map((id) => store.claim(claimOf(id))))
    expect(claims.filter((claim) => claim.state === 'acquired')).toHaveLength(100)
    expect(commitsIn(path) - before).toBe(1)
  })

  it('what comes while a batch is being written goes together in the next transaction, in however many turns it came', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('first'))
    const before = commitsIn(path)
    const other = connect(path)
    other.exec('BEGIN IMMEDIATE')
    const claims = [store.claim(claimOf('alone'))]
    for (const id of ids(20)) {
      await turn()
      claims.push(store.claim(claimOf(id)))
    }
    await turn()
    other.exec('ROLLBACK')
    expect(await Promise.all(claims)).toEqual(claims.map(() => ({ state: 'acquired', attempt: 1 })))
    expect(commitsIn(path) - before).toBeLessThanOrEqual(3)
  })

  it('an operation that comes alone is sent in the same turn, and waits for no other', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('first'))
    const before = commitsIn(path)
    for (const id of ids(5)) await store.claim(claimOf(id))
    expect(commitsIn(path) - before).toBe(5)
  })

  it('operations of one batch are carried out in their order', async () => {
    const store = open(tempFile())
    const replies = await Promise.all([
      store.claim(claimOf('a')),
      store.settle('a', 'mine', answered),
      store.claim(claimOf('a', { token: 'other' })),
      store.forget('a'),
      store.claim(claimOf('a', { token: 'other' })),
      store.read('a'),
    ])
    expect(replies).toMatchObject([
      { state: 'acquired' },
      true,
      { state: 'settled' },
      true,
      { state: 'acquired' },
      { state: 'running' },
    ])
  })

  it('an operation that cannot work does not harm those of its batch', async () => {
    const path = tempFile()
    const store = open(path)
    await Promise.all(['a', 'b', 'c'].map((id) => store.claim(claimOf(id))))
    const before = commitsIn(path)
    const impossible = { ...answered, answer: { ...answered.answer, status: 200.5, body: Buffer.from('longer body') } }
    const [a, b, c] = await Promise.allSettled([
      store.settle('a', 'mine', answered),
      store.settle('b', 'mine', impossible),
      store.settle('c', 'mine', { ...answered, answer: { ...answered.answer, body: Buffer.from('of c') } }),
    ])
    expect(a).toEqual({ status: 'fulfilled', value: true })
    expect(b).toMatchObject({ status: 'rejected', reason: { name: 'OncekeyError', code: 'config-invalid' } })
    expect(c).toEqual({ status: 'fulfilled', value: true })
    expect(commitsIn(path) - before).toBe(1)
    expect(await store.read('b')).toMatchObject({ state: 'running' })
    expect(await store.read('c')).toMatchObject({
      state: 'settled',
      answer: { body: new Uint8Array(Buffer.from('of c')) },
    })
  })

  it('a record that somebody has spoilt is refused to its own reader only', async () => {
    const path = tempFile()
    const store = open(path)
    await Promise.all([store.claim(claimOf('a')), store.settle('a', 'mine', answered), store.claim(claimOf('b'))])
    connect(path).exec("UPDATE oncekey_record SET headers = '[[' WHERE headers IS NOT NULL")
    const [a, b] = await Promise.allSettled([store.read('a'), store.read('b')])
    expect(a).toMatchObject({ status: 'rejected', reason: { code: 'store-incompatible' } })
    expect(b).toMatchObject({ status: 'fulfilled', value: { state: 'running' } })
  })

  it('a value that cannot travel is refused, and the next batch goes on', async () => {
    const store = open(tempFile())
    const impossible = claimOf('a', { token: (() => 'token') as unknown as string })
    await expect(store.claim(impossible)).rejects.toMatchObject({ code: 'config-invalid' })
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a clock that stands at 0 is a clock', async () => {
    const store = open(tempFile(), { clock: { now: () => 0, schedule: () => () => {} } })
    await store.claim(claimOf('a'))
    expect(await store.read('a')).toMatchObject({ createdAt: 0, goneAt: 2 * HOUR_MS })
  })

  it('works in memory, for one store alone', async () => {
    const store = open(':memory:')
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
    expect(await open(':memory:').read('a')).toBeUndefined()
  })

  it('what changes nothing writes nothing, and needs no lock', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('settled'))
    await store.settle('settled', 'mine', answered)
    await store.claim(claimOf('running'))
    const before = commitsIn(path)
    const locker = connect(path)
    locker.exec('BEGIN IMMEDIATE')
    const replies = await Promise.all([
      ...ids(50).map((token) => store.claim(claimOf('settled', { token }))),
      store.claim(claimOf('running', { token: 'other' })),
      store.claim(claimOf('running')),
      store.read('settled'),
      store.list(),
      store.read('absent'),
    ])
    locker.exec('ROLLBACK')
    expect(
      replies.slice(0, 50).every((reply) => reply !== undefined && 'state' in reply && reply.state === 'settled'),
    ).toBe(true)
    expect(replies.slice(50)).toMatchObject([
      { state: 'running' },
      { state: 'acquired' },
      { state: 'settled' },
      [{}, {}],
      undefined,
    ])
    expect(commitsIn(path)).toBe(before)
  })

  it('a file that another process has locked delays the operation, not the event loop', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('first'))
    const locker = connect(path)
    locker.exec('BEGIN IMMEDIATE')
    let isDone = false
    const claim = Promise.resolve(store.claim(claimOf('a'))).finally(() => {
      isDone = true
    })
    for (let turns = 0; turns < 1_000; turns++) await turn()
    expect(isDone).toBe(false)
    locker.exec('ROLLBACK')
    expect(await claim).toMatchObject({ state: 'acquired' })
  })
})

describe('bounds', () => {
  it('a queue that is full refuses, and what was accepted is done', async () => {
    const store = open(tempFile())
    const accepted = Array.from({ length: QUEUE_OPS_MAX }, () => store.read('absent'))
    await expect(store.read('absent')).rejects.toMatchObject({ code: 'store-full' })
    expect(await Promise.all(accepted)).toHaveLength(QUEUE_OPS_MAX)
    await expect(store.read('absent')).resolves.toBeUndefined()
  })

  it.each([
    [{ path: '' }, /path/],
    [{ path: 'a.db', synchronous: 'off' as 'full' }, /synchronous/],
    [{ path: 'a.db', sweepEveryMs: -1 }, /sweepEveryMs/],
    [{ path: 'a.db', sweepEveryMs: Number.NaN }, /sweepEveryMs/],
  ])('refuses the options %o at once', (options, message) => {
    expect(() => sqliteStore(options)).toThrow(
      expect.objectContaining({ code: 'config-invalid', message: expect.stringMatching(message) }),
    )
  })
})

describe('the background sweep', () => {
  it('goes in small steps, one for each batch, and comes again', async () => {
    const path = tempFile()
    let nowMs = 1_800_000_000_000
    const planned: Array<() => void> = []
    const clock: Clock = {
      now: () => nowMs,
      schedule: (_delayMs, callback) => {
        planned.push(callback)
        return () => {}
      },
    }
    const store = open(path, { clock, sweepEveryMs: 10_000 })
    const db = connect(path)
    const left = () => db.prepare('SELECT count(*) AS n FROM oncekey_record').get()?.n
    await Promise.all(ids(450).map((id) => store.claim(claimOf(id))))
    nowMs += 2 * HOUR_MS
    expect(planned).toHaveLength(1)
    planned[0]?.()
    const counts: unknown[] = [left()]
    for (let step = 0; step < 3; step++) {
      await store.read('absent')
      counts.push(left())
    }
    expect(counts).toEqual([450, 250, 50, 0])
    await store.read('absent')
    expect(planned).toHaveLength(2)
  })

  it('frees the answer of a key that is only remembered as used', async () => {
    const path = tempFile()
    let nowMs = 1_800_000_000_000
    const store = open(path, { clock: { now: () => nowMs, schedule: () => () => {} } })
    await store.claim(claimOf('a'))
    await store.settle('a', 'mine', { ...answered, expiredTtlMs: HOUR_MS })
    nowMs += HOUR_MS
    expect(await store.sweep()).toBe(0)
    expect(connect(path).prepare('SELECT body, headers FROM oncekey_record').get()).toEqual({
      body: null,
      headers: null,
    })
    expect(await store.read('a')).toMatchObject({ state: 'expired', goneInMs: HOUR_MS })
  })
})

it('a worker that was told to close ends, whatever else was already on its way to it', async () => {
  const workerData = { path: tempFile(), synchronous: 'full' } satisfies WorkerSettings
  const worker = new Worker(new URL('./worker.ts', import.meta.url), { workerData })
  const exited = new Promise((resolve) => worker.once('exit', resolve))
  worker.postMessage({ close: true } satisfies ToWorker)
  worker.postMessage({ watch: true } satisfies ToWorker)
  expect(await exited).toBe(0)
})
