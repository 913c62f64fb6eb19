import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { defineContract } from '../../contract-check.ts'
import { ietf } from '../../contracts/ietf.ts'
import { OncekeyError } from '../../error.ts'
import { assertRefused, brief } from './expect.ts'
import { type Bench, type Case, Gate, type Handler } from './site.ts'
import { value, type Wire } from './wire.ts'

function unreachable(): never {
  throw new OncekeyError('store-unavailable', 'The store is away: planned by the suite.')
}

const storeCases: Case[] = [
  {
    name: 'a store that is down refuses with 503, and nothing runs',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }))
      site.store.interference = { claim: unreachable }
      const wire = await site.send({ key: 'k', body: '{}' })
      assertRefused(wire, 'store-unavailable')
      assert.ok(Number(value(wire, 'Retry-After')) >= 1)
      assert.equal(site.effects, 0)
      site.store.interference = {}
      assert.equal((await site.send({ key: 'k', body: '{}' })).status, 201, 'the refusal was not recorded')
    },
  },
  {
    name: 'a store that fails later, by a promise, refuses with 503, too',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }))
      site.store.interference = { claim: async () => unreachable() }
      assertRefused(await site.send({ key: 'k', body: '{}' }), 'store-unavailable')
      assert.equal(site.effects, 0)
    },
  },
  {
    name: 'a store that hangs counts as down after storeMsMax',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }), { storeMsMax: 20 })
      site.store.interference = { claim: () => new Promise(() => {}) }
      assertRefused(await site.send({ key: 'k', body: '{}' }), 'store-unavailable')
      assert.equal(site.effects, 0)
    },
  },
  {
    name: 'A10: with an open contract, a store that is down blocks nothing; the answer says that it was not recorded',
    async run(bench) {
      const contract = defineContract(ietf, { storeFailure: 'open' })
      const site = await bench.serve(async (call) => ({ status: 201, body: await call.body() }), { contract })
      site.store.interference = { claim: unreachable, settle: unreachable }
      const wire = await site.send({ key: 'k', body: 'abc' })
      assert.equal(wire.status, 201)
      assert.equal(wire.body.toString(), 'abc')
      assert.equal(value(wire, 'Idempotent-Recorded'), 'false')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a store that dies between effect and record: the client gets the real answer, marked as unrecorded',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201, headers: [['Location', '/orders/1']], body: 'made' }))
      site.store.interference = { settle: async () => unreachable() }
      const wire = await site.send({ key: 'k' })
      assert.equal(wire.status, 201)
      assert.equal(wire.body.toString(), 'made')
      assert.equal(value(wire, 'Location'), '/orders/1')
      assert.equal(value(wire, 'Idempotent-Recorded'), 'false')
      assertRefused(await site.send({ key: 'k' }), 'in-flight')
      site.store.interference = {}
      await site.store.concluded()
      const again = await site.send({ key: 'k' })
      assert.equal(value(again, 'Idempotent-Replayed'), 'true', 'the record is written when the store is back')
      assert.equal(again.body.toString(), 'made')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a store that dies under a streamed answer: the client gets all of it',
    async run(bench) {
      const site = await bench.serve(() => ({
        body: (async function* () {
          yield 'one,'
          await new Promise((resolve) => setImmediate(resolve))
          yield 'two'
        })(),
      }))
      site.store.interference = { settle: async () => unreachable() }
      assert.equal((await site.send({ key: 'k' })).body.toString(), 'one,two')
      assert.equal(site.effects, 1)
    },
  },
]

const clientCases: Case[] = [
  {
    name: 'a client that leaves before the answer changes nothing: the answer is recorded and replayed',
    async run(bench) {
      const [started, gate] = [new Gate(), new Gate()]
      const site = await bench.serve(async () => {
        started.open()
        if (site.effects === 1) await gate.opened
        return { status: 201, headers: [['Content-Type', 'text/plain']], body: 'made' }
      })
      const connection = await site.connect()
      connection.send({ key: 'k', body: 'a' })
      await started.opened
      connection.close()
      await site.clientsGone()
      assertRefused(await site.send({ key: 'k', body: 'a' }), 'in-flight')
      gate.open()
      await site.store.concluded()
      const again = await site.send({ key: 'k', body: 'a' })
      assert.equal(value(again, 'Idempotent-Replayed'), 'true', `replayed, not ${brief(again)}`)
      assert.equal(again.status, 201)
      assert.equal(again.body.toString(), 'made')
      assert.equal(value(again, 'Content-Type'), 'text/plain')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a handler that throws after its client has left leaves no key stuck, and does not run again',
    async run(bench) {
      const [started, gate] = [new Gate(), new Gate()]
      const site = await bench.serve(async () => {
        started.open()
        await gate.opened
        throw new Error('thrown by the handler, as the test wants it')
      })
      const connection = await site.connect()
      connection.send({ key: 'k', body: 'a' })
      await started.opened
      connection.close()
      await site.clientsGone()
      gate.open()
      await site.store.concluded()
      const again = await site.send({ key: 'k', body: 'a' })
      if (again.status === 409) assertRefused(again, 'outcome-unknown')
      else assert.equal(again.status, 500)
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a client that leaves before a streamed answer leaves no key stuck, and nothing runs again',
    run: (bench) =>
      leavesBefore(bench, (begin) => async () => {
        await begin()
        return { body: lines() }
      }),
  },
  {
    name: 'a client that leaves before a piped answer leaves no key stuck, and nothing runs again',
    flavour: 'node',
    run: (bench) =>
      leavesBefore(bench, (begin) => ({
        node: async (_request, response) => {
          await begin()
          Readable.from(lines()).pipe(response)
        },
      })),
  },
  {
    name: 'a client that leaves in the middle of a streamed answer leaves no key stuck, and nothing runs again',
    async run(bench) {
      const gate = new Gate()
      const site = await bench.serve(() => ({
        body: (async function* () {
          yield 'one,'
          await gate.opened
          yield* lines()
        })(),
      }))
      const connection = await site.connect()
      connection.send({ key: 'k' })
      await connection.seen('one,')
      connection.close()
      await site.clientsGone()
      gate.open()
      await site.store.concluded()
      assertWholeOrUnknown(await site.send({ key: 'k' }))
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'X2: a streamed answer that breaks off is not an answer: the retry is told that the outcome is unknown',
    async run(bench) {
      const gate = new Gate()
      const site = await bench.serve(() => ({
        body: (async function* () {
          yield 'one,'
          await gate.opened
          throw new Error('planned by the suite')
        })(),
      }))
      const connection = await site.connect()
      connection.send({ key: 'k' })
      await connection.seen('one,')
      gate.open()
      await assert.rejects(connection.answer(), 'the client can see that the answer is not whole')
      await site.store.concluded()
      assertRefused(await site.send({ key: 'k' }), 'outcome-unknown')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a client that leaves in the middle of its own request runs nothing',
    async run(bench) {
      const site = await bench.serve(async (call) => ({ status: 201, body: await call.body() }))
      const connection = await site.connect()
      connection.send({ key: 'k', headers: [['Content-Length', '100']] })
      connection.socket.write('only a part')
      await site.requestsSeen(1)
      connection.close()
      await site.clientsGone()
      const wire = await site.send({ key: 'k', body: 'all of it' })
      assert.equal(wire.status, 201, `the key is still free, but: ${brief(wire)}`)
      assert.equal(wire.body.toString(), 'all of it')
      assert.equal(site.effects, 1)
    },
  },
]

async function* lines(): AsyncGenerator<string> {
  for (let index = 0; index < 100; index++) yield `${index},`.repeat(1_000)
}

/** Either all that the handler wrote was captured, or nobody knows how far it came; never a part of it as the whole. */
function assertWholeOrUnknown(again: Wire): void {
  if (again.status === 409) return void assertRefused(again, 'outcome-unknown')
  assert.equal(again.status, 200)
  assert.equal(value(again, 'Idempotent-Replayed'), 'true')
  assert.ok(again.body.toString().endsWith('99,'.repeat(1_000)), `the answer is whole, not ${brief(again)}`)
}

/** The client is gone when the handler begins to answer, with a stream. */
async function leavesBefore(bench: Bench, makeHandler: (begin: () => Promise<void>) => Handler): Promise<void> {
  const [started, gate] = [new Gate(), new Gate()]
  const begin = (): Promise<void> => {
    started.open()
    return gate.opened
  }
  const site = await bench.serve(makeHandler(begin))
  const connection = await site.connect()
  connection.send({ key: 'k' })
  await started.opened
  connection.close()
  await site.clientsGone()
  gate.open()
  await site.store.concluded()
  assertWholeOrUnknown(await site.send({ key: 'k' }))
  assert.equal(site.effects, 1)
}

export const failureCases: readonly Case[] = [...storeCases, ...clientCases]
