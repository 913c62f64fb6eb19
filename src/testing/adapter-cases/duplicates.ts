import assert from 'node:assert/strict'
import { defineContract } from '../../contract-check.ts'
import { ietf } from '../../contracts/ietf.ts'
import { OncekeyError } from '../../error.ts'
import { assertRefused, assertReplay } from './expect.ts'
import { type Bench, type Case, Gate, headerOf, type Reply } from './site.ts'
import { value, type WireRequest } from './wire.ts'

const JSON_TYPE = ['Content-Type', 'application/json'] as const
const RACERS = 50

/** The second request reuses the first one's key for something else. */
const CONFLICTS: Readonly<Record<string, readonly [WireRequest, WireRequest]>> = {
  'another body': [{ body: '{"amount":1}' }, { body: '{"amount":2}' }],
  'another query string': [{ path: '/orders?a=1' }, { path: '/orders?a=2' }],
  'a query string where there was none': [{ path: '/orders' }, { path: '/orders?a=1' }],
  'a number that only differs beyond 2^53': [{ body: '{"n":9007199254740992}' }, { body: '{"n":9007199254740993}' }],
  'a body that differs after 100 KB': [{ body: `"${'a'.repeat(100_000)}b"` }, { body: `"${'a'.repeat(100_000)}c"` }],
  'a body where there was none': [{}, { body: '{}' }],
}

const conflictCases: Case[] = Object.entries(CONFLICTS).map(([what, [one, other]]) => ({
  name: `a key reused with ${what} is a conflict; the first record stays as it was`,
  async run(bench) {
    const site = await bench.serve(() => ({ status: 201, body: 'made' }))
    const headers = [JSON_TYPE]
    const first = await site.send({ key: 'k', headers, ...one })
    assert.equal(first.status, 201)
    assertRefused(await site.send({ key: 'k', headers, ...other }), 'key-conflict')
    assertRefused(await site.send({ key: 'k', headers, ...other }), 'key-conflict')
    assertReplay(first, await site.send({ key: 'k', headers, ...one }))
    assert.equal(site.effects, 1)
  },
}))

const inFlightCases: Case[] = [
  {
    name: 'D6: while the first is running, a retry is told to wait and another body is a conflict; neither is stored',
    async run(bench) {
      const [started, gate] = [new Gate(), new Gate()]
      const site = await bench.serve(async () => {
        started.open()
        await gate.opened
        return { status: 201, body: 'made' }
      })
      const connection = await site.connect()
      connection.send({ key: 'k', body: 'a' })
      await started.opened
      const inFlight = await site.send({ key: 'k', body: 'a' })
      assertRefused(inFlight, 'in-flight')
      const seconds = Number(value(inFlight, 'Retry-After'))
      assert.ok(Number.isInteger(seconds) && seconds >= 1 && seconds <= 30, `Retry-After is ${seconds}`)
      assertRefused(await site.send({ key: 'k', body: 'b' }), 'key-conflict')
      gate.open()
      const first = await connection.answer()
      assert.equal(first.body.toString(), 'made')
      assertReplay(first, await site.send({ key: 'k', body: 'a' }))
      assert.equal(site.effects, 1)
    },
  },
  {
    name: `${RACERS} parallel requests with one key: one effect, the others are told that it is running`,
    async run(bench) {
      const gate = new Gate()
      let refused = 0
      // The winner waits until all others have had their answer: so none of them can have got a replay.
      const openWhenAllCame = (): void => {
        if (refused + site.effects === RACERS) gate.open()
      }
      const site = await bench.serve(async () => {
        openWhenAllCame()
        await gate.opened
        return { status: 201, body: 'made' }
      })
      const connections = await Promise.all(Array.from({ length: RACERS }, () => site.connect()))
      const answers = connections.map(async (connection) => {
        const wire = await connection.request({ key: 'k', body: 'a' })
        if (wire.status === 409) refused++
        openWhenAllCame()
        return wire
      })
      const wires = await Promise.all(answers)
      for (const wire of wires) if (wire.status !== 201) assertRefused(wire, 'in-flight')
      assert.equal(wires.filter(({ status }) => status === 201).length, 1)
      assert.equal(site.effects, 1)
    },
  },
  {
    name: `R10: with waiting, ${RACERS} parallel requests with one key get one answer from one effect`,
    async run(bench) {
      const contract = defineContract(ietf, { inFlight: 'wait', waitMsMax: 20_000 })
      const gate = new Gate()
      const site = await bench.serve(
        async () => {
          await gate.opened
          return { status: 201, headers: [JSON_TYPE], body: `{"run":${site.effects}}` }
        },
        { contract },
      )
      const connections = await Promise.all(Array.from({ length: RACERS }, () => site.connect()))
      const answers = connections.map((connection) => connection.request({ key: 'k', body: 'a' }))
      await site.requestsSeen(RACERS)
      gate.open()
      const wires = await Promise.all(answers)
      assert.equal(site.effects, 1)
      const [first] = wires.filter((wire) => value(wire, 'Idempotent-Replayed') === undefined)
      assert.ok(first)
      for (const wire of wires) {
        assert.equal(wire.body.toString(), '{"run":1}')
        if (wire !== first) assertReplay(first, wire)
      }
    },
  },
]

async function tenants(bench: Bench): Promise<void> {
  const site = await bench.serve((call) => ({ status: 201, body: `private to ${call.header('x-tenant')}` }), {
    principal: async (request) => headerOf(request, 'x-tenant'),
  })
  for (const [one, other] of [
    ['alice', 'bob'],
    ['a', 'a,a'],
    ['1:k', '1'],
  ] as const) {
    const first = await site.send({ key: 'k', headers: [['X-Tenant', one]] })
    const second = await site.send({ key: 'k', headers: [['X-Tenant', other]] })
    assert.equal(first.body.toString(), `private to ${one}`)
    assert.equal(second.body.toString(), `private to ${other}`)
    assertReplay(first, await site.send({ key: 'k', headers: [['X-Tenant', one]] }))
    assertReplay(second, await site.send({ key: 'k', headers: [['X-Tenant', other]] }))
  }
  assert.equal(site.effects, 6)
}

const scopeCases: Case[] = [
  { name: 'X6: two principals with one key never meet', run: tenants },
  {
    name: 'X6: without a principal the adapter does not start',
    async run(bench) {
      const missing = { principal: undefined } as unknown as { principal: 'public' }
      await assert.rejects(
        () => bench.serve(() => ({}), missing),
        (error) =>
          error instanceof OncekeyError && error.code === 'config-invalid' && error.message.includes('principal'),
      )
    },
  },
  {
    name: 'X6: a resolver that throws runs nothing',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }), {
        principal: () => {
          throw new Error('planned by the suite')
        },
      })
      const wire = await site.send({ key: 'k', body: '{}' })
      assert.ok(wire.status >= 500, `a server's error, not ${wire.status}`)
      assert.equal(site.effects, 0)
      assert.equal(site.store.calls, 0)
    },
  },
  {
    name: 'X6: a resolver that rejects runs nothing',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }), {
        principal: () => Promise.reject(new Error('planned by the suite')),
      })
      const wire = await site.send({ key: 'k', body: '{}' })
      assert.ok(wire.status >= 500, `a server's error, not ${wire.status}`)
      assert.equal(site.effects, 0)
      assert.equal(site.store.calls, 0)
    },
  },
  {
    name: 'X6: a request whose principal cannot be told does not run',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }), {
        principal: (request) => headerOf(request, 'x-tenant'),
      })
      const nobody = await site.send({ key: 'k' })
      assert.ok(nobody.status >= 400, `refused, not ${nobody.status}`)
      const empty = await site.send({ key: 'k', headers: [['X-Tenant', '']] })
      assert.ok(empty.status >= 400, `refused, not ${empty.status}`)
      assert.equal(site.effects, 0)
    },
  },
  {
    name: 'D8: one key on two routes, or with two methods, names two operations',
    async run(bench) {
      const site = await bench.serve((call) => ({ body: `${call.method} ${call.target}` }))
      const requests: WireRequest[] = [{ path: '/orders' }, { path: '/refunds' }, { path: '/orders', method: 'PATCH' }]
      for (const request of requests) {
        const [first, again] = await site.twice({ key: 'k', ...request })
        assert.equal(first.body.toString(), `${request.method ?? 'POST'} ${request.path}`)
        assertReplay(first, again)
      }
      assert.equal(site.effects, 3)
    },
  },
  {
    name: 'a JSON body whose names come in another order is the same request',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }))
      const headers = [JSON_TYPE]
      const first = await site.send({ key: 'k', headers, body: '{"a":1,"b":{"c":[1,2],"d":null}}' })
      assertReplay(first, await site.send({ key: 'k', headers, body: ' {"b": {"d":null, "c":[1,2]},\n"a":1.0}' }))
      assertRefused(await site.send({ key: 'k', headers, body: '{"a":1,"b":{"c":[2,1],"d":null}}' }), 'key-conflict')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a body that is chunked in another way is the same request',
    async run(bench) {
      const site = await bench.serve(async (call) => ({ body: await call.body() }))
      const first = await site.send({ key: 'k', chunks: ['ab', 'c'] })
      assertReplay(first, await site.send({ key: 'k', chunks: ['a', 'bc'] }))
      assertReplay(first, await site.send({ key: 'k', body: 'abc' }))
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'X7: derived keys are the same on every run of an operation and differ by name and by operation',
    async run(bench) {
      const derived: string[][] = []
      const site = await bench.serve((call): Reply => {
        assert.ok(call.run, 'the handler can reach its run')
        assert.equal(call.run.attempt, 1)
        assert.equal(call.run.signal.aborted, false)
        derived.push([call.run.derive('charge'), call.run.derive('charge'), call.run.derive('mail')])
        return { status: derived.length === 1 ? 429 : 201, body: call.run.key }
      })
      assert.equal((await site.send({ key: 'k' })).status, 429)
      assert.equal((await site.send({ key: '"k"' })).body.toString(), 'k')
      assert.equal((await site.send({ key: 'other' })).status, 201)
      const [first, again, other] = derived
      assert.deepEqual(again, first)
      assert.equal(first?.[0], first?.[1])
      assert.equal(new Set([...(first ?? []), ...(other ?? [])]).size, 4)
    },
  },
]

export const duplicateCases: readonly Case[] = [...conflictCases, ...inFlightCases, ...scopeCases]
