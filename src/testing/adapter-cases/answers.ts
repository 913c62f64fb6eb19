import assert from 'node:assert/strict'
import { createReadStream } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { gzipSync } from 'node:zlib'
import { defineContract } from '../../contract-check.ts'
import { ietf } from '../../contracts/ietf.ts'
import { assertRefused, assertReplay } from './expect.ts'
import { type Case, Gate, type Reply } from './site.ts'
import { value, values } from './wire.ts'

/** Every value that a byte can have, which is not UTF-8 in any reading. */
const EVERY_BYTE = Uint8Array.from({ length: 256 }, (_, index) => 255 - index)
const LARGE_JSON = JSON.stringify({ items: Array.from({ length: 30_000 }, (_, id) => ({ id, name: `größe ${id}` })) })

async function* pieces(...chunks: ReadonlyArray<string | Uint8Array>): AsyncGenerator<string | Uint8Array> {
  for (const chunk of chunks) {
    yield chunk
    await new Promise((resolve) => setImmediate(resolve))
  }
}

const JSON_TYPE = ['Content-Type', 'application/json'] as const

/** Answers that a retry gets again, byte for byte, while the handler runs once. */
const KEPT: Readonly<Record<string, () => Reply>> = {
  JSON: () => ({ headers: [JSON_TYPE], body: '{"id":1,"a":[1.50,"\\u00e4"]}' }),
  'text in UTF-8': () => ({ headers: [['Content-Type', 'text/plain; charset=utf-8']], body: 'Grüße, 世界, 🙂\n' }),
  'binary, every byte value': () => ({ headers: [['Content-Type', 'application/octet-stream']], body: EVERY_BYTE }),
  'a body that is gzip-encoded': () => ({
    headers: [JSON_TYPE, ['Content-Encoding', 'gzip'], ['Vary', 'Accept-Encoding']],
    body: gzipSync('{"packed":true}'),
  }),
  'several writes': () => ({ headers: [['Content-Type', 'text/plain']], body: pieces('one,', 'two,', 'three') }),
  'several writes of binary': () => ({ body: pieces(EVERY_BYTE, EVERY_BYTE.slice(100), Uint8Array.of(0)) }),
  'a stream that has nothing in it': () => ({ headers: [['Content-Type', 'text/csv']], body: pieces() }),
  'a large JSON document': () => ({ headers: [JSON_TYPE], body: LARGE_JSON }),
  'an empty 201': () => ({ status: 201, headers: [['Location', '/orders/1']] }),
  'an empty 200': () => ({}),
  'a 202 without a type': () => ({ status: 202, body: 'ok' }),
  'a 204': () => ({ status: 204, headers: [['ETag', '"1"']] }),
  'a 303 with Location': () => ({ status: 303, headers: [['Location', '/orders/1?a=b&c=%20']] }),
  'a 302 with a body': () => ({ status: 302, headers: [['Location', '/']], body: 'Found. Redirecting to /' }),
  'a 404': () => ({ status: 404, headers: [JSON_TYPE], body: '{"error":"no such order"}' }),
  'a 409 of the handler itself': () => ({ status: 409, headers: [JSON_TYPE], body: '{"error":"already paid"}' }),
  'a 422': () => ({ status: 422, headers: [JSON_TYPE], body: '{"error":"amount"}' }),
  'a 500': () => ({ status: 500, headers: [JSON_TYPE], body: '{"error":"internal"}' }),
}

const keptCases: Case[] = Object.entries(KEPT).map(([what, reply]) => ({
  name: `X4: replays ${what}`,
  async run(bench) {
    const site = await bench.serve(reply)
    const [first, again] = await site.twice({ key: 'k', body: '{}', headers: [JSON_TYPE] })
    assertReplay(first, again)
    assertReplay(first, await site.send({ key: 'k', body: '{}', headers: [JSON_TYPE] }))
    assert.equal(site.effects, 1)
    const expected = reply()
    assert.equal(first.status, expected.status ?? 200)
    if (typeof expected.body === 'string') assert.equal(first.body.toString(), expected.body)
    if (expected.body instanceof Uint8Array)
      assert.ok(first.body.equals(expected.body), 'the first answer is untouched')
    for (const [name, content] of expected.headers ?? []) assert.equal(value(first, name), content)
  },
}))

const releasedCases: Case[] = [408, 425, 429, 503].map((status) => ({
  name: `a ${status} says that nothing was done: the retry runs`,
  async run(bench) {
    const site = await bench.serve(() =>
      site.effects === 1 ? { status, headers: [['Retry-After', '7']], body: 'later' } : { status: 201, body: 'done' },
    )
    const [first, again] = await site.twice({ key: 'k' })
    assert.equal(first.status, status)
    assert.equal(first.body.toString(), 'later')
    assert.equal(value(first, 'Retry-After'), '7')
    assert.equal(again.status, 201)
    assert.equal(value(again, 'Idempotent-Replayed'), undefined)
    assertReplay(again, await site.send({ key: 'k' }))
    assert.equal(site.effects, 2)
  },
}))

const unknownCases: Case[] = [502, 504].map((status) => ({
  name: `X2: a ${status} leaves the outcome unknown: the retry is told so and does not run`,
  async run(bench) {
    const site = await bench.serve(() => ({ status, body: 'bad upstream' }))
    const [first, again] = await site.twice({ key: 'k' })
    assert.equal(first.status, status)
    assert.equal(first.body.toString(), 'bad upstream')
    assertRefused(again, 'outcome-unknown')
    assert.equal(site.effects, 1)
  },
}))

/** Of 64 KB each: more than all buffers between a server and a client hold. */
const PIECES = 512

const LIMIT = 1_000
const small = defineContract(ietf, { limits: { answerBytesMax: LIMIT } })

function limitCase(name: string, bytes: number, body: (text: string) => NonNullable<Reply['body']>): Case {
  return {
    name,
    async run(bench) {
      const text = 'x'.repeat(bytes)
      const site = await bench.serve(() => ({ status: 201, body: body(text) }), { contract: small })
      const [first, again] = await site.twice({ key: 'k' })
      assert.equal(first.status, 201)
      assert.equal(first.body.toString(), text, 'the first client gets all of it')
      if (bytes > LIMIT) assertRefused(again, 'answer-not-kept')
      else assertReplay(first, again)
      assert.equal(site.effects, 1)
    },
  }
}

const otherCases: Case[] = [
  {
    name: 'X4: replays a file',
    async run(bench) {
      const folder = await mkdtemp(join(tmpdir(), 'oncekey-'))
      const path = join(folder, 'answer.bin')
      const content = Buffer.concat(Array.from({ length: 1_000 }, () => EVERY_BYTE))
      await writeFile(path, content)
      const site = await bench.serve({
        node: (_request, response) => {
          response.setHeader('Content-Type', 'image/png')
          createReadStream(path).pipe(response)
        },
        fetch: () =>
          new Response(Readable.toWeb(createReadStream(path)) as ReadableStream<Uint8Array>, {
            headers: { 'Content-Type': 'image/png' },
          }),
      })
      const [first, again] = await site.twice({ key: 'k' })
      await rm(folder, { recursive: true })
      assert.ok(first.body.equals(content))
      assertReplay(first, again)
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'X4: events reach the client as they are written, and are replayed whole',
    async run(bench) {
      const [second, third] = [new Gate(), new Gate()]
      const site = await bench.serve(() => ({
        headers: [
          ['Content-Type', 'text/event-stream'],
          ['Cache-Control', 'no-cache'],
        ],
        body: (async function* () {
          yield 'data: 1\n\n'
          await second.opened
          yield 'data: 2\n\n'
          await third.opened
          yield 'data: 3\n\n'
        })(),
      }))
      const connection = await site.connect()
      connection.send({ key: 'k' })
      await connection.seen('data: 1\n\n')
      second.open()
      await connection.seen('data: 2\n\n')
      third.open()
      const first = await connection.answer()
      assert.equal(first.body.toString(), 'data: 1\n\ndata: 2\n\ndata: 3\n\n')
      assertReplay(first, await site.send({ key: 'k' }))
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'an answer is sent only after it was recorded',
    async run(bench) {
      const [asked, gate] = [new Gate(), new Gate()]
      const site = await bench.serve(() => ({ status: 201, body: 'made' }))
      site.store.interference = {
        settle: () => {
          asked.open()
          return gate.opened
        },
      }
      const connection = await site.connect()
      connection.send({ key: 'k' })
      await asked.opened
      const early = await site.send({ key: 'other', method: 'GET' })
      assert.equal(early.status, 201)
      assert.equal(connection.socket.bytesRead, 0, 'nothing of the answer was sent before the store had it')
      gate.open()
      assert.equal((await connection.answer()).body.toString(), 'made')
    },
  },
  {
    name: 'the end of a streamed answer is sent only after it was recorded',
    async run(bench) {
      const [asked, gate] = [new Gate(), new Gate()]
      const site = await bench.serve(() => ({ body: pieces('be', 'gun') }))
      site.store.interference = {
        settle: () => {
          asked.open()
          return gate.opened
        },
      }
      const connection = await site.connect()
      connection.send({ key: 'k' })
      await asked.opened
      const inFlight = await site.send({ key: 'k' })
      assertRefused(inFlight, 'in-flight')
      gate.open()
      assert.equal((await connection.answer()).body.toString(), 'begun')
      assert.equal((await site.send({ key: 'k' })).body.toString(), 'begun')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a client that does not read holds a streaming handler back',
    async run(bench) {
      const piece = Buffer.alloc(65_536, 'p')
      let made = 0
      const site = await bench.serve((call) => ({
        body:
          call.method === 'GET'
            ? ''
            : (async function* () {
                for (; made < PIECES; made++) yield piece
              })(),
      }))
      const connection = await site.connect()
      connection.socket.pause()
      connection.send({ key: 'k' })
      // The handler has had its turns, and makes no more, when nothing was made during many requests of others.
      for (let before = -1, quiet = 0; quiet < 20; quiet = made === before ? quiet + 1 : 0) {
        before = made
        await site.send({ method: 'GET' })
      }
      assert.ok(made > 0 && made < PIECES, `${made} of ${PIECES} pieces were made for a client that reads nothing`)
      connection.socket.resume()
      assert.equal((await connection.answer()).body.length, PIECES * piece.length)
      assertRefused(await site.send({ key: 'k' }), 'answer-not-kept')
    },
  },
  limitCase('an answer of exactly answerBytesMax is kept', LIMIT, (text) => text),
  limitCase('a streamed answer of exactly answerBytesMax is kept', LIMIT, (text) => pieces(text.slice(1), 'x')),
  limitCase(
    'an answer over answerBytesMax reaches the first client whole; a retry runs nothing',
    LIMIT + 1,
    (text) => text,
  ),
  limitCase('a streamed answer over answerBytesMax does, too', 5 * LIMIT + 1, (text) =>
    pieces(text.slice(0, 3), text.slice(3, LIMIT), text.slice(LIMIT)),
  ),
  {
    name: 'headers that come several times are replayed as they came',
    async run(bench) {
      const links = ['</a>; rel="next"', '</b>; rel="prev"']
      const site = await bench.serve(() => ({
        headers: [
          ['Link', links[0] ?? ''],
          ['Vary', 'Accept'],
          ['Link', links[1] ?? ''],
          ['Vary', 'Origin'],
          ['Cache-Control', 'no-store'],
        ],
        body: 'x',
      }))
      const [first, again] = await site.twice({ key: 'k' })
      assertReplay(first, again)
      assert.equal(values(again, 'Link').join(', '), links.join(', '))
      assert.equal(values(again, 'Vary').join(', '), 'Accept, Origin')
      if (bench.adapter.flavour === 'node') assert.deepEqual(values(again, 'Link'), links)
    },
  },
  {
    name: 'Set-Cookie, hop-by-hop headers, Date and what is not on the list are not replayed',
    async run(bench) {
      const oldDate = 'Sun, 06 Nov 1994 08:49:37 GMT'
      const site = await bench.serve(() => ({
        headers: [
          JSON_TYPE,
          ['Set-Cookie', 'session=secret; HttpOnly'],
          ['Set-Cookie', 'theme=dark'],
          ['X-Account', '42'],
          ['Date', oldDate],
          ['Keep-Alive', 'timeout=1234'],
          ['X-Request-Id', 'r1'],
        ],
        body: '{}',
      }))
      const [first, again] = await site.twice({ key: 'k' })
      assert.deepEqual(values(first, 'Set-Cookie'), ['session=secret; HttpOnly', 'theme=dark'])
      assert.equal(value(first, 'X-Account'), '42')
      assertReplay(first, again)
      assert.deepEqual(values(again, 'Set-Cookie'), [], 'no cookie of one client goes to another')
      assert.equal(value(again, 'X-Account'), undefined)
      assert.notEqual(value(again, 'Date'), oldDate)
      assert.ok(!value(again, 'Keep-Alive')?.includes('1234'))
      assert.equal(value(again, 'X-Request-Id'), 'r1')
      const [record] = await site.store.list()
      assert.ok(!JSON.stringify(record).includes('secret'), 'nor does it go into the store')
    },
  },
  {
    name: 'a HEAD that the contract covers is replayed with its Content-Length and without a body',
    async run(bench) {
      const contract = defineContract(ietf, { methods: ['POST', 'HEAD'] })
      const site = await bench.serve(() => ({ headers: [['Content-Length', '5'], JSON_TYPE] }), { contract })
      const [first, again] = await site.twice({ key: 'k', method: 'HEAD' })
      assert.equal(value(first, 'Content-Length'), '5')
      assert.equal(value(again, 'Idempotent-Replayed'), 'true')
      assert.equal(value(again, 'Content-Length'), '5')
      assert.equal(value(again, 'Content-Type'), 'application/json')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a handler that throws before it returns runs once',
    async run(bench) {
      await thrown(bench, () => {
        throw new Error('planned by the suite')
      })
    },
  },
  {
    name: 'a handler that rejects runs once',
    async run(bench) {
      await thrown(bench, async () => {
        await new Promise((resolve) => setImmediate(resolve))
        throw new Error('planned by the suite')
      })
    },
  },
]

async function thrown(bench: Parameters<Case['run']>[0], handler: () => Reply | Promise<Reply>): Promise<void> {
  const site = await bench.serve(handler)
  const [first, again] = await site.twice({ key: 'k' })
  assert.equal(first.status, 500)
  if (bench.adapter.thrown === 'kept') assertReplay(first, again)
  else assertRefused(again, 'outcome-unknown')
  assert.equal(site.effects, 1)
}

export const answerCases: readonly Case[] = [...keptCases, ...releasedCases, ...unknownCases, ...otherCases]
