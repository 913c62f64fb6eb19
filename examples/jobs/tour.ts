import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { idempotentFetch, isReplay, parseStructuredKey, structuredKeys } from '../../src/client/index.ts'
import { jobsFromEnvironment } from '../../src/contracts/index.ts'
import type { Answered, Example, Stage } from '../kit.ts'
import { type Centre, startCentres } from './centres.ts'
import type { JobsExample } from './example.ts'
import { measureLookup } from './lookup-cost.ts'
import { createGate } from './service.ts'

/** Walks through J1 to J12. */
export async function tour(stage: Stage, example: Example): Promise<void> {
  const { centres, natsUrl, settings } = example as JobsExample
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-tour-'))
  const keys = structuredKeys({ file: join(folder, 'client.db'), clientId: 'laptop' })
  try {
    const actor = new Actor(stage, centres, keys.next)
    stage.scene('J6', 'Every window is configurable')
    stage.holds(settings.length === 7, 'by seven variables, which are shown at the start')
    structured(stage, keys.next)
    await actor.retries()
    await actor.states()
    await actor.coalescing()
    await actor.fillingTheCache()
    await boundedMemory(stage, centres[0], keys.next)
    lookups(stage)
    await crashesAndCuts(stage, natsUrl, keys.next)
  } finally {
    keys.close()
    rmSync(folder, { recursive: true })
  }
}

function structured(stage: Stage, next: () => string): void {
  stage.scene('J7', 'Structured keys: who, which, and since which start')
  for (const key of [next(), next(), 'laptop:07:zz']) {
    const parsed = parseStructuredKey(key)
    stage.say(`${key}: ${parsed.state === 'valid' ? `number ${parsed.sequence} of ${parsed.clientId}` : parsed.reason}`)
  }
  stage.holds(parseStructuredKey('laptop:07:zz').state === 'invalid', 'what is malformed is refused, with the reason')
}

const SHOWN = ['idempotent-replayed', 'retry-after']

class Actor {
  readonly #stage: Stage
  readonly #here: Centre
  readonly #there: Centre
  readonly #next: () => string

  constructor(stage: Stage, [here, there]: readonly [Centre, Centre], next: () => string) {
    this.#stage = stage
    this.#here = here
    this.#there = there
    this.#next = next
  }

  async retries(): Promise<void> {
    const stage = this.#stage
    stage.scene('J1, J4', 'A retry under another job id, here and in the other data centre')
    const key = this.#next()
    const answers = [
      await submit(stage, this.#here.gate.url, key, { job_id: 'abc', task: 'render' }),
      await submit(stage, this.#here.gate.url, key, { job_id: 'def', task: 'render' }),
      await submit(stage, this.#there.gate.url, key, { job_id: 'ghi', task: 'render' }),
    ]
    stage.holds(
      answers.every((answer) => jobOf(answer) === 'abc'),
      "all three have the original job's id",
    )
  }

  async states(): Promise<void> {
    const stage = this.#stage
    stage.scene('J8, J9', 'PENDING is waited for, COMMITTED and REJECTED are repeated at once')
    const [key, bad] = [this.#next(), this.#next()]
    const body = { task: 'render', review_ms: 300 }
    const [original, duplicate] = await Promise.all([
      submit(stage, this.#here.gate.url, key, body),
      submit(stage, this.#here.gate.url, key, body),
    ])
    stage.holds(jobOf(original) === jobOf(duplicate), 'the duplicate waited, and got the same job')
    const rejected = await submit(stage, this.#here.gate.url, bad, { task: 7 })
    const again = await submit(stage, this.#here.gate.url, bad, { task: 7 })
    stage.holds(again.status === 422 && again.text === rejected.text, 'a rejection is repeated')
    const ledger = await stage.request(`${this.#here.manager.url}/ledger`)
    stage.holds(/COMMITTED/.test(ledger.text) && /REJECTED/.test(ledger.text), 'both are in the ledger')
  }

  async coalescing(): Promise<void> {
    const stage = this.#stage
    stage.scene('J10', 'A thousand duplicates of one pending key')
    const before = await this.#received()
    const key = this.#next()
    const body = JSON.stringify({ task: 'render', review_ms: 3_000 })
    const init = { method: 'POST', headers: { 'idempotency-key': key }, body }
    const url = new URL('/jobs', this.#here.gate.url)
    const sent = Array.from({ length: 1_000 }, async () => (await fetch(url, init)).text())
    const answers = new Set(await Promise.all(sent))
    stage.say(`1,000 requests, ${answers.size} answer: ${[...answers][0]}`)
    stage.holds(answers.size === 1 && (await this.#received()) - before === 1, 'one call to the manager')
  }

  async fillingTheCache(): Promise<void> {
    const stage = this.#stage
    stage.scene('J12', "A gate that has just started has an empty cache; the manager's answer fills it")
    const key = this.#next()
    await submit(stage, this.#here.gate.url, key, { task: 'render' })
    await this.#here.gate.kill()
    await this.#here.gate.start()
    stage.say('the gate was killed, and started again')
    const before = await this.#received()
    await submit(stage, this.#here.gate.url, key, { task: 'render' })
    await submit(stage, this.#here.gate.url, key, { task: 'render' })
    stage.holds((await this.#received()) - before === 1, 'only the first of these two reached the manager')
  }

  async #received(): Promise<number> {
    const stats = await fetch(new URL('/stats', this.#here.manager.url))
    return ((await stats.json()) as { received: number }).received
  }
}

async function boundedMemory(stage: Stage, { manager }: Centre, next: () => string): Promise<void> {
  stage.scene('J2', 'A gate with room for three entries')
  const { contract, cache } = jobsFromEnvironment({})
  const gate = createGate({ manager: manager.url, contract, cache: { ...cache, recordsMax: 3 } })
  const keys = [next(), next(), next(), next()]
  for (const key of keys) {
    const headers = { 'idempotency-key': key }
    await gate.fetch(new Request('http://gate/jobs', { method: 'POST', headers, body: '{"task":"render"}' }))
  }
  const held = await gate.cache.list()
  stage.say(`${keys.length} submissions, ${held.length} entries: the least recently used was forgotten`)
  stage.holds(held.length === 3, 'its memory is bounded')
  await gate.stop()
}

function lookups(stage: Stage): void {
  stage.scene('J5', 'What a lookup costs')
  const [few, many] = [measureLookup(1_000, 20_000), measureLookup(200_000, 20_000)]
  for (const { entries, hitNs } of [few, many]) stage.say(`${entries} entries: ${hitNs.toFixed(0)} ns`)
  stage.holds(many.hitNs < FLAT_FACTOR * few.hitNs, '200 times as many entries cost about the same')
}

/** Caches of the machine's own make the difference; a search would make it two hundredfold. */
const FLAT_FACTOR = 16

async function crashesAndCuts(stage: Stage, natsUrl: string, next: () => string): Promise<void> {
  stage.scene('J3, J11', 'kill -9 of gate and manager in the middle of a submission')
  const env = { IDEMPOTENCY_PENDING_TTL_SECONDS: '1', IDEMPOTENCY_PENDING_WAIT_TIMEOUT: '1' }
  const { centres, stop } = await startCentres({ natsUrl, env })
  const [here, there] = centres
  try {
    const key = next()
    const sent = stubborn(here.gate.url, key, { task: 'render', review_ms: 200 })
    await pendingAt(here, key)
    await Promise.all([here.manager.kill(), here.gate.kill()])
    stage.say('it is PENDING; both are killed, and started again')
    await Promise.all([here.manager.start(), here.gate.start()])
    const response = await sent
    stage.say(`the client's retries end with ${response.status}: ${await response.text()}`)
    const jobs = await stage.request(`${here.manager.url}/jobs`)
    stage.holds(jobs.text.split(key).length === 2, 'there is exactly one job')

    stage.scene('J4', 'The other data centre is cut off from the ledger that both share, and healed')
    const other = next()
    there.link.cut()
    const refused = await submit(stage, there.gate.url, other, { task: 'render' })
    stage.holds(refused.status === 503, 'cut off, it runs nothing')
    const elsewhere = await stubborn(here.gate.url, other, { job_id: 'abc', task: 'render' })
    stage.say(`meanwhile, here: ${elsewhere.status} ${await elsewhere.text()}`)
    there.link.heal()
    const healed = await stubborn(there.gate.url, other, { job_id: 'def', task: 'render' })
    const text = await healed.text()
    stage.say(`healed: ${healed.status} ${text}${isReplay(healed) ? ', replayed' : ''}`)
    stage.holds(text.includes('"abc"'), "healed, it has the other's job")
  } finally {
    await stop()
  }
}

async function submit(stage: Stage, gate: string, key: string, body: unknown): Promise<Answered> {
  const headers = { 'idempotency-key': key, 'content-type': 'application/json' }
  return stage.request(`${gate}/jobs`, { method: 'POST', headers, body: JSON.stringify(body) }, SHOWN)
}

/** The client's part of the guarantee: the same key until there is an answer. */
function stubborn(gate: string, key: string, body: unknown): Promise<Response> {
  const send = idempotentFetch({
    retries: 1_000,
    backoffMs: 50,
    backoffMsMax: 500,
    shouldRetry: ({ response }) => response === undefined || (response.status >= 400 && !isReplay(response)),
  })
  return send(`${gate}/jobs`, { method: 'POST', body: JSON.stringify(body), idempotencyKey: key })
}

function jobOf({ text }: Answered): unknown {
  return (JSON.parse(text) as { job_id?: unknown }).job_id
}

async function pendingAt({ manager }: Centre, key: string): Promise<void> {
  const deadline = performance.now() + PENDING_MS_MAX
  while (performance.now() < deadline) {
    const entries = await (await fetch(new URL('/ledger', manager.url))).json()
    if (Array.isArray(entries) && entries.some((entry) => entry.key === key)) return
  }
  throw new Error(`${key} never came to the manager`)
}

const PENDING_MS_MAX = 30_000
