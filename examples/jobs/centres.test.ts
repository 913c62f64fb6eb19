import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterAll, describe, expect, it } from 'vitest'
import { idempotentFetch, isReplay, structuredKeys } from '../../src/client/index.ts'
import { findOwn } from '../../test/services/index.ts'
import { type Centre, type Centres, startCentres } from './centres.ts'
import { JobTable } from './job-table.ts'
import { newKey, submit, until } from './support.ts'

/** Short enough that what a dead manager held is free again soon; a busy machine only makes retries of it. */
const ENV = { IDEMPOTENCY_PENDING_TTL_SECONDS: '1', IDEMPOTENCY_PENDING_WAIT_TIMEOUT: '1' }

const nats = await findOwn('nats')
const missing = typeof nats === 'string' ? nats : false
const started: Centres | undefined =
  typeof nats === 'string' ? undefined : await startCentres({ natsUrl: nats.url, env: ENV, slowLedgerMs: 30 })
const [dc1, dc2] = (started?.centres ?? []) as [Centre, Centre]

afterAll(async () => {
  await started?.stop()
  if (typeof nats !== 'string') await nats.stop()
})

/** The jobs of both data centres, from their files: what really happened. */
function jobsUnder(key?: string): ReadonlyArray<{ readonly id: string; readonly key: string; readonly where: string }> {
  return [dc1, dc2].flatMap(({ ledgerPath, name }) => {
    const db = new DatabaseSync(ledgerPath)
    const rows = db.prepare('SELECT id, key FROM jobs').all()
    db.close()
    return rows
      .map((row) => ({ id: String(row.id), key: String(row.key), where: name }))
      .filter((job) => key === undefined || job.key === key)
  })
}

async function statusAt({ manager }: Centre, key: string): Promise<string | undefined> {
  const response = await fetch(new URL('/ledger', manager.url))
  const entries = response.ok ? ((await response.json()) as ReadonlyArray<{ key: string; status: string }>) : []
  return entries.find((entry) => entry.key === key)?.status
}

/** Sends it until there is a job, as a client does that does not give up. */
async function submitted(url: string, key: string, body: unknown): Promise<string> {
  let jobId: string | undefined
  await until(`${key} has a job`, async () => {
    jobId = (await submit(url, key, body).catch(() => undefined))?.jobId
    return jobId !== undefined
  })
  return jobId as string
}

describe.skipIf(missing)(`two data centres, each with its own ledger${missing ? `: ${missing}` : ''}`, () => {
  it('J4: the same key in both at once is one job, and both get its id', async () => {
    const keys = Array.from({ length: 10 }, newKey)
    for (const key of keys) {
      const [one, other] = await Promise.all([
        submitted(dc1.gate.url, key, { job_id: `${key}-1`, task: 'render', review_ms: 5 }),
        submitted(dc2.gate.url, key, { job_id: `${key}-2`, task: 'render', review_ms: 5 }),
      ])
      expect(one).toBe(other)
      expect(jobsUnder(key).map(({ id }) => id)).toEqual([one])
    }
  })

  it('J4: what one has answered, the other replays, and from then on has in its own ledger', async () => {
    const key = newKey()
    const jobId = await submitted(dc1.gate.url, key, { task: 'render' })
    expect(await submitted(dc2.manager.url, key, { job_id: 'other', task: 'render' })).toBe(jobId)
    dc2.link.cut()
    try {
      expect(await submitted(dc2.manager.url, key, { task: 'render' })).toBe(jobId)
    } finally {
      dc2.link.heal()
    }
    expect(jobsUnder(key)).toHaveLength(1)
  })

  it('J4: cut off, a data centre runs nothing that it cannot agree on; healed, it agrees', async () => {
    const key = newKey()
    const body = { task: 'render' }
    dc2.link.cut()
    let jobId: string
    try {
      const refused = await submit(dc2.gate.url, key, body)
      expect(refused.status).toBe(503)
      expect(JSON.parse(refused.text)).toMatchObject({ code: 'store-unavailable' })
      jobId = await submitted(dc1.gate.url, key, body)
      expect((await submit(dc2.gate.url, key, body)).status).toBe(503)
    } finally {
      dc2.link.heal()
    }
    expect(await submitted(dc2.gate.url, key, body)).toBe(jobId)
    expect(jobsUnder(key)).toMatchObject([{ id: jobId, where: 'dc1' }])
  })

  it('J4: what a dead manager held is run elsewhere only after that manager has said that it did not', async () => {
    const body = { task: 'render', review_ms: 600 }
    let key = newKey()
    // A busy machine may miss the moment; then another key is tried.
    for (let tries = 0; tries < 20; tries++, key = newKey()) {
      void submit(dc1.manager.url, key, { ...body, job_id: 'first' }).catch(() => {})
      let status: string | undefined
      await until('it is known', async () => {
        status = await statusAt(dc1, key)
        return status !== undefined
      })
      if (status === 'PENDING') break
    }
    await dc1.manager.kill()
    await until('its time is over', async () => (await statusAt(dc2, key)) === 'EXPIRED')
    await until('it is refused, because nobody knows', async () => {
      const { jobId, text } = await submit(dc2.manager.url, key, body)
      expect(jobId).toBe(undefined)
      return text.includes('outcome-unknown')
    })
    expect(jobsUnder(key).filter(({ where }) => where === 'dc2')).toEqual([])
    await dc1.manager.start()
    const jobId = await submitted(dc2.manager.url, key, { ...body, job_id: 'second' })
    expect(jobsUnder(key).map(({ id }) => id)).toEqual([jobId])
  })

  it('J3: a manager killed between the job and its record: the job is found, here and from elsewhere', async () => {
    for (const retryAt of [dc1, dc2]) {
      let key = newKey()
      // Its record takes a moment more, so the job is usually seen before it; if not, another key is tried.
      for (let tries = 0; tries < 20; tries++, key = newKey()) {
        const sent = submit(dc1.manager.url, key, { task: 'render', job_id: `first ${key}` }).catch(() => undefined)
        await until('its job is made', () => jobsUnder(key).length > 0)
        await dc1.manager.kill()
        const wasAnswered = (await sent) !== undefined
        await dc1.manager.start()
        if (!wasAnswered) break
      }
      expect(await submitted(retryAt.manager.url, key, { task: 'render', job_id: 'second' })).toBe(`first ${key}`)
      expect(jobsUnder(key)).toHaveLength(1)
    }
  })

  it('J11: a manager that was killed right after its answer knows it when it is back', async () => {
    const key = newKey()
    const jobId = await submitted(dc1.manager.url, key, { task: 'render' })
    await dc1.manager.kill()
    await dc1.manager.start()
    // From its own log, and from nowhere else.
    dc1.link.cut()
    try {
      expect(await submitted(dc1.manager.url, key, { job_id: 'again', task: 'render' })).toBe(jobId)
    } finally {
      dc1.link.heal()
    }
    expect(jobsUnder(key)).toHaveLength(1)
  })

  it('J3: gates and managers killed at random with -9: no submission is doubled, none is lost', async () => {
    const KILLS = 10
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-chaos-'))
    const keys = structuredKeys({ file: join(folder, 'client.db'), clientId: 'chaos' })
    const answers = new Map<string, Set<string>>()
    let isOver = false
    const lanes = Array.from({ length: 16 }, async () => {
      while (!isOver) {
        const key = keys.next()
        // Every answered submission is asked for once more, in the end with everything alive.
        answers.set(key, new Set([await stubborn(key), await stubborn(key)]))
      }
    })
    try {
      for (let kill = 0; kill < KILLS; kill++) {
        const { gate, manager } = Math.random() < 0.5 ? dc1 : dc2
        const victim = Math.random() < 0.6 ? manager : gate
        const before = answers.size
        await victim.kill()
        await victim.start()
        await until('submissions are answered again', () => answers.size > before)
      }
    } finally {
      isOver = true
    }
    await Promise.all(lanes)
    keys.close()
    rmSync(folder, { recursive: true })

    const made = Map.groupBy(
      jobsUnder().filter(({ key }) => key.startsWith('chaos:')),
      ({ key }) => key,
    )
    const doubled = [...made].filter(([, jobs]) => jobs.length !== 1)
    const wrong = [...answers].filter(([key, ids]) => ids.size !== 1 || !ids.has(made.get(key)?.[0]?.id ?? ''))
    expect({ doubled, wrong, unasked: [...made.keys()].filter((key) => !answers.has(key)) }).toEqual({
      doubled: [],
      wrong: [],
      unasked: [],
    })
    expect(answers.size).toBeGreaterThan(KILLS)
    console.log(`J3: ${answers.size} submissions, ${KILLS} kills`)
  })
})

describe('the fence', () => {
  it('J4: an attempt that was overtaken can no longer make the job, a later one can', () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-table-'))
    const table = new JobTable(join(folder, 'ledger.db'), 1_000, () => 0)
    const job = (id: string) => ({ id, spec: {} })
    expect(table.fence('s', 2)).toBe(undefined)
    expect(table.add({ id: 's', key: 'k', attempt: 1 }, job('late'))).toBe(undefined)
    expect(table.add({ id: 's', key: 'k', attempt: 2 }, job('right'))).toEqual(job('right'))
    expect(table.add({ id: 's', key: 'k', attempt: 3 }, job('more'))).toEqual(job('right'))
    expect(table.fence('s', 4)).toEqual(job('right'))
    expect(table.count()).toBe(1)
    table.close()
    rmSync(folder, { recursive: true })
  })
})

/** A client that retries with the same key, at whichever gate, until it has an answer. */
async function stubborn(key: string): Promise<string> {
  const send = idempotentFetch({
    // Each attempt goes to a gate of its own choice, and asks for another job id.
    fetch: (_, init) => {
      const { gate } = Math.random() < 0.5 ? dc1 : dc2
      const body = JSON.stringify({ task: 'render', review_ms: 10, job_id: crypto.randomUUID() })
      return fetch(new URL('/jobs', gate.url), { ...init, body })
    },
    shouldRetry: ({ response }) => response === undefined || (response.status >= 400 && !isReplay(response)),
    retries: 1_000,
    backoffMs: 20,
    backoffMsMax: 200,
    attemptMsMax: 5_000,
    deadlineMs: 60_000,
  })
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '', idempotencyKey: key }
  const response = await send('http://gates.test/jobs', init)
  const { job_id: jobId } = (await response.json()) as { job_id?: string }
  if (jobId === undefined) throw new Error(`${key} ended with ${response.status}`)
  return jobId
}
