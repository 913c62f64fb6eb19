import { createHash } from 'node:crypto'
import express from 'express'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { idempotency } from '../../src/adapters/express.ts'
import { traces } from '../../src/contracts/index.ts'
import { defineContract } from '../../src/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { closed, listen } from './site.ts'
import { type Gate, gate, Testbed } from './testbed.ts'

const PATIENCE = { timeout: 30_000 }
const mongod = await findMongod(['--setParameter', 'ttlMonitorEnabled=false'])
const gates = new Map<string, Gate>()
let bed: Testbed
let traceCount = 0

beforeAll(async () => {
  if (typeof mongod === 'string') return
  const assess = async ({ decision }: { decision: string }) => {
    await gates.get(decision)?.passed
    return 0.9
  }
  bed = await Testbed.start(mongod.url, 'traces', { assess })
  await bed.trace({ agentId: 'warm', decision: 'up' })
})

afterAll(async () => {
  if (typeof mongod === 'string') return
  await bed.stop()
  await mongod.stop()
})

/** A body that no other test has sent. */
function some(over: object = {}): { agentId: string; decision: string } {
  return { agentId: 'agent-1', decision: `decision ${++traceCount}`, ...over }
}

const title = typeof mongod === 'string' ? `traces (skipped: ${mongod})` : `traces, on ${mongod.title}`

describe.skipIf(typeof mongod === 'string')(title, () => {
  it('A1: only POST /api/v1/traces reaches the records of keys; other writes and all reads do not', async () => {
    bed.keyCommands()
    for (const path of ['policies', 'approval-patterns', 'alert-rules']) {
      expect((await bed.send(`/api/v1/${path}`, { name: 'x' }, { key: 'k' })).status).toBe(201)
      expect((await bed.send(`/api/v1/${path}`, { name: 'x' }, { key: 'k' })).status).toBe(400)
      expect((await bed.send(`/api/v1/${path}/x`, undefined, { key: 'k', method: 'DELETE' })).status).toBe(204)
      expect((await bed.send(`/api/v1/${path}/x`, undefined, { key: 'k', method: 'DELETE' })).status).toBe(404)
    }
    for (const path of ['traces', 'usage', 'status', 'policies']) {
      expect((await bed.send(`/api/v1/${path}`, undefined, { key: 'k' })).status).toBe(200)
    }
    expect(bed.keyCommands()).toEqual([])
    await bed.trace(some())
    expect(bed.keyCommands()).not.toEqual([])
  })

  it('A2: the client’s key is trimmed and has at most 256 characters; an empty one counts as absent', async () => {
    const body = some()
    const first = await bed.trace(body, { key: '  spaced-key ' })
    const retry = await bed.trace(body, { key: 'spaced-key' })
    expect([first.status, retry.headers.get('idempotent-replayed')]).toEqual([201, 'true'])
    expect((await bed.trace(some(), { key: 'k'.repeat(256) })).status).toBe(201)
    const tooLong = await bed.trace(some(), { key: 'k'.repeat(257) })
    expect([tooLong.status, tooLong.body.error?.code]).toEqual([400, expect.any(String)])
    expect((await bed.trace(some(), { key: '   ' })).body.keySource).toBe('auto')
  })

  it('A3: without a key it is the SHA-256 of agent, organization and body', async () => {
    const body = { agentId: 'agent-7', decision: 'approve', at: '2026-11-15T10:00:00Z' }
    const first = await bed.trace(body)
    const key = createHash('sha256')
      .update(`agent-7:acme:${JSON.stringify(body)}`)
      .digest('hex')
    const record = await bed.db.collection('idempotency_keys').findOne({ key })
    expect(record).toMatchObject({ key: expect.stringMatching(/^[0-9a-f]{64}$/), organizationId: 'acme', status: 201 })
    const retry = await bed.trace(body)
    expect([retry.text, retry.headers.get('idempotent-replayed')]).toEqual([first.text, 'true'])
    const later = await bed.trace({ ...body, at: '2026-11-15T10:00:01Z' })
    const elsewhere = await bed.trace(body, { apiKey: 'key-globex' })
    const another = await bed.trace({ ...body, agentId: 'agent-8' })
    const ids = [first, later, elsewhere, another].map((answer) => answer.body.traceId)
    expect(new Set(ids).size).toBe(4)
  })

  it('A4: the handler sees whether the key is the client’s or was made', async () => {
    expect((await bed.trace(some(), { key: 'mine' })).body.keySource).toBe('client')
    const { body } = await bed.trace(some())
    expect(body.keySource).toBe('auto')
    expect(await bed.service.pipeline.list('acme')).toContainEqual(
      expect.objectContaining({ _id: body.traceId, keySource: 'auto' }),
    )
  })

  it('A5: one collection, unique by key and organization, with a TTL index; an answer is kept for 24 hours', async () => {
    const keys = bed.db.collection('idempotency_keys')
    const indexes = await keys.indexes()
    expect(indexes).toContainEqual(expect.objectContaining({ key: { key: 1, organizationId: 1 }, unique: true }))
    expect(indexes).toContainEqual(expect.objectContaining({ key: { goneAt: 1 }, expireAfterSeconds: 0 }))
    const startedMs = performance.now()
    await bed.trace(some(), { key: 'for-a-day' })
    const record = await keys.findOne({ key: 'for-a-day', organizationId: 'acme' })
    const tookMs = performance.now() - startedMs
    const keptMs = Number(record?.expiresAt) - Number(record?.createdAt)
    expect(keptMs).toBeGreaterThanOrEqual(DAY_MS)
    expect(keptMs).toBeLessThanOrEqual(DAY_MS + tookMs + 1)
    expect(record?.goneAt).toEqual(record?.expiresAt)
    const copy = { ...record, _id: 'another' as never }
    await expect(keys.insertOne(copy)).rejects.toMatchObject({ code: 11_000 })
  })

  it('A6: a reservation is one findOneAndUpdate with upsert, with its four answers', async () => {
    const body = some()
    const door = gate()
    gates.set(body.decision, door)
    bed.keyCommands()
    const first = bed.trace(body, { key: 'four' })
    await expect.poll(() => bed.db.collection('idempotency_keys').countDocuments({ key: 'four' }), PATIENCE).toBe(1)
    // Reserved: nothing but the one command went to the server.
    expect(bed.keyCommands().filter(isReservation)).toHaveLength(1)
    expect((await bed.trace(body, { key: 'four' })).status).toBe(409)
    expect(bed.keyCommands().map(({ commandName }) => commandName)).toEqual(['findAndModify'])
    door.open()
    const answer = await first
    bed.keyCommands()
    expect((await bed.trace(body, { key: 'four' })).text).toBe(answer.text)
    const commands = bed.keyCommands()
    expect(commands.map(({ commandName }) => commandName)).toEqual(['findAndModify'])
    expect(commands.filter(isReservation)).toHaveLength(1)
  })

  it('A6: of many that race to insert one record, one is reserved and all others are told that it is processing', async () => {
    const racers = await Promise.all(
      [0, 1, 2].map((n) => Testbed.start(urlOf(), 'race', { assess: held, contract: named(n) })),
    )
    onTestFinished(async () => void (await Promise.all(racers.map((racer) => racer.stop()))))
    for (let round = 0; round < 5; round++) {
      const body = some()
      const door = gate()
      gates.set(body.decision, door)
      const seen: number[] = []
      const sent = racers.flatMap((racer) =>
        Array.from({ length: 10 }, async () => {
          const { status } = await racer.trace(body)
          seen.push(status)
        }),
      )
      await expect.poll(() => seen.length, PATIENCE).toBe(29)
      expect(new Set(seen)).toEqual(new Set([409]))
      door.open()
      await Promise.all(sent)
      expect(seen.at(-1)).toBe(201)
    }
  })

  it('A7: a retry of a completed trace gets the same status and bytes, and the handler does not run', async () => {
    const body = some()
    const first = await bed.trace(body, { key: 'seven' })
    const before = await bed.db.collection('traces').countDocuments()
    const retry = await bed.trace(body, { key: 'seven' })
    expect([retry.status, retry.text]).toEqual([201, first.text])
    expect(retry.headers.get('idempotent-replayed')).toBe('true')
    expect(await bed.db.collection('traces').countDocuments()).toBe(before)
    // The handler would answer these two, too.
    const refused = await bed.trace({ agentId: 7 }, { key: 'refused' })
    const again = await bed.trace({ agentId: 7 }, { key: 'refused' })
    expect([refused.status, again.text, again.headers.get('idempotent-replayed')]).toEqual([400, refused.text, 'true'])
  })

  it('A8: a retry while the first is in flight gets 409', async () => {
    const body = some()
    const door = gate()
    gates.set(body.decision, door)
    const first = bed.trace(body)
    await expect.poll(async () => (await bed.trace(body)).status, PATIENCE).toBe(409)
    const refused = await bed.trace(body)
    expect(refused.body.error).toEqual({ code: expect.any(String), message: expect.any(String) })
    door.open()
    expect((await first).status).toBe(201)
    expect((await bed.trace(body)).headers.get('idempotent-replayed')).toBe('true')
  })

  it('A9: completion flips the record and stores status and body', async () => {
    const body = some()
    const door = gate()
    gates.set(body.decision, door)
    const keys = bed.db.collection('idempotency_keys')
    const first = bed.trace(body, { key: 'nine' })
    await expect.poll(() => keys.countDocuments({ key: 'nine' }), PATIENCE).toBe(1)
    const before = await keys.findOne({ key: 'nine' })
    expect([before?.outcome, before?.status, before?.body]).toEqual([undefined, undefined, undefined])
    door.open()
    const { text } = await first
    const after = await keys.findOne({ key: 'nine' }, { promoteBuffers: true })
    expect(after).toMatchObject({ outcome: 'committed', status: 201 })
    expect(Buffer.from(after?.body).toString()).toBe(text)
  })

  it('A11: a hash that throws leaves the trace without a key, and it is taken and counted all the same', async () => {
    // JSON.stringify runs out of stack on it, though it was parsed without trouble.
    const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
    const text = `{"agentId":"deep","decision":"deeper","metadata":${deep}}`
    const before = [await bed.usage(), (await bed.send('/api/v1/status')).body.unprotected as number] as const
    const first = await bed.trace(undefined, { text })
    expect([first.status, first.body.keySource]).toEqual([201, 'none'])
    expect(await bed.usage()).toBe(before[0] + 1)
    expect((await bed.send('/api/v1/status')).body.unprotected).toBe(before[1] + 1)
    expect(bed.log.at(-1)).toContain('Maximum call stack')
    const stored = await bed.service.pipeline.list('acme')
    expect(stored.find(({ _id }) => _id === first.body.traceId)?.body).toBe(text)
    // Nothing is kept for it: the next one is another trace.
    expect((await bed.trace(undefined, { text })).body.traceId).not.toBe(first.body.traceId)
  })

  it('A12: the client cannot switch it off', async () => {
    const body = some()
    const first = await bed.trace(body)
    const before = await bed.db.collection('traces').countDocuments()
    for (const key of ['', ' ', undefined]) {
      const again = await bed.trace(body, key === undefined ? {} : { key })
      expect([again.text, again.headers.get('idempotent-replayed')]).toEqual([first.text, 'true'])
    }
    await bed.send('/api/v1/traces?idempotency=off', body)
    expect(await bed.db.collection('traces').countDocuments()).toBe(before)
  })

  it('A13: 200 concurrent retries of one trace raise the organization’s count by one', async () => {
    const before = await bed.usage()
    const body = some()
    const answers = await Promise.all(Array.from({ length: 200 }, () => bed.trace(body)))
    expect(answers.filter(({ status }) => status !== 201 && status !== 409)).toEqual([])
    const bodies = new Set(answers.filter(({ status }) => status === 201).map(({ text }) => text))
    expect(bodies.size).toBe(1)
    expect(await bed.usage()).toBe(before + 1)
    expect((await bed.send('/api/v1/usage')).body).toEqual({ traces: before + 1, waiting: 0 })
    const [other] = [await bed.usage('globex')]
    await bed.trace(body, { apiKey: 'key-globex' })
    expect([await bed.usage('globex'), await bed.usage()]).toEqual([other + 1, before + 1])
  })

  it('A13: what another process has answered and not lived to count is made good', async () => {
    const before = await bed.usage()
    // Its events do not reach this meter, as those of a process that was killed would not.
    const dead = express().use(express.json())
    const { store } = bed.service
    const contract = defineContract(traces, { name: 'dead' })
    const layer = idempotency({ store, contract, principal: () => 'acme', labels: true })
    dead.post('/api/v1/traces', layer, (_request, response) => void response.status(201).json({ traceId: 'dead' }))
    const { server, url } = await listen(dead)
    onTestFinished(() => closed(server))
    const headers = { 'content-type': 'application/json', 'idempotency-key': 'uncounted' }
    const body = some()
    await fetch(`${url}/api/v1/traces`, { method: 'POST', headers, body: JSON.stringify(body) })
    expect(await bed.usage()).toBe(before)
    await bed.service.meter.catchUp(store)
    expect(await bed.usage()).toBe(before + 1)
    expect((await bed.trace(body, { key: 'uncounted' })).body.traceId).toBe('dead')
    expect(await bed.usage()).toBe(before + 1)
  })
})

const DAY_MS = 86_400_000

function isReservation({ commandName, command }: { commandName: string; command: { upsert?: unknown } }): boolean {
  return commandName === 'findAndModify' && command.upsert === true
}

function urlOf(): string {
  if (typeof mongod === 'string') throw new Error(mongod)
  return mongod.url
}

/** Under a name of its own, so that no other meter in this process hears of it. */
function named(n: number): typeof traces {
  return defineContract(traces, { name: `traces-${n}` })
}

async function held({ decision }: { decision: string }): Promise<number> {
  await gates.get(decision)?.passed
  return 1
}
