import { once } from 'node:events'
import { join, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, expect, it, onTestFinished } from 'vitest'
import { payments } from '../../src/contracts/index.ts'
import { type AuditEntry, openAudit, verifyAudit } from '../../src/guards/audit.ts'
import { defineContract } from '../../src/index.ts'
import { start } from './example.ts'
import { type DaemonProcess, networkTo, spawnClient, spawnDaemon } from './processes.ts'
import { auditOf, envelopeOf, openSite, pay, tempFolder } from './site.ts'

const KILL_AT = resolve(import.meta.dirname, '../../test/fixtures/kill-at.ts')
const ASK_EVERY_MS = 50
/** Its quarter is how long the store may take, on a machine that others use, too. */
const LEASE_MS = 2_000

async function answerOf(client: ReturnType<typeof spawnClient>): Promise<string> {
  let text = ''
  for await (const chunk of client.stdout ?? []) text += chunk
  return text.trim()
}

/** A screening that the test holds up, and knows of. */
function heldScreening() {
  const asked = Promise.withResolvers<void>()
  const allowed = Promise.withResolvers<boolean>()
  const screen = () => {
    asked.resolve()
    return allowed.promise
  }
  return { screen, asked: asked.promise, allow: () => allowed.resolve(true) }
}

describe('S9: clients and the network fail', () => {
  it('S9: a client process that is killed in the middle: another process gets the decision of the first request', async () => {
    const { screen, asked, allow } = heldScreening()
    const { url, decisions, audit } = await openSite({ screen })
    const body = JSON.stringify(envelopeOf())
    const first = spawnClient(url, 'k-1', body)
    const exited = once(first, 'exit')
    await asked
    first.kill('SIGKILL')
    await exited
    const second = spawnClient(url, 'k-1', body)
    allow()
    const answer = await answerOf(second)
    expect(answer).toMatch(/^200 \{"decision":"allow"/)
    expect(await answerOf(spawnClient(url, 'k-1', body))).toBe(answer)
    expect(decisions.count()).toBe(1)
    await audit.idle()
    const { request_hash } = JSON.parse(answer.slice('200 '.length))
    expect((await auditOf(url, request_hash)).filter(({ kind }) => kind === 'event')).toHaveLength(1)
  })

  it('S9: a client that is gone before its request was decided finds it decided, once', async () => {
    const { url, decisions } = await openSite()
    const body = JSON.stringify(envelopeOf())
    const victim = spawnClient(url, 'k-1', body, true)
    await once(victim, 'exit')
    expect(victim.signalCode).toBe('SIGKILL')
    expect(await answerOf(spawnClient(url, 'k-1', body))).toMatch(/^200 /)
    expect(decisions.count()).toBe(1)
  })

  it('S9: after a partition that lost the answer has healed, the retry gets that answer', async () => {
    const { url, decisions } = await openSite()
    const network = await networkTo(url)
    onTestFinished(() => network.close())
    const envelope = envelopeOf()
    network.state = 'loses-answers'
    for (let i = 0; i < 3; i++) await expect(pay(network.url, 'k-1', envelope)).rejects.toThrow('fetch failed')
    expect(decisions.count()).toBe(1)
    network.state = 'whole'
    const healed = await pay(network.url, 'k-1', envelope)
    expect(healed).toMatchObject({ status: 200, isReplay: true, body: { decision: 'allow' } })
    expect(decisions.count()).toBe(1)
  })

  it('S9: after a partition that lost the request has healed, the retry is the first', async () => {
    const { url, decisions } = await openSite()
    const network = await networkTo(url)
    onTestFinished(() => network.close())
    const envelope = envelopeOf()
    network.state = 'loses-requests'
    await expect(pay(network.url, 'k-1', envelope)).rejects.toThrow('fetch failed')
    expect(decisions.count()).toBe(0)
    network.state = 'whole'
    expect(await pay(network.url, 'k-1', envelope)).toMatchObject({ status: 200, isReplay: false })
    expect(await pay(url, 'k-1', envelope)).toMatchObject({ status: 200, isReplay: true })
    expect(decisions.count()).toBe(1)
  })

  it('S9: a daemon that loses its lease in the middle shares the decision of the one that took over', async () => {
    const held = heldScreening()
    const data = tempFolder()
    const contract = defineContract(payments, { lease: { ms: LEASE_MS, handlerMsMax: LEASE_MS }, waitMsMax: LEASE_MS })
    const { url, decisions, audit } = await openSite({ data, contract, screen: firstOnly(held.screen) })
    const envelope = envelopeOf()
    const slow = pay(url, 'k-1', envelope)
    await held.asked
    // The first run hangs for longer than its lease may last: the retry waits, takes over, and meets its own nonce.
    const taken = await payUntilFree(url, envelope)
    expect(taken).toMatchObject({ status: 200, body: { decision: 'allow' } })
    held.allow()
    expect((await slow).body).toEqual(taken.body)
    expect(decisions.count()).toBe(1)
    await audit.idle()
    expect((await auditOf(url, taken.body.request_hash)).filter(({ kind }) => kind === 'event')).toHaveLength(1)
  })
})

function firstOnly(screen: () => Promise<boolean>): () => Promise<boolean> {
  let count = 0
  return async () => (count++ === 0 ? screen() : true)
}

describe('S9: the daemon fails', () => {
  it('S9: kill -9 after the answer: started again on its files it replays it, and goes on in the same chain', async () => {
    const data = tempFolder()
    const envelope = envelopeOf()
    const doomed = await daemonOf(data)
    const first = await pay(doomed.url, 'k-1', envelope)
    await doomed.kill('SIGKILL')
    const revived = await daemonOf(data)
    expect(await pay(revived.url, 'k-1', envelope)).toEqual({ ...first, isReplay: true })
    expect(await pay(revived.url, 'k-2', envelope)).toMatchObject({ body: { code: 'protocol.nonce_replay' } })
    expect(await pay(revived.url, 'k-3', envelopeOf())).toMatchObject({ status: 200, isReplay: false })
    await revived.kill('SIGTERM')
    expect(await verifyAudit(join(data, 'audit.log'))).toMatchObject({ state: 'intact', lines: 5 })
  })

  it('S9: kill -9 at points all along the pipeline: the retry is decided, with one decision and one event', async () => {
    const seen = { replayed: 0, rerun: 0 }
    let next = 0
    let isReached = true
    const worker = async () => {
      while (isReached && next < POINTS_MAX) {
        const outcome = await killAndRetry(1 + POINTS_APART * next++)
        if (outcome === undefined) isReached = false
        else seen[outcome]++
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, worker))
    expect(isReached).toBe(false)
    // None would mean that no point was between the claim and the answer.
    expect(seen.rerun).toBeGreaterThan(0)
    console.log('killed in the middle; then:', seen)
  })
})

/** Continuations between two kills, and far more kills than one request has room for. */
const POINTS_APART = 6
const POINTS_MAX = 100
const AT_ONCE = 4

/** `undefined`: the daemon had answered before it came to that point. */
async function killAndRetry(killAt: number): Promise<'replayed' | 'rerun' | undefined> {
  const data = tempFolder()
  const envelope = envelopeOf()
  const doomed = await daemonOf(data, killAt)
  const first = await pay(doomed.url, 'k-1', envelope).catch(() => undefined)
  if (first) {
    await doomed.kill('SIGKILL')
    return undefined
  }
  await doomed.exited
  const revived = await daemonOf(data)
  const answer = await payUntilFree(revived.url, envelope)
  expect(answer, `killed at ${killAt}`).toMatchObject({ status: 200, body: { decision: 'allow' } })
  expect((await pay(revived.url, 'k-1', envelope)).text).toBe(answer.text)
  await revived.kill('SIGTERM')
  const db = new DatabaseSync(join(data, 'payments.db'), { readOnly: true })
  expect(db.prepare('SELECT count(*) AS n FROM decision').get(), `killed at ${killAt}`).toEqual({ n: 1 })
  db.close()
  expect(await eventsIn(data, answer.body.request_hash), `killed at ${killAt}`).toHaveLength(1)
  return answer.isReplay ? 'replayed' : 'rerun'
}

async function eventsIn(data: string, requestHash: unknown): Promise<readonly AuditEntry[]> {
  const log = await openAudit({ file: join(data, 'audit.log') })
  try {
    return (await log.find(String(requestHash))).filter(({ kind }) => kind === 'event')
  } finally {
    await log.close()
  }
}

/** The dead one's lease is counted by the store's clock: a client asks until it has passed, as it is told to. */
async function payUntilFree(url: string, envelope: ReturnType<typeof envelopeOf>) {
  for (;;) {
    const answer = await pay(url, 'k-1', envelope)
    const { code } = answer.body
    if (code !== 'protocol.idempotency_in_flight' && code !== 'protocol.unavailable') return answer
    await new Promise((wait) => setTimeout(wait, ASK_EVERY_MS))
  }
}

async function daemonOf(data: string, killAt?: number): Promise<DaemonProcess> {
  const env = { PAYMENTS_DATA: data, PAYMENTS_LEASE_SECONDS: String(LEASE_MS / 1_000), KILL_AT: String(killAt ?? 0) }
  const daemon = await spawnDaemon(env, killAt === undefined ? [] : ['--import', KILL_AT])
  onTestFinished(() => daemon.kill('SIGKILL'))
  return daemon
}

describe('the example', () => {
  it('refuses settings that cannot be meant, and shows those that it has', async () => {
    await expect(start({ port: 0, env: { PAYMENTS_LEASE_SECONDS: '-1' } })).rejects.toThrow(/PAYMENTS_LEASE_SECONDS/)
    await expect(start({ port: 0, env: { IDEMPOTENCY_TTL_HOURS: 'x' } })).rejects.toThrow(/IDEMPOTENCY_TTL_HOURS/)
    const example = await start({ port: 0, env: { IDEMPOTENCY_TTL_HOURS: '2', PAYMENTS_DATA: tempFolder() } })
    expect(example.settings[0]).toEqual({ name: 'IDEMPOTENCY_TTL_HOURS', value: '2 hours', source: 'environment' })
    await example.stop()
  })
})
