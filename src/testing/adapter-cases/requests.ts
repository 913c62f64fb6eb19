import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { defineContract } from '../../contract-check.ts'
import { ietf } from '../../contracts/ietf.ts'
import { stripe } from '../../contracts/stripe.ts'
import { assertRefused, assertReplay } from './expect.ts'
import type { Call, Case, Reply } from './site.ts'
import { value, type WireRequest } from './wire.ts'

const JSON_TYPE = ['Content-Type', 'application/json'] as const
const BINARY = ['Content-Type', 'application/octet-stream'] as const
const MEGABYTE = randomBytes(1_048_576)

const MULTIPART = [
  '--edge',
  'Content-Disposition: form-data; name="file"; filename="a.bin"',
  'Content-Type: application/octet-stream',
  '',
  '\u0000\u00ff\u0080--edg',
  '--edge--',
  '',
].join('\r\n')

/** Bodies that the handler must see exactly as the client sent them, although the adapter has read them first. */
const BODIES: Readonly<Record<string, WireRequest>> = {
  JSON: { headers: [JSON_TYPE], body: '{"b": 1,\n "a": "\\u00e4", "n": 1.50}' },
  'invalid JSON': { headers: [JSON_TYPE], body: '{"b": ' },
  'binary of 1 MB': { headers: [BINARY], body: MEGABYTE },
  'a chunked upload': { headers: [BINARY], chunks: ['one', MEGABYTE.subarray(0, 70_000), 'three'] },
  'an empty chunked upload': { headers: [BINARY], chunks: [] },
  'a form with a file': {
    headers: [['Content-Type', 'multipart/form-data; boundary=edge']],
    body: Buffer.from(MULTIPART, 'latin1'),
  },
  'a form': { headers: [['Content-Type', 'application/x-www-form-urlencoded']], body: 'a=1&b=%20&a=2' },
  'no body at all': {},
  'a body of length 0': { headers: [BINARY], body: '' },
}

async function echo(call: Call): Promise<Reply> {
  return { status: 201, headers: [BINARY], body: await call.body() }
}

const bodyCases: Case[] = Object.entries(BODIES).map(([what, request]) => ({
  name: `the handler sees the request's own bytes: ${what}`,
  async run(bench) {
    const site = await bench.serve(echo)
    const sent = request.chunks
      ? Buffer.concat(request.chunks.map((chunk) => Buffer.from(chunk as string)))
      : request.body
    const first = await site.send({ ...request, key: 'k' })
    assert.equal(first.status, 201)
    assert.ok(first.body.equals(Buffer.from((sent ?? '') as string)), 'byte for byte')
    assertReplay(first, await site.send({ ...request, key: 'k' }))
    assert.equal(site.effects, 1)
  },
}))

const KEYS_REFUSED: Readonly<Record<string, WireRequest>> = {
  'sent twice in two header lines': {
    headers: [
      ['Idempotency-Key', 'a'],
      ['Idempotency-Key', 'b'],
    ],
  },
  'sent twice with the same value': {
    headers: [
      ['Idempotency-Key', 'same'],
      ['Idempotency-Key', 'same'],
    ],
  },
  'with a tab in it': { key: 'a\tb' },
  'with a character beyond ASCII': { key: 'caf\u00e9' },
  'with a space in it': { key: 'a b' },
  'of 256 characters': { key: 'k'.repeat(256) },
  'of a quoted empty string': { key: '""' },
  'with a quote that is never closed': { key: '"abc' },
}

const keyCases: Case[] = [
  ...Object.entries(KEYS_REFUSED).map(
    ([what, request]): Case => ({
      name: `a key ${what} is refused, and nothing runs`,
      async run(bench) {
        const site = await bench.serve(() => ({ status: 201 }))
        assertRefused(await site.send({ ...request, body: '{}' }), 'key-invalid')
        assert.equal(site.effects, 0)
        assert.equal(site.store.calls, 0)
      },
    }),
  ),
  {
    name: 'a missing or blank key is refused, and nothing runs',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201 }))
      assertRefused(await site.send({ body: '{}' }), 'key-missing')
      assertRefused(await site.send({ key: '  ', body: '{}' }), 'key-missing')
      assert.equal(site.effects, 0)
    },
  },
  {
    name: 'a quoted key and a bare one are the same key',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201, body: 'made' }))
      const first = await site.send({ key: '"8e03978e-40d5-43dd-bc93-6894a57f9324"' })
      assertReplay(first, await site.send({ key: '  8e03978e-40d5-43dd-bc93-6894a57f9324  ' }))
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'hostile keys are keys like any other',
    async run(bench) {
      const site = await bench.serve((call) => ({ status: 201, body: `for ${call.run?.key}` }))
      for (const key of ['__proto__', 'constructor', '../../etc', "';DROP", 'a:b', '%00', '*', 'k'.repeat(255)]) {
        const [first, again] = await site.twice({ key })
        assert.equal(first.body.toString(), `for ${key}`)
        assertReplay(first, again)
      }
      assert.equal(site.effects, 8)
    },
  },
]

const REQUEST_LIMIT = 2_000

const otherCases: Case[] = [
  {
    name: 'a request body over requestBytesMax is refused, and nothing runs',
    async run(bench) {
      const contract = defineContract(ietf, { limits: { requestBytesMax: REQUEST_LIMIT } })
      const site = await bench.serve(echo, { contract })
      const body = 'x'.repeat(REQUEST_LIMIT)
      assert.equal((await site.send({ key: 'fits', headers: [BINARY], body })).status, 201)
      assertRefused(await site.send({ key: 'a', headers: [BINARY], body: `${body}x` }), 'body-too-large')
      assertRefused(await site.send({ key: 'b', headers: [BINARY], chunks: [body, 'x'] }), 'body-too-large')
      assert.equal(site.effects, 1)
      assert.equal((await site.send({ key: 'a', headers: [BINARY], body })).status, 201, 'the key is still free')
    },
  },
  {
    name: 'methods that the contract does not name pass untouched, and the store is never asked',
    async run(bench) {
      const site = await bench.serve(() => ({ headers: [['X-Own', '1']], body: 'read' }))
      site.store.interference = {
        claim: () => {
          throw new Error('nobody should ask')
        },
      }
      for (const method of ['GET', 'HEAD', 'PUT', 'DELETE', 'OPTIONS']) {
        const wire = await site.send({ key: 'k', method })
        assert.equal(wire.status, 200, method)
        assert.equal(value(wire, 'X-Own'), '1')
        assert.equal(wire.body.toString(), method === 'HEAD' ? '' : 'read')
        assert.equal(value(wire, 'Idempotent-Replayed'), undefined)
      }
      assert.equal(site.effects, 5)
      assert.equal(site.store.calls, 0)
    },
  },
  {
    name: 'a contract that bypasses requests without a key lets them run each time, unrecorded',
    async run(bench) {
      const site = await bench.serve(async (call) => ({ body: await call.body() }), { contract: stripe })
      const [first, again] = await site.twice({ body: 'abc' })
      assert.equal(first.body.toString(), 'abc')
      assert.equal(again.body.toString(), 'abc')
      assert.equal(site.effects, 2)
      assert.equal(site.store.calls, 0)
    },
  },
  {
    name: 'R9: the key is sent back on the original and on the replay when the contract says so',
    async run(bench) {
      const site = await bench.serve(() => ({ body: 'x' }), { contract: stripe })
      const [first, again] = await site.twice({ key: 'k-1' })
      assert.equal(value(first, 'Idempotency-Key'), 'k-1')
      assert.equal(value(again, 'Idempotency-Key'), 'k-1')
      assertReplay(first, again)
      const conflict = await site.send({ key: 'k-1', body: 'other' })
      assert.equal(conflict.status, 400)
      const { error } = JSON.parse(conflict.body.toString())
      assert.equal(error.code, 'idempotency_error')
    },
  },
  {
    name: 'a client that expects 100-continue is asked for its body',
    async run(bench) {
      const site = await bench.serve(echo)
      for (const attempt of ['first', 'again']) {
        const connection = await site.connect()
        connection.send({
          key: 'k',
          headers: [
            ['Expect', '100-continue'],
            ['Content-Length', '5'],
          ],
        })
        assert.equal((await connection.anyHead()).status, 100)
        connection.socket.write('hello')
        const wire = await connection.answer()
        assert.equal(wire.body.toString(), 'hello')
        assert.equal(value(wire, 'Idempotent-Replayed'), attempt === 'again' ? 'true' : undefined)
      }
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'one connection carries originals, replays and refusals one after another',
    async run(bench) {
      const site = await bench.serve(async (call) => ({ status: 201, body: `${call.method} ${await call.body()}` }))
      const connection = await site.connect()
      const large = 'y'.repeat(200_000)
      const first = await connection.request({ key: 'k', body: 'a' })
      assertReplay(first, await connection.request({ key: 'k', body: 'a' }))
      assertRefused(await connection.request({ key: 'k', body: large }), 'key-conflict')
      assertRefused(await connection.request({ body: large }), 'key-missing')
      assertRefused(await connection.request({ key: 'a b', chunks: [large, large] }), 'key-invalid')
      assert.equal((await connection.request({ method: 'GET' })).body.toString(), 'GET ')
      assertReplay(first, await connection.request({ key: 'k', chunks: ['a'] }))
      assert.equal((await connection.request({ key: 'k2', body: large })).body.toString(), `POST ${large}`)
      assert.equal(site.effects, 3)
    },
  },
  {
    name: 'a handler that does not read its body leaves the connection usable',
    async run(bench) {
      const site = await bench.serve(() => ({ status: 201, body: 'unread' }))
      const connection = await site.connect()
      for (let index = 0; index < 6; index++) {
        const wire = await connection.request({ key: `k${index % 3}`, body: 'z'.repeat(100_000) })
        assert.equal(wire.body.toString(), 'unread')
      }
      assert.equal(site.effects, 3)
    },
  },
  {
    name: 'pipelined requests are answered in their order',
    async run(bench) {
      const site = await bench.serve(async (call) => ({ body: await call.body() }))
      const connection = await site.connect()
      for (const body of ['1', '2', '3']) connection.send({ key: `k${body}`, body })
      for (const body of ['1', '2', '3']) assert.equal((await connection.answer()).body.toString(), body)
      assert.equal(site.effects, 3)
    },
  },
]

export const requestCases: readonly Case[] = [...bodyCases, ...keyCases, ...otherCases]
