import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { traces } from '../../src/contracts/index.ts'
import { defineContract } from '../../src/index.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { measure } from './latency.ts'
import { closed, listen } from './site.ts'
import { Testbed } from './testbed.ts'
import { type Delivery, RETRY_SCHEDULE_MS } from './webhooks.ts'

/** What stands beside the ingestion: webhooks, the operators' routes, the reports, the tour. */
const ROOT = resolve(import.meta.dirname, '../..')
const PATIENCE = { timeout: 30_000 }
const BODY = { agentId: 'agent-1', decision: 'approve' }
const mongod = await findMongod(['--setParameter', 'ttlMonitorEnabled=false'])
let bed: Testbed

beforeAll(async () => {
  if (typeof mongod !== 'string') bed = await Testbed.start(mongod.url, 'beside')
})

afterAll(async () => {
  if (typeof mongod === 'string') return
  await bed.stop()
  await mongod.stop()
})

const title =
  typeof mongod === 'string' ? `beside the traces (skipped: ${mongod})` : `beside the traces, on ${mongod.title}`

describe.skipIf(typeof mongod === 'string')(title, () => {
  it('A14: webhooks are tried again after 1 m, 5 m, 30 m, 2 h and 8 h, and never change the trace’s answer', async () => {
    const clock = manualClock()
    const received: string[] = []
    let status = 500
    const { server, url } = await listen((request, response) => {
      received.push(String(request.headers['webhook-id']))
      response.writeHead(status).end()
    })
    onTestFinished(() => closed(server))
    const hooked = await Testbed.start(urlOf(), 'hooked', {
      clock,
      contract: named(9),
      webhookUrls: new Map([['acme', url]]),
    })
    onTestFinished(() => hooked.stop())
    const deliveries = hooked.db.collection<Delivery>('webhooks')
    const attempted = async (attempts: number) => {
      await expect
        .poll(async () => {
          await clock.advance(0)
          return (await deliveries.findOne({ _id: first.body.traceId ?? '' }))?.attempts
        }, PATIENCE)
        .toBe(attempts)
    }
    const first = await hooked.trace(BODY)
    expect(first.status).toBe(201)
    await attempted(1)
    expect(RETRY_SCHEDULE_MS.map((ms) => ms / 60_000)).toEqual([1, 5, 30, 120, 480])
    for (const [index, minutes] of [1, 5, 30, 120].entries()) {
      await clock.advance(minutes * 60_000 - 1)
      expect(received).toHaveLength(index + 1)
      await clock.advance(1)
      await attempted(index + 2)
      expect((await hooked.trace(BODY)).text).toBe(first.text)
    }
    status = 204
    await clock.advance(480 * 60_000)
    await attempted(6)
    await expect.poll(async () => (await deliveries.findOne({}))?.state, PATIENCE).toBe('delivered')
    expect(received).toEqual(Array(6).fill(first.body.traceId))
    const retry = await hooked.trace(BODY)
    expect([retry.status, retry.text, await deliveries.countDocuments()]).toEqual([201, first.text, 1])
  })

  it('A15: a duplicate name is a 400 VALIDATION_ERROR from a unique index', async () => {
    for (const [path, collection] of [
      ['policies', 'policies'],
      ['approval-patterns', 'approval_patterns'],
      ['alert-rules', 'alert_rules'],
    ]) {
      const send = (apiKey: string) => bed.send(`/api/v1/${path}`, { name: 'twice' }, { apiKey })
      expect((await send('key-acme')).status).toBe(201)
      const again = await send('key-acme')
      expect([again.status, again.body.error?.code]).toEqual([400, 'VALIDATION_ERROR'])
      expect(again.headers.get('idempotent-replayed')).toBeNull()
      expect((await send('key-globex')).status).toBe(201)
      const indexes = await bed.db.collection(collection as string).indexes()
      expect(indexes).toContainEqual(expect.objectContaining({ key: { organizationId: 1, name: 1 }, unique: true }))
    }
  })

  it('A16: the latency report gives the p95 of POST /traces at 64 connections and the cost of the key', async () => {
    const report = await measure({ mongodbUrl: urlOf(), requests: 256 })
    expect(report).toMatchObject({ connections: 64, requests: 256, failures: 0, mongodb: expect.stringMatching(/\d/) })
    expect(report.p95Ms).toBeGreaterThanOrEqual(report.p50Ms)
    expect(report.p50Ms).toBeGreaterThan(0)
    expect(report.keyMicros).toBeGreaterThan(0)
  })

  it('A17: the compliance page maps what is kept to the three texts, and names only what is there', async () => {
    const page = readFileSync(join(ROOT, 'docs/compliance.md'), 'utf8')
    for (const text of ['EU AI Act, Art. 12', 'GDPR, Art. 5(1)(d)', 'ISO/IEC 42001, 8.4']) expect(page).toContain(text)
    await bed.trace(BODY, { key: 'audited' })
    for (const collection of ['idempotency_keys', 'traces']) {
      const filter = collection === 'traces' ? { keySource: 'client' } : { key: 'audited' }
      const kept = Object.keys((await bed.db.collection(collection).findOne(filter)) ?? {}).sort()
      const section = page.split(`### \`${collection}\``)[1]?.split('\n#')[0] ?? ''
      const named = [...section.matchAll(/^\| `(\w+)` \|/gm)].map(([, field]) => field)
      expect(named.sort(), collection).toEqual(kept)
    }
    const files = [...page.matchAll(/\]\(\.\.\/([^)#]+)\)/g)].map(([, file]) => file as string)
    expect(files.length).toBeGreaterThan(5)
    expect(files.filter((file) => !existsSync(join(ROOT, file)))).toEqual([])
  })
})

function urlOf(): string {
  if (typeof mongod === 'string') throw new Error(mongod)
  return mongod.url
}

/** Under a name of its own, so that no other meter in this process hears of it. */
function named(n: number): typeof traces {
  return defineContract(traces, { name: `traces-${n}` })
}
