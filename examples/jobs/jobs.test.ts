import { afterEach, describe, expect, it } from 'vitest'
import { parseStructuredKey } from '../../src/client/index.ts'
import { jobs as jobsContract } from '../../src/contracts/index.ts'
import { fingerprint } from '../../src/operation/fingerprint.ts'
import { operationId } from '../../src/operation/scope.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { type Rejection, statusOf } from './service.ts'
import { newKey, type Pair, type PairOptions, startPair, submit, until } from './support.ts'

const pairs: Pair[] = []
const started = async (options: PairOptions = {}): Promise<Pair> => {
  const pair = await startPair(options)
  pairs.push(pair)
  return pair
}
afterEach(async () => {
  for (const pair of pairs.splice(0)) await pair.stop()
})

/** Holds every job at the manager until it is let go. */
function hold(): { readonly admit: NonNullable<PairOptions['admit']>; letGo(rejection?: Rejection): void } {
  const gone = Promise.withResolvers<Rejection | undefined>()
  return { admit: () => gone.promise, letGo: gone.resolve }
}

const statuses = async ({ ledger }: Pair) => (await ledger.list()).map((record) => statusOf(record).status)

describe('submissions', () => {
  it("J1: executes once, and a retry under another job id gets the original job's id", async () => {
    const { url, jobs } = await started()
    const key = newKey()
    const first = await submit(url, key, { job_id: 'abc', task: 'render' })
    const retry = await submit(url, key, { job_id: 'def', task: 'render' })
    expect([first.status, first.jobId, first.isReplay]).toEqual([201, 'abc', false])
    expect([retry.status, retry.jobId, retry.isReplay]).toEqual([201, 'abc', true])
    expect(jobs.all().map(({ id }) => id)).toEqual(['abc'])
  })

  it('J1: another task under the same key is refused, and changes nothing', async () => {
    const { url, jobs } = await started()
    const key = newKey()
    await submit(url, key, { job_id: 'abc', task: 'render' })
    expect(await submit(url, key, { job_id: 'abc', task: 'delete' })).toMatchObject({ status: 409 })
    expect((await submit(url, key, { task: 'render' })).jobId).toBe('abc')
    expect(jobs.count()).toBe(1)
  })

  it('J1: two hundred retries at once, each with a job id of its own, at gate and manager: one job', async () => {
    const { url, managerUrl, jobs } = await started()
    const key = newKey()
    const sent = Array.from({ length: 200 }, (_, n) =>
      submit(n % 2 === 0 ? url : managerUrl, key, { job_id: `job-${n}`, task: 'render' }),
    )
    const ids = new Set((await Promise.all(sent)).map(({ jobId }) => jobId))
    expect(ids.size).toBe(1)
    expect(jobs.all().map(({ id }) => id)).toEqual([...ids])
  })

  it('J7: a key of another form is refused with the reason, before anything is looked up', async () => {
    const { url, gate, received } = await started()
    const answer = await submit(url, 'not-a-structured-key')
    expect(answer.status).toBe(400)
    expect(JSON.parse(answer.text)).toEqual({
      code: 'key-invalid',
      detail: (parseStructuredKey('not-a-structured-key') as { reason: string }).reason,
    })
    expect([received(), await gate.cache.list()]).toEqual([0, []])
  })
})

describe("the gate's memory", () => {
  const env = { IDEMPOTENCY_MAX_ENTRIES: '3' }

  it('J2: holds so many entries, and the least recently used makes room', async () => {
    const { url, gate, received } = await started({ env })
    const [a, b, c, d] = [newKey(), newKey(), newKey(), newKey()]
    for (const key of [a, b, c]) await submit(url, key)
    await submit(url, a)
    await submit(url, d)
    expect(await gate.cache.list()).toHaveLength(3)
    expect(received()).toBe(4)
    for (const key of [a, c, d]) expect((await submit(url, key)).isReplay).toBe(true)
    expect(received()).toBe(4)
    // Forgotten here, but not by the manager.
    expect((await submit(url, b)).isReplay).toBe(true)
    expect(received()).toBe(5)
  })

  it('J2: never forgets what is still pending: with nothing else to forget, a new one is refused', async () => {
    const { admit, letGo } = hold()
    const { url, received, jobs } = await started({ env, admit })
    const keys = [newKey(), newKey(), newKey()]
    const pending = keys.map((key) => submit(url, key))
    await until('all three are at the manager', () => received() === 3)
    expect((await submit(url, newKey())).status).toBe(503)
    expect(received()).toBe(3)
    letGo()
    expect((await Promise.all(pending)).map(({ status }) => status)).toEqual([201, 201, 201])
    for (const key of keys) expect((await submit(url, key)).isReplay).toBe(true)
    expect([received(), jobs.count()]).toEqual([3, 3])
  })

  it('J10: a thousand duplicates of one pending key are one call to the manager', async () => {
    const { admit, letGo } = hold()
    const { url, gate, received, jobs } = await started({ admit })
    const key = newKey()
    const first = submit(url, key)
    await until('the first is at the manager', () => received() === 1)
    const arrived = countArrivals(gate)
    const others = Array.from({ length: 999 }, () => submit(url, key))
    await until('all others wait at the gate', () => arrived() === 999)
    expect(received()).toBe(1)
    letGo()
    const answers = await Promise.all([first, ...others])
    expect(new Set(answers.map(({ status, jobId }) => `${status} ${jobId}`)).size).toBe(1)
    expect([received(), jobs.count()]).toEqual([1, 1])
  })

  it("J12: the manager's answer fills the cache: the second retry does not reach the manager", async () => {
    const { url, managerUrl, received } = await started()
    const [accepted, rejected] = [newKey(), newKey()]
    // Submitted past the gate, or through another one.
    const [job, refusal] = [await submit(managerUrl, accepted), await submit(managerUrl, rejected, { task: 7 })]
    expect([job.status, refusal.status, received()]).toEqual([201, 422, 2])
    expect(await submit(url, accepted)).toEqual({ ...job, isReplay: true })
    expect(await submit(url, rejected, { task: 7 })).toEqual({ ...refusal, isReplay: true })
    expect(received()).toBe(4)
    expect(await submit(url, accepted)).toEqual({ ...job, isReplay: true })
    expect(await submit(url, rejected, { task: 7 })).toEqual({ ...refusal, isReplay: true })
    expect(received()).toBe(4)
  })

  it('J12: what the manager could not say is not kept: the next retry asks again', async () => {
    const { admit, letGo } = hold()
    const { url, managerUrl, received } = await started({ admit, env: { IDEMPOTENCY_WAIT_FOR_PENDING: 'false' } })
    const key = newKey()
    const direct = submit(managerUrl, key)
    await until('it is at the manager', () => received() === 1)
    expect((await submit(url, key)).status).toBe(409)
    letGo()
    const { jobId } = await direct
    expect(await submit(url, key)).toMatchObject({ status: 201, jobId })
    expect(received()).toBe(3)
  })
})

describe('states', () => {
  it('J9: a duplicate of PENDING waits for the original', async () => {
    const { admit, letGo } = hold()
    const pair = await started({ admit })
    const key = newKey()
    const original = submit(pair.url, key)
    await until('it is pending', async () => (await statuses(pair)).includes('PENDING'))
    const arrived = countArrivals(pair.gate)
    let isAnswered = false
    const duplicate = submit(pair.url, key).finally(() => {
      isAnswered = true
    })
    await until('the duplicate has come', () => arrived() === 1)
    expect(isAnswered).toBe(false)
    letGo()
    expect((await duplicate).jobId).toBe((await original).jobId)
    expect(pair.jobs.count()).toBe(1)
  })

  it('J9: and is told so when the wait has its timeout, or when it may not wait at all', async () => {
    const { admit, letGo } = hold()
    const clock = manualClock()
    const pair = await started({ admit, clock })
    const key = newKey()
    const original = submit(pair.url, key)
    await until('it is pending', async () => (await statuses(pair)).includes('PENDING'))
    const arrived = countArrivals(pair.gate)
    let status: number | undefined
    const duplicate = submit(pair.url, key).then((answer) => {
      status = answer.status
    })
    await until('the duplicate has come', () => arrived() === 1)
    await clock.advance(29_999)
    expect(status).toBe(undefined)
    await clock.advance(1)
    await duplicate
    expect(status).toBe(409)
    letGo()
    await original

    const impatient = hold()
    const env = { IDEMPOTENCY_WAIT_FOR_PENDING: 'false' }
    const other = await started({ admit: impatient.admit, env })
    const first = submit(other.url, key)
    await until('it is pending', async () => (await statuses(other)).includes('PENDING'))
    expect((await submit(other.url, key)).status).toBe(409)
    impatient.letGo()
    await first
  })

  it('J9: a duplicate of COMMITTED gets the result at once, one of REJECTED the rejection', async () => {
    let room = 1
    const admit = (): Rejection | undefined => (room-- > 0 ? undefined : { status: 429, reason: 'no room' })
    const pair = await started({ admit })
    const [committed, rejected] = [newKey(), newKey()]
    const [result, rejection] = [await submit(pair.url, committed), await submit(pair.url, rejected)]
    expect([result.status, rejection.status]).toEqual([201, 429])
    expect((await statuses(pair)).sort()).toEqual(['COMMITTED', 'REJECTED'])
    // There would be room now, but it has been decided.
    room = 10
    expect(await submit(pair.url, committed)).toEqual({ ...result, isReplay: true })
    expect(await submit(pair.url, rejected)).toEqual({ ...rejection, isReplay: true })
    expect([pair.jobs.count(), room]).toEqual([1, 10])
  })

  it('J8: COMMITTED and REJECTED each have their own lifetime', async () => {
    const clock = manualClock()
    const pair = await started({ clock })
    const [committed, rejected] = [newKey(), newKey()]
    const job = await submit(pair.url, committed)
    await submit(pair.url, rejected, { task: 7 })
    await clock.advance(59_999)
    expect((await submit(pair.url, rejected, { task: 7 })).isReplay).toBe(true)
    await clock.advance(1)
    expect(await submit(pair.url, rejected, { task: 7 })).toMatchObject({ status: 422, isReplay: false })
    expect(await submit(pair.url, committed)).toMatchObject({ jobId: job.jobId, isReplay: true })
    await clock.advance(239_999)
    expect(await submit(pair.url, committed)).toMatchObject({ jobId: job.jobId, isReplay: true })
    await clock.advance(1)
    expect(await statuses(pair)).toEqual([])
    // The table of jobs remembers for as long as a submission of unknown outcome could come back, and no longer.
    await clock.advance(60_000)
    expect(await submit(pair.url, committed, { job_id: 'new', task: 'render' })).toMatchObject({
      jobId: 'new',
      isReplay: false,
    })
  })

  it('J8: PENDING of a manager that died is EXPIRED after its time, and the next retry decides what becomes of it', async () => {
    const clock = manualClock()
    const pair = await started({ clock })
    const [key, spec] = [newKey(), { task: 'render' }]
    const { lease, ttl } = jobsContract
    await pair.ledger.claim({
      id: operationId(['principal', `test:${process.pid}`, 'method', 'POST', 'route', '/jobs'], key),
      fingerprint: fingerprint({ method: 'POST', target: '/jobs', payload: { kind: 'value', value: spec } }),
      token: 'the dead manager',
      leaseMs: lease.ms,
      unknownTtlMs: ttl.unknownMs,
      takeover: true,
    })
    await clock.advance(59_999)
    expect(await statuses(pair)).toEqual(['PENDING'])
    await clock.advance(1)
    expect(await statuses(pair)).toEqual(['EXPIRED'])
    expect(await submit(pair.url, key, { ...spec, job_id: 'after' })).toMatchObject({ status: 201, jobId: 'after' })
    expect(await statuses(pair)).toEqual(['COMMITTED'])
  })

  it('J8: a late owner can change nothing of what a later one has decided', async () => {
    const late = hold()
    let isFirst = true
    const clock = manualClock()
    const admit: PairOptions['admit'] = (spec) => {
      if (!isFirst) return undefined
      isFirst = false
      return late.admit(spec)
    }
    const pair = await started({ admit, clock })
    const key = newKey()
    const first = submit(pair.managerUrl, key, { job_id: 'late', task: 'render' })
    await until('it is pending', async () => (await statuses(pair)).includes('PENDING'))
    // Its handler's time, and then what is left of its last renewal.
    await clock.advance(60_000)
    await clock.advance(40_000)
    expect(await statuses(pair)).toEqual(['EXPIRED'])
    const retry = await submit(pair.managerUrl, key, { job_id: 'second', task: 'render' })
    expect(retry).toMatchObject({ status: 201, jobId: 'second' })
    expect(await statuses(pair)).toEqual(['COMMITTED'])
    late.letGo()
    expect((await first).jobId).not.toBe('late')
    expect(await statuses(pair)).toEqual(['COMMITTED'])
    expect(await submit(pair.managerUrl, key)).toMatchObject({ status: 201, jobId: 'second', isReplay: true })
    expect(pair.jobs.all().map(({ id }) => id)).toEqual(['second'])
  })
})

describe('the log', () => {
  it('J11: the reservation is on the disk before the job is looked at, and the answer before it is given', async () => {
    const { admit, letGo } = hold()
    const pair = await started({ admit })
    const answer = submit(pair.url, newKey())
    await until('it is at the manager', async () => (await statuses(pair)).length > 0)
    // What another connection sees is committed, and commits of this store are synced.
    const other = sqliteStore({ path: pair.path })
    try {
      expect((await other.list()).map((record) => statusOf(record).status)).toEqual(['PENDING'])
      expect(pair.jobs.count()).toBe(0)
      letGo()
      expect((await answer).status).toBe(201)
      expect((await other.list()).map((record) => statusOf(record).status)).toEqual(['COMMITTED'])
    } finally {
      await other.close()
    }
  })
})

/** How many claims the gate's cache has been asked for since; each is a submission that has come in. */
function countArrivals({ cache }: Pair['gate']): () => number {
  const { claim } = cache
  let arrived = 0
  cache.claim = function counted(request) {
    arrived += 1
    return claim.call(this, request)
  }
  return () => arrived
}
