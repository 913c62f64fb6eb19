import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { idempotency } from '../adapters/fetch.ts'
import type { Contract } from '../contract.ts'
import { checkContract } from '../contract-check.ts'
import { memoryStore } from '../stores/memory.ts'
import { ietf, jobs, payments, resources, stripe, traces, writes } from './index.ts'

/** What the documents, and docs/contracts.md, say that a client sees. */
interface Promised {
  readonly contract: Contract
  readonly methods: string
  readonly withoutKey: 'refused' | 'runs each time' | 'runs once'
  readonly replayed: string
  readonly echoesKey: boolean
  readonly conflict: readonly [status: number, code: string]
  readonly type: 'application/problem+json' | 'application/json'
  readonly otherRoute: 'another operation' | 'conflict'
  readonly whileRunning: 'waits' | 'refused'
  readonly answers: Readonly<Record<'replayed' | 'run again' | 'unknown', readonly number[]>>
  readonly storeAway: 'refused' | 'runs'
  readonly ttlMs: number
}

const DAY_MS = 86_400_000
const WITHOUT = { withoutKey: 'refused', replayed: 'Idempotent-Replayed', echoesKey: false } as const
const USUAL = { ...WITHOUT, type: 'application/problem+json', otherRoute: 'another operation' } as const
const CLOSED = { ...USUAL, storeAway: 'refused', ttlMs: DAY_MS } as const
const IETF_ANSWERS = {
  replayed: [200, 201, 204, 303, 400, 404, 409, 422, 500, 501, 505],
  'run again': [408, 425, 429, 503],
  unknown: [502, 504, 507],
}

const PROMISED: readonly Promised[] = [
  {
    ...CLOSED,
    contract: ietf,
    methods: 'POST PATCH',
    conflict: [422, 'key-conflict'],
    whileRunning: 'refused',
    answers: IETF_ANSWERS,
  },
  {
    ...CLOSED,
    contract: stripe,
    methods: 'POST',
    withoutKey: 'runs each time',
    echoesKey: true,
    conflict: [400, 'idempotency_error'],
    type: 'application/json',
    otherRoute: 'conflict',
    whileRunning: 'refused',
    answers: IETF_ANSWERS,
  },
  {
    ...USUAL,
    contract: traces,
    methods: 'POST',
    withoutKey: 'runs once',
    conflict: [409, 'key-conflict'],
    type: 'application/json',
    otherRoute: 'conflict',
    whileRunning: 'refused',
    answers: {
      replayed: [200, 201, 204, 303, 400, 404, 409, 422],
      'run again': [408, 425, 429, 500, 501, 502, 503, 504, 505, 507],
      unknown: [],
    },
    storeAway: 'runs',
    ttlMs: DAY_MS,
  },
  {
    ...CLOSED,
    contract: resources,
    methods: 'POST',
    withoutKey: 'runs each time',
    replayed: 'Idempotency-Replay',
    conflict: [409, 'IDEMPOTENCY_CONFLICT'],
    type: 'application/json',
    whileRunning: 'refused',
    answers: {
      replayed: [200, 201, 204],
      'run again': [303, 400, 404, 408, 409, 422, 425, 429, 500, 501, 502, 503, 504, 505, 507],
      unknown: [],
    },
  },
  {
    ...CLOSED,
    contract: writes,
    methods: 'POST PUT PATCH DELETE',
    echoesKey: true,
    conflict: [409, 'key-conflict'],
    whileRunning: 'waits',
    answers: {
      replayed: [200, 201, 204, 303, 400, 404, 409, 422, 500, 501, 502, 504, 505, 507],
      'run again': [408, 425, 429, 503],
      unknown: [],
    },
  },
  {
    ...CLOSED,
    contract: payments,
    methods: 'POST',
    conflict: [409, 'protocol.idempotency_conflict'],
    whileRunning: 'waits',
    answers: IETF_ANSWERS,
  },
  {
    ...CLOSED,
    contract: jobs,
    methods: 'POST',
    conflict: [409, 'key-conflict'],
    whileRunning: 'waits',
    answers: {
      replayed: [200, 201, 204, 303, 400, 404, 409, 422, 429, 503],
      'run again': [408, 425],
      unknown: [500, 501, 502, 504, 505, 507],
    },
    ttlMs: 300_000,
  },
]

describe.each(PROMISED.map((promised) => [promised.contract.name, promised] as const))('%s', (name, promised) => {
  const { contract } = promised

  it('can work, and is plain data', () => {
    expect(() => checkContract(contract)).not.toThrow()
    expect(JSON.parse(JSON.stringify(contract))).toEqual(contract)
  })

  it('is about thirty lines, except for the one that all others start from', () => {
    const lines = readFileSync(new URL(`${name}.ts`, import.meta.url), 'utf8').split('\n').length
    if (contract !== ietf) expect(lines).toBeLessThanOrEqual(40)
  })

  it(`covers ${promised.methods}, and no other method`, async () => {
    const covered: string[] = []
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'POST', 'PUT', 'PATCH', 'DELETE']) {
      const service = serve(contract)
      for (let i = 0; i < 2; i++) await service.send({ method })
      if (service.runs() === 1) covered.push(method)
    }
    expect(covered.sort()).toEqual(promised.methods.split(' ').sort())
  })

  it(`without a key: ${promised.withoutKey}`, async () => {
    const service = serve(contract)
    const answers = [await service.send({ key: null }), await service.send({ key: null })]
    const runs = { refused: 0, 'runs once': 1, 'runs each time': 2 }[promised.withoutKey]
    expect(service.runs()).toBe(runs)
    if (runs === 0) expect(answers.map(({ status }) => status)).toEqual([400, 400])
  })

  it(`a replay is marked ${promised.replayed}, and ${promised.echoesKey ? 'both carry' : 'neither carries'} the key`, async () => {
    const service = serve(contract)
    const [original, replay] = [await service.send({}), await service.send({})]
    expect(original.headers.has(promised.replayed)).toBe(false)
    expect(replay.headers.get(promised.replayed)).toBe('true')
    for (const { headers } of [original, replay]) {
      expect(headers.get('idempotency-key')).toBe(promised.echoesKey ? 'k' : null)
    }
  })

  it(`another body is ${promised.conflict.join(' ')}`, async () => {
    const service = serve(contract)
    await service.send({})
    const conflict = await service.send({ body: 'another' })
    expect([conflict.status, await codeOf(conflict)]).toEqual(promised.conflict)
    expect(conflict.headers.get('content-type')).toBe(promised.type)
    expect(service.runs()).toBe(1)
  })

  it(`the same key on another route is ${promised.otherRoute}`, async () => {
    const service = serve(contract)
    await service.send({})
    await service.send({ path: '/other' })
    expect(service.runs()).toBe(promised.otherRoute === 'conflict' ? 1 : 2)
  })

  it(`a duplicate of what is running ${promised.whileRunning === 'waits' ? 'waits' : 'is refused'}`, async () => {
    const gate = Promise.withResolvers<void>()
    const service = serve(contract, () => gate.promise)
    const original = service.send({})
    const duplicate = service.send({})
    if (promised.whileRunning === 'refused') expect((await duplicate).status).toBe(409)
    gate.resolve()
    expect((await original).status).toBe(201)
    if (promised.whileRunning === 'waits') expect((await duplicate).headers.get(promised.replayed)).toBe('true')
    expect(service.runs()).toBe(1)
  })

  const statuses = Object.entries(promised.answers).flatMap(([fate, list]) => list.map((status) => [status, fate]))
  it.each(statuses)('%i: a retry is %s', async (status, fate) => {
    const service = serve(contract, undefined, Number(status))
    await service.send({})
    const retry = await service.send({})
    expect(service.runs()).toBe(fate === 'run again' ? 2 : 1)
    expect(retry.status).toBe(fate === 'unknown' ? 409 : status)
    expect(retry.headers.get(promised.replayed)).toBe(fate === 'replayed' ? 'true' : null)
    if (fate === 'unknown') expect(await codeOf(retry)).toMatch(/outcome.unknown/)
  })

  it(`while the store is away: ${promised.storeAway}`, async () => {
    const service = serve(contract)
    await service.store.close()
    expect((await service.send({})).status).toBe(promised.storeAway === 'runs' ? 201 : 503)
    expect(service.runs()).toBe(promised.storeAway === 'runs' ? 1 : 0)
  })

  it('keeps a success for its time, after which the key is new', async () => {
    const service = serve(contract)
    await service.send({})
    const [record] = await service.store.list()
    if (record?.state !== 'settled') throw new Error('there is no answer')
    expect(record.goneAt - record.createdAt).toBeGreaterThanOrEqual(promised.ttlMs)
    expect(record.expiresInMs).toBeLessThanOrEqual(promised.ttlMs)
  })
})

/** A service that counts its runs and answers with the given status. */
function serve(contract: Contract, before: () => Promise<void> = async () => {}, status = 201) {
  let runs = 0
  const store = memoryStore()
  const handle = idempotency({ store, contract, principal: 'public', reconcile: () => 'unknown' })(async () => {
    runs++
    await before()
    return new Response(status === 204 ? null : `run ${runs}`, { status })
  })
  return {
    store,
    runs: () => runs,
    send({ method = 'POST', path = '/', key = 'k' as string | null, body = 'body' }): Promise<Response> {
      const headers = new Headers({ 'content-type': 'text/plain' })
      if (key !== null) headers.set('idempotency-key', key)
      const hasBody = method !== 'GET' && method !== 'HEAD'
      return handle(new Request(`http://service${path}`, { method, headers, ...(hasBody && { body }) }))
    },
  }
}

async function codeOf(response: Response): Promise<unknown> {
  const { code, error } = (await response.json()) as { code?: unknown; error?: { code?: unknown } }
  return code ?? error?.code
}
