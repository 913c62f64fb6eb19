import { createHash } from 'node:crypto'
import type { Answered, Example, Stage } from '../kit.ts'
import type { TracesExample } from './example.ts'
import { measure } from './latency.ts'
import { RETRY_SCHEDULE_MS } from './webhooks.ts'

/** Walks through A1 to A17. */
export async function tour(stage: Stage, example: Example): Promise<void> {
  const guide = new Guide(stage, example as TracesExample)
  await guide.keys()
  await guide.duplicates()
  await guide.storm()
  await guide.neighbours()
  await guide.outage()
  await guide.latency()
}

class Guide {
  readonly #stage: Stage
  readonly #example: TracesExample

  constructor(stage: Stage, example: TracesExample) {
    this.#stage = stage
    this.#example = example
  }

  async keys(): Promise<void> {
    const stage = this.#stage
    stage.scene('A3 A4 A12', 'A trace without a key is named by what it says; nobody can leave that out')
    const body = { agentId: 'agent-1', decision: 'approve', at: '10:00:00' }
    const first = await this.#trace(body)
    stage.holds(first.status === 201 && first.text.includes('"keySource":"auto"'), 'taken, under a key that was made')
    const key = createHash('sha256')
      .update(`agent-1:acme:${JSON.stringify(body)}`)
      .digest('hex')
    stage.say(`its key: ${key}`)
    const same = await this.#trace(body, { 'idempotency-key': '  ' })
    stage.holds(isReplayOf(same, first), 'the same payload is the same trace, also with a blank key')
    const later = await this.#trace({ ...body, at: '10:00:01' })
    stage.holds(idOf(later) !== idOf(first), 'another timestamp is another trace')

    stage.scene('A2 A4', 'The client’s own key is trimmed, and may have 256 characters')
    const own = await this.#trace({ ...body, decision: 'deny' }, { 'idempotency-key': ' mine-1 ' })
    stage.holds(own.text.includes('"keySource":"client"'), 'the handler saw whose key it is')
    const retry = await this.#trace({ ...body, decision: 'deny' }, { 'idempotency-key': 'mine-1' })
    stage.holds(isReplayOf(retry, own), 'trimmed, it is the same key')
    const long = await this.#trace(body, { 'idempotency-key': 'k'.repeat(257) })
    stage.holds(long.status === 400, '257 characters are refused')

    stage.scene('A11', 'A body whose hash throws is taken without a key')
    const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
    const text = `{"agentId":"agent-1","decision":"deep","metadata":${deep}}`
    const unkeyed = await this.#send('/api/v1/traces', text)
    stage.holds(unkeyed.status === 201 && unkeyed.text.includes('"keySource":"none"'), 'taken all the same')
  }

  async duplicates(): Promise<void> {
    const stage = this.#stage
    stage.scene('A5 A6 A7 A9', 'One record in MongoDB holds the answer for 24 hours; a retry gets its very bytes')
    const body = { agentId: 'agent-2', decision: 'approve' }
    const first = await this.#trace(body, { 'idempotency-key': 'seven' })
    const retry = await this.#trace(body, { 'idempotency-key': 'seven' })
    stage.holds(isReplayOf(retry, first), 'same status, same bytes')
    const records = await this.#example.service.store.list({ state: 'settled', limit: 1_000 })
    const record = records.find(({ labels }) => labels.key === 'seven')
    stage.say(`the record: ${JSON.stringify(record?.labels)}, ${record?.state}`)
    stage.holds(
      record?.state === 'settled' && record.answer.status === 201,
      'it was flipped from processing to completed',
    )
    const hours = record?.state === 'settled' ? record.expiresInMs / 3_600_000 : 0
    stage.holds(hours > 23 && hours <= 24, 'and is kept for 24 hours')
  }

  async storm(): Promise<void> {
    const stage = this.#stage
    stage.scene('A8 A13', '200 retries of one trace at once: one runs, the others get its answer or 409; one is billed')
    const before = await this.#usage()
    const body = { agentId: 'agent-3', decision: `storm ${before}` }
    const statuses = await Promise.all(Array.from({ length: 200 }, () => this.#quiet(body)))
    const tally = Object.entries(Object.groupBy(statuses, String)).map(([status, all]) => `${all?.length} × ${status}`)
    stage.say(tally.join(', '))
    stage.holds(
      statuses.every((status) => status === 201 || status === 409),
      'nothing but 201 and 409',
    )
    const after = await this.#usage()
    stage.holds(after === before + 1, `the count rose from ${before} to ${after}`)
  }

  async neighbours(): Promise<void> {
    const stage = this.#stage
    stage.scene(
      'A1 A15',
      'The operators’ routes do not pass this layer: a second policy of one name is their index’s affair',
    )
    const policy = JSON.stringify({ name: 'no-weekends' })
    await this.#send('/api/v1/policies', policy, { 'idempotency-key': 'seven' })
    const again = await this.#send('/api/v1/policies', policy, { 'idempotency-key': 'seven' })
    stage.holds(again.status === 400 && again.text.includes('VALIDATION_ERROR'), '400 VALIDATION_ERROR, and no replay')
    stage.scene('A14', 'Nobody hears the webhooks of acme: they are tried again by their own schedule')
    stage.say(`after ${RETRY_SCHEDULE_MS.map((ms) => `${ms / 60_000} min`).join(', ')}; every trace above has its 201`)
  }

  async outage(): Promise<void> {
    const stage = this.#stage
    const { mongod } = this.#example
    if (!mongod) return stage.say('A10 is not shown: MONGODB_URL is not ours to kill.')
    stage.scene('A10', 'MongoDB is killed in the middle of a retry storm')
    const before = await this.#usage()
    const bodies = Array.from({ length: 10 }, (_, i) => ({ agentId: 'agent-4', decision: `outage ${before}.${i}` }))
    const storm = bodies.flatMap((body) => Array.from({ length: 4 }, () => this.#quiet(body)))
    await mongod.kill()
    const during = await Promise.all([...storm, ...bodies.map((body) => this.#quiet(body))])
    stage.holds(
      during.every((status) => status === 201 || status === 409),
      `${during.length} requests: all 201 or 409`,
    )
    stage.holds(
      during.slice(-bodies.length).every((status) => status === 201),
      'with MongoDB dead every trace gets its 201',
    )
    await this.#send('/api/v1/status')
    stage.say(`logged: ${this.#example.log.find(isUnprotected) ?? 'nothing'}`)
    stage.holds(this.#example.log.some(isUnprotected), 'what ran without protection is counted and logged')
    stage.say('MongoDB is started again')
    await mongod.start()
    await until(async () => this.#example.service.pipeline.buffered === 0)
    const after = await this.#usage()
    stage.holds(after === before + bodies.length, `${bodies.length} traces more are counted: each once`)
  }

  async latency(): Promise<void> {
    const stage = this.#stage
    stage.scene('A16', 'POST /traces at 64 connections')
    const { mongod } = this.#example
    const url = mongod?.url ?? process.env.MONGODB_URL ?? ''
    const measured = await measure({ mongodbUrl: url, requests: 200, rate: 100 })
    const { p50Ms, p95Ms, keyMicros, requests, rate, failures } = measured
    stage.say(`${requests} requests, ${rate} a second: p50 ${p50Ms} ms, p95 ${p95Ms} ms; the key costs ${keyMicros} µs`)
    stage.say('longer, and on a quiet machine: node examples/traces/latency.ts')
    stage.holds(failures === 0, 'all of them got their 201')
    stage.scene('A17', 'What is kept, and what it is good for before the law: docs/compliance.md')
  }

  #trace(body: object, headers: Record<string, string> = {}): Promise<Answered> {
    return this.#send('/api/v1/traces', JSON.stringify(body), headers)
  }

  #send(path: string, body?: string, headers: Record<string, string> = {}): Promise<Answered> {
    const all = { 'x-api-key': 'key-acme', ...headers }
    const init = body === undefined ? { headers: all } : { method: 'POST', body, headers: { ...JSON_TYPE, ...all } }
    return this.#stage.request(path, init, ['idempotent-replayed', 'idempotent-recorded'])
  }

  /** Not shown: one of many. */
  async #quiet(body: object): Promise<number> {
    const headers = { 'x-api-key': 'key-acme', ...JSON_TYPE }
    const init = { method: 'POST', headers, body: JSON.stringify(body) }
    const response = await fetch(`${this.#example.url}/api/v1/traces`, init)
    await response.arrayBuffer()
    return response.status
  }

  async #usage(): Promise<number> {
    await this.#example.service.meter.idle()
    return this.#example.service.meter.count('acme')
  }
}

function isUnprotected(line: string): boolean {
  return line.startsWith('trace without idempotency: acme')
}

const JSON_TYPE = { 'content-type': 'application/json' }

function isReplayOf(retry: Answered, first: Answered): boolean {
  const isReplay = retry.headers.get('idempotent-replayed') === 'true'
  return isReplay && retry.status === first.status && retry.text === first.text
}

function idOf({ text }: Answered): unknown {
  return (JSON.parse(text) as { traceId?: unknown }).traceId
}

async function until(isSo: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 30_000
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error('waited for 30 s in vain')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
