import assert from 'node:assert/strict'
import type { Server } from 'node:http'
import { createAdaptorServer } from '@hono/node-server'
import { type Handler, Hono } from 'hono'
import { compress } from 'hono/compress'
import { cors } from 'hono/cors'
import { HTTPException } from 'hono/http-exception'
import { stream, streamSSE, streamText } from 'hono/streaming'
import { describe, it } from 'vitest'
import { idempotency } from '../src/adapters/hono.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { assertRefused, assertReplay } from '../src/testing/adapter-cases/expect.ts'
import { Gate } from '../src/testing/adapter-cases/site.ts'
import { value } from '../src/testing/adapter-cases/wire.ts'
import { adapterSuite } from '../src/testing/adapter-suite.ts'
import { type Asked, ask, JSON_TYPE } from './adapters/ask.ts'
import { honoLightSubject, honoPlainSubject, listening } from './adapters/subjects.ts'

const runner = { describe, it, skip: (name: string) => it.skip(name) }
// The light objects replace the global ones for good, so they come last.
describe(honoPlainSubject.name, () => adapterSuite(runner, honoPlainSubject))
describe(honoLightSubject.name, () => adapterSuite(runner, honoLightSubject))

/** An application that is covered as a whole, with a count of what ran. */
async function covered(routes: (app: Hono, ran: () => void) => void): Promise<Asked & { effects(): number }> {
  let effects = 0
  const app = new Hono()
  app.use(idempotency({ store: memoryStore(), principal: 'public' }))
  routes(app, () => {
    effects++
  })
  return { ...ask(await listening(createAdaptorServer({ fetch: app.fetch }) as Server)), effects: () => effects }
}

const POST = { key: 'k', body: '{"a":1}', headers: [JSON_TYPE] } as const

describe('hono, its own ways of answering', () => {
  const ANSWERS: Readonly<Record<string, Handler>> = {
    'c.json': (c) => c.json({ id: 1, name: 'ä' }, 201),
    'c.text': (c) => c.text('hello'),
    'c.html': (c) => c.html('<p>hello</p>'),
    'c.body of bytes': (c) => c.body(new Uint8Array([0, 255, 128])),
    'c.body of nothing, 204': (c) => c.body(null, 204),
    'c.redirect': (c) => c.redirect('/orders/1', 303),
    'c.notFound': (c) => c.notFound(),
    'c.header before a Response of its own': (c) => {
      c.header('ETag', '"1"')
      return c.newResponse('made', 201)
    },
    'a bare Response': () => new Response('made', { status: 202, headers: { Location: '/1' } }),
    'a stream': (c) =>
      stream(c, async (out) => {
        await out.write(new Uint8Array([1, 2]))
        await out.write(new Uint8Array([0, 255]))
      }),
    'a stream of text': (c) =>
      streamText(c, async (out) => {
        await out.writeln('one')
        await out.write('two')
      }),
    'a thrown HTTPException': () => {
      throw new HTTPException(402, { message: 'no funds' })
    },
    'a thrown HTTPException with an answer of its own': () => {
      throw new HTTPException(422, { res: new Response('{"no":1}', { status: 422, headers: { ETag: '"x"' } }) })
    },
    'a thrown error': () => {
      throw new Error('planned')
    },
  }
  for (const [name, answer] of Object.entries(ANSWERS)) {
    it(`X4: replays ${name}`, async () => {
      const site = await covered((app, ran) => {
        app.post('/orders', (c, next) => {
          ran()
          return answer(c, next)
        })
      })
      const [first, again] = await site.twice(POST)
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })
  }

  it('replays what onError made of an error', async () => {
    const site = await covered((app, ran) => {
      app.onError((error, c) => c.json({ mine: error.message }, 418))
      app.post('/orders', () => {
        ran()
        throw new Error('planned')
      })
    })
    const [first, again] = await site.twice(POST)
    assert.equal(first.status, 418)
    assert.equal(first.body.toString(), '{"mine":"planned"}')
    assertReplay(first, again)
    assert.equal(site.effects(), 1)
  })

  it('events reach the client as they are written, and are replayed whole', async () => {
    const gate = new Gate()
    const site = await covered((app, ran) => {
      app.post('/orders', (c) => {
        ran()
        return streamSSE(c, async (out) => {
          await out.writeSSE({ event: 'a', data: '1', id: '1' })
          await gate.opened
          await out.writeSSE({ data: '2' })
        })
      })
    })
    const connection = await site.connect()
    connection.send(POST)
    await connection.seen('data: 1')
    gate.open()
    const first = await connection.answer()
    assert.match(first.body.toString(), /data: 1[\s\S]*data: 2/)
    assertReplay(first, await site.send(POST))
    assert.equal(site.effects(), 1)
  })

  it('the handler can read its body in every way, and reach its run', async () => {
    const site = await covered((app, ran) => {
      app.post('/orders', async (c) => {
        ran()
        return c.json({ got: await c.req.json(), text: await c.req.text(), key: c.get('oncekey')?.key })
      })
    })
    const first = await site.send(POST)
    assert.equal(first.body.toString(), '{"got":{"a":1},"text":"{\\"a\\":1}","key":"k"}')
    assertReplay(first, await site.send({ ...POST, body: '{ "a": 1 }' }))
  })

  it('works after a middleware that has read the body, and the handler can read it again', async () => {
    let effects = 0
    const app = new Hono()
    app.use(async (c, next) => {
      assert.equal(((await c.req.json()) as { a: number }).a, 1)
      await next()
    })
    app.use(idempotency({ store: memoryStore(), principal: 'public' }))
    app.post('/orders', async (c) => c.json({ run: ++effects, got: await c.req.json() }))
    const site = ask(await listening(createAdaptorServer({ fetch: app.fetch }) as Server))
    const [first, again] = await site.twice(POST)
    assert.equal(first.body.toString(), '{"run":1,"got":{"a":1}}')
    assertReplay(first, again)
    assertRefused(await site.send({ ...POST, body: '{"a":1,"b":2}' }), 'key-conflict')
  })

  it('twice on the way of one request is as good as once', async () => {
    const layer = idempotency({ store: memoryStore(), principal: 'public' })
    const site = await covered((app, ran) => {
      app.use(layer)
      app.post('/orders', layer, (c) => {
        ran()
        return c.text('made', 201)
      })
    })
    const [first, again] = await site.twice(POST)
    assert.equal(first.status, 201)
    assertReplay(first, again)
    assert.equal(site.effects(), 1)
  })

  it('middleware around it sees the answer, on originals, replays and refusals', async () => {
    const app = new Hono()
    app.use(cors({ origin: 'https://shop.example' }))
    app.use(async (c, next) => {
      await next()
      c.header('X-Seen', String(c.res.status))
    })
    app.use(idempotency({ store: memoryStore(), principal: 'public' }))
    app.post('/orders', (c) => c.json({}, 201))
    const site = ask(await listening(createAdaptorServer({ fetch: app.fetch }) as Server))
    const request = { ...POST, headers: [JSON_TYPE, ['Origin', 'https://shop.example'] as const] }
    const [first, again] = await site.twice(request)
    const refused = await site.send({ ...request, body: '{}' })
    for (const wire of [first, again, refused]) {
      assert.equal(value(wire, 'Access-Control-Allow-Origin'), 'https://shop.example')
      assert.equal(value(wire, 'X-Seen'), String(wire.status))
    }
    assert.equal(value(again, 'Idempotent-Replayed'), 'true')
    assertRefused(refused, 'key-conflict')
  })

  for (const order of ['before', 'after'] as const) {
    it(`hono/compress ${order} it: every client can read its answer`, async () => {
      const app = new Hono()
      if (order === 'before') app.use(compress())
      app.use(idempotency({ store: memoryStore(), principal: 'public' }))
      if (order === 'after') app.use(compress())
      app.post('/orders', (c) => c.text('packed '.repeat(500)))
      const site = ask(await listening(createAdaptorServer({ fetch: app.fetch }) as Server))
      const request = { ...POST, headers: [JSON_TYPE, ['Accept-Encoding', 'gzip'] as const] }
      for (const wire of await site.twice(request)) {
        assert.equal(value(wire, 'Content-Encoding'), 'gzip')
        const { body } = new Response(new Uint8Array(wire.body))
        const text = await new Response(body?.pipeThrough(new DecompressionStream('gzip'))).text()
        assert.equal(text, 'packed '.repeat(500))
      }
    })
  }

  it('R2: the template of the route is the scope, and the address is part of the request', async () => {
    const site = await covered((app, ran) => {
      app.post('/orders/:id', (c) => {
        ran()
        return c.text(`order ${c.req.param('id')}`)
      })
    })
    const first = await site.send({ ...POST, path: '/orders/1' })
    assertRefused(await site.send({ ...POST, path: '/orders/2' }), 'key-conflict')
    assertReplay(first, await site.send({ ...POST, path: '/orders/1' }))
    assert.equal(site.effects(), 1)
  })

  it('knows the whole path of a mounted application, and can cover single routes', async () => {
    let effects = 0
    const shop = new Hono()
    shop.post('/items/:id', idempotency({ store: memoryStore(), principal: 'public' }), (c) =>
      c.text(`run ${++effects}`),
    )
    const app = new Hono().route('/a', shop).route('/b', shop)
    const site = ask(await listening(createAdaptorServer({ fetch: app.fetch }) as Server))
    const [first, again] = await site.twice({ ...POST, path: '/a/items/1' })
    assertReplay(first, again)
    assert.equal((await site.send({ ...POST, path: '/b/items/1' })).body.toString(), 'run 2')
  })
})
