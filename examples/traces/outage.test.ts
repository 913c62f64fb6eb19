import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { traces } from '../../src/contracts/index.ts'
import { defineContract } from '../../src/index.ts'
import type { Server } from '../../test/services/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import type { Trace } from './pipeline.ts'
import type { TracesOptions } from './service.ts'
import { gate, Testbed } from './testbed.ts'

const PATIENCE = { timeout: 30_000 }
const mongod = await findMongod(['--setParameter', 'enableTestCommands=1'])
let beds = 0

afterAll(async () => {
  if (typeof mongod !== 'string') await mongod.stop()
})

const title = typeof mongod === 'string' ? `outages (skipped: ${mongod})` : `outages of ${mongod.title}`

describe.skipIf(typeof mongod === 'string')(title, () => {
  it('A10 A13: killed in the middle of a retry storm: every trace gets its 201, is kept and is counted once', async () => {
    const bed = await given()
    const bodies = some(20)
    let answered = 0
    const storm = bodies.flatMap((body) =>
      Array.from({ length: 5 }, async () => {
        const { status } = await bed.trace(body)
        answered++
        return status
      }),
    )
    await expect.poll(() => answered, { ...PATIENCE, interval: 1 }).toBeGreaterThan(5)
    await server().kill()
    const statuses = new Set(await Promise.all(storm))
    // Each client retries until it has its 201. One that was refused while another ran is served by the next attempt.
    const retries = await Promise.all(bodies.map((body) => bed.trace(body)))
    expect(retries.map(({ status }) => status)).toEqual(bodies.map(() => 201))
    expect([...statuses].filter((status) => status !== 201 && status !== 409)).toEqual([])
    const during = (await bed.send('/api/v1/status')).body
    expect(during.unprotected).toBeGreaterThanOrEqual(bodies.length)
    expect(during.buffered).toBeGreaterThan(0)
    expect(bed.log.filter((line) => line.startsWith('trace without idempotency: acme'))).toHaveLength(
      Number(during.unprotected),
    )
    await server().start()
    await expect.poll(() => bed.service.pipeline.buffered, PATIENCE).toBe(0)
    expect(await bed.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(bodies.length)
    expect((await bed.usage()) - probes(bed)).toBe(bodies.length)
    // Recovered: from now on it is protected again, and a late retry of an old one is not billed again.
    await expect.poll(() => isProtected(bed), PATIENCE).toBe(true)
    for (const body of bodies) await bed.trace(body)
    expect(await bed.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(bodies.length)
    expect((await bed.usage()) - probes(bed)).toBe(bodies.length)
  })

  it('A10: a slow store does not hold a trace up', async () => {
    const bed = await given()
    const before = Number((await bed.send('/api/v1/status')).body.unprotected)
    const [body] = some(1)
    server().freeze()
    const slow = await bed.trace(body).finally(() => server().thaw())
    expect([slow.status, slow.headers.get('idempotent-recorded')]).toEqual([201, 'false'])
    expect((await bed.send('/api/v1/status')).body.unprotected).toBe(before + 1)
    await expect.poll(() => isProtected(bed), PATIENCE).toBe(true)
    await expect.poll(() => bed.service.pipeline.buffered, PATIENCE).toBe(0)
    expect(await bed.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(1)
  })

  it('A10: a store that throws does not stop a trace', async () => {
    const bed = await given({ storeMsMax: 10_000 })
    const admin = bed.db.admin()
    const data = {
      failCommands: ['findAndModify'],
      errorCode: 8_000,
      namespace: `${bed.db.databaseName}.idempotency_keys`,
    }
    await admin.command({ configureFailPoint: 'failCommand', mode: 'alwaysOn', data })
    const [body] = some(1)
    const answers = [await bed.trace(body), await bed.trace(body)]
    await admin.command({ configureFailPoint: 'failCommand', mode: 'off' })
    expect(answers.map(({ status }) => status)).toEqual([201, 201])
    expect(answers.map(({ body: { traceId } }) => traceId)).toEqual(Array(2).fill(answers[0]?.body.traceId))
    expect((await bed.send('/api/v1/status')).body).toMatchObject({ unprotected: 2, buffered: 0 })
    expect(await bed.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(1)
    expect((await bed.usage()) - probes(bed)).toBe(1)
  })

  it('A6: a duplicate-key error, as of two inserts that race, is answered as processing', async () => {
    const door = gate()
    const assess = async ({ agentId }: Trace) => {
      if (agentId === 'agent-1') await door.passed
      return 1
    }
    const bed = await given({ storeMsMax: 10_000, assess })
    const [body] = some(1)
    const first = bed.trace(body, { key: 'raced' })
    await expect.poll(() => bed.db.collection('idempotency_keys').countDocuments({ key: 'raced' }), PATIENCE).toBe(1)
    const namespace = `${bed.db.databaseName}.idempotency_keys`
    const data = { failCommands: ['findAndModify'], errorCode: 11_000, namespace }
    bed.keyCommands()
    await bed.db.admin().command({ configureFailPoint: 'failCommand', mode: { times: 1 }, data })
    expect((await bed.trace(body, { key: 'raced' })).status).toBe(409)
    // The one that failed, and the one that then saw who was faster.
    expect(bed.keyCommands().map(({ commandName }) => commandName)).toEqual(['findAndModify', 'findAndModify'])
    door.open()
    expect((await first).status).toBe(201)
    expect(await bed.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(1)
  })

  it('A10 A13: a process that ends while MongoDB is away leaves its traces on disk; the next one keeps and counts them', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-spool-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    const spoolFile = join(folder, 'spool.jsonl')
    const name = `outage_${++beds}`
    const first = await Testbed.start(server().url, name, { spoolFile, storeMsMax: 250, contract: named() })
    await first.trace({ agentId: 'warm', decision: 'up' })
    await first.usage()
    await server().kill()
    const bodies = some(5)
    const answers = await Promise.all(bodies.map((body) => first.trace(body)))
    expect(answers.map(({ status }) => status)).toEqual(bodies.map(() => 201))
    await first.stop()
    expect(readFileSync(spoolFile, 'utf8').trim().split('\n')).toHaveLength(bodies.length)
    await server().start()
    const second = await Testbed.start(server().url, name, { spoolFile, contract: named() })
    onTestFinished(() => second.stop())
    await expect.poll(() => second.service.pipeline.buffered, PATIENCE).toBe(0)
    expect(await second.db.collection('traces').countDocuments({ agentId: 'agent-1' })).toBe(bodies.length)
    expect(await second.usage()).toBe(bodies.length + 1)
    await expect.poll(() => readFileSync(spoolFile, 'utf8'), PATIENCE).toBe('')
  })
})

function server(): Server {
  if (typeof mongod === 'string') throw new Error(mongod)
  return mongod
}

/** A service that does not wait long for MongoDB, warmed up. */
async function given(over: Partial<TracesOptions> = {}): Promise<Testbed> {
  const bed = await Testbed.start(server().url, `outage_${++beds}`, { storeMsMax: 250, contract: named(), ...over })
  onTestFinished(() => bed.stop())
  await expect.poll(() => isProtected(bed), PATIENCE).toBe(true)
  await bed.service.meter.idle()
  return bed
}

function named(): typeof traces {
  return defineContract(traces, { name: `outage-${beds}` })
}

function some(count: number): Array<{ agentId: string; decision: string }> {
  return Array.from({ length: count }, (_, i) => ({ agentId: 'agent-1', decision: `decision ${i}` }))
}

const probed = new Map<Testbed, Set<string>>()

/** Sends a trace of another agent, twice: is the second one known? */
async function isProtected(bed: Testbed): Promise<boolean> {
  const sent = probed.get(bed) ?? new Set()
  probed.set(bed, sent)
  const body = { agentId: 'probe', decision: `probe ${sent.size}` }
  sent.add(body.decision)
  await bed.trace(body)
  return (await bed.trace(body)).headers.get('idempotent-replayed') === 'true'
}

function probes(bed: Testbed): number {
  return probed.get(bed)?.size ?? 0
}
