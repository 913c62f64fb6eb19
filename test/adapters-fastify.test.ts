import assert from 'node:assert/strict'
import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify'
import { describe, it } from 'vitest'
import { currentRun, idempotency } from '../src/adapters/fastify.ts'
import { defineContract } from '../src/contract-check.ts'
import { ietf } from '../src/contracts/ietf.ts'
import { OncekeyError } from '../src/error.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { assertRefused, assertReplay } from '../src/testing/adapter-cases/expect.ts'
import { Gate } from '../src/testing/adapter-cases/site.ts'
import { Watched } from '../src/testing/adapter-cases/watched.ts'
import { value } from '../src/testing/adapter-cases/wire.ts'
import { type Asked, ask, JSON_TYPE } from './adapters/ask.ts'

interface Site extends Asked {
  effects(): number
  readonly store: Watched
}

/** An application that is covered as a whole, with a count of what ran. */
async function covered(routes: (app: FastifyInstance, ran: () => void) => unknown): Promise<Site> {
  let effects = 0
  const store = new Watched(memoryStore())
  const app = fastify()
  app.register(idempotency({ store, principal: 'public' }))
  await routes(app, () => {
    effects++
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  return { ...ask({ server: app.server, close: () => app.close() }), effects: () => effects, store }
}

const POST = { key: 'k', body: '{"a":1}', headers: [JSON_TYPE] } as const

describe('fastify', () => {
  const ANSWERS: Readonly<Record<string, (reply: FastifyReply) => unknown>> = {
    'an object that is sent': (reply) => reply.code(201).send({ id: 1, name: 'ä' }),
    'a string that is sent': (reply) => reply.send('hello'),
    'a buffer that is sent': (reply) => reply.send(Buffer.from([0, 255, 128])),
    'a typed array that is sent': (reply) => reply.send(new Uint8Array([0, 255, 128])),
    'a stream that is sent': (reply) =>
      reply.type('text/plain').send(Readable.from([Buffer.from('a'), Buffer.from('b')])),
    'a file that is sent': (reply) => reply.type('text/plain').send(createReadStream(import.meta.filename)),
    'a web stream that is sent': (reply) => reply.send(new Response('streamed').body),
    'a Response that is sent': (reply) => reply.send(new Response('made', { status: 202, headers: { ETag: '"1"' } })),
    'an object that is returned': () => ({ id: 1 }),
    'a string that is returned': () => 'text',
    'nothing, with 204': (reply) => reply.code(204).send(),
    'null, with 201': (reply) => reply.code(201).send(null),
    'a redirect': (reply) => reply.redirect('/orders/1', 303),
    'an answer after hijack': (reply) => {
      reply.hijack()
      reply.raw.writeHead(200, { 'Content-Type': 'text/plain' })
      reply.raw.end('raw')
    },
    'an error that is sent': (reply) => reply.code(409).send(new Error('already paid')),
    'reply.callNotFound': (reply) => reply.callNotFound(),
  }
  for (const [name, answer] of Object.entries(ANSWERS)) {
    it(`X4: replays ${name}`, async () => {
      const site = await covered((app, ran) => {
        app.post('/orders', async (_request, reply) => {
          ran()
          return answer(reply)
        })
      })
      const [first, again] = await site.twice(POST)
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })
  }

  it('X4: replays what is sent by a handler without a promise', async () => {
    const site = await covered((app, ran) => {
      app.post('/orders', (_request, reply) => {
        ran()
        setImmediate(() => void reply.send({ later: true }))
      })
    })
    const [first, again] = await site.twice(POST)
    assert.equal(first.body.toString(), '{"later":true}')
    assertReplay(first, again)
    assert.equal(site.effects(), 1)
  })

  it('JSON counts by what it says: another order of names is the same request', async () => {
    const site = await covered((app, ran) => {
      app.post('/orders', async (request) => {
        ran()
        return { got: request.body }
      })
    })
    const first = await site.send({ ...POST, body: '{"a":1,"b":[1,2]}' })
    assert.equal(first.body.toString(), '{"got":{"a":1,"b":[1,2]}}')
    assertReplay(first, await site.send({ ...POST, body: ' {"b":[1,2], "a":1}' }))
    assertRefused(await site.send({ ...POST, body: '{"a":1,"b":[2,1]}' }), 'key-conflict')
    assert.equal(site.effects(), 1)
  })

  it('an answer that is sent in one piece is sent after it was recorded, and is marked when it could not be', async () => {
    const [asked, gate] = [new Gate(), new Gate()]
    const site = await covered((app) => app.post('/orders', async () => ({ id: 1 })))
    site.store.interference = {
      settle: async () => {
        asked.open()
        await gate.opened
        throw new OncekeyError('store-unavailable', 'planned')
      },
    }
    const connection = await site.connect()
    connection.send(POST)
    await asked.opened
    assertRefused(await site.send(POST), 'in-flight')
    assert.equal(connection.socket.bytesRead, 0)
    gate.open()
    const first = await connection.answer()
    assert.equal(first.body.toString(), '{"id":1}')
    assert.equal(value(first, 'Idempotent-Recorded'), 'false')
  })

  for (const [name, thrower] of Object.entries({
    'a thrown error': () => {
      throw Object.assign(new Error('no stock'), { statusCode: 422 })
    },
    'a rejection': () => Promise.reject(new Error('broken')),
  })) {
    it(`replays Fastify's own answer to ${name}`, async () => {
      const site = await covered((app, ran) => {
        app.post('/orders', () => {
          ran()
          return thrower()
        })
      })
      const [first, again] = await site.twice(POST)
      assert.match(first.body.toString(), /"message":"(no stock|broken)"/)
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })
  }

  it('replays what setErrorHandler made of an error', async () => {
    const site = await covered((app, ran) => {
      app.setErrorHandler((error, _request, reply) => reply.code(418).send({ mine: (error as Error).message }))
      app.post('/orders', async () => {
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

  it('an onSend hook of the application changes the original, and its change is replayed once', async () => {
    const site = await covered((app, ran) => {
      app.addHook('onSend', async (_request, reply, payload) => {
        reply.header('ETag', '"hooked"')
        return `${payload}!`
      })
      app.post('/orders', async () => {
        ran()
        return 'made'
      })
    })
    const [first, again] = await site.twice(POST)
    assert.equal(first.body.toString(), 'made!')
    assertReplay(first, again)
    assert.equal(site.effects(), 1)
  })

  it('headers that an earlier hook has set are on replays and refusals, too', async () => {
    const site = await covered((app) => {
      app.addHook('onRequest', async (_request, reply) => {
        reply.header('Access-Control-Allow-Origin', '*')
      })
      app.post('/orders', async () => 'made')
    })
    const [first, again] = await site.twice(POST)
    const refused = await site.send({ ...POST, body: '{}' })
    for (const wire of [first, again, refused]) assert.equal(value(wire, 'Access-Control-Allow-Origin'), '*')
    assertReplay(first, again)
    assertRefused(refused, 'key-conflict')
  })

  it('a request that an earlier hook has answered never reaches the store', async () => {
    const site = await covered((app, ran) => {
      app.addHook('onRequest', async (_request, reply) => reply.code(401).send({ error: 'who?' }))
      app.post('/orders', async () => {
        ran()
        return 'made'
      })
    })
    const [first, again] = await site.twice(POST)
    assert.deepEqual([first.status, again.status], [401, 401])
    assert.equal(site.store.calls, 0)
    assert.equal(site.effects(), 0)
  })

  it('a route can be switched off, or be given a contract of its own', async () => {
    const strict = defineContract(ietf, { methods: ['PUT'], errors: { statuses: { 'key-conflict': 409 } } })
    const site = await covered((app, ran) => {
      const handler = async () => {
        ran()
        return 'made'
      }
      app.post('/off', { config: { idempotency: false } }, handler)
      app.put('/own', { config: { idempotency: { contract: strict } } }, handler)
    })
    const off = await site.twice({ ...POST, path: '/off' })
    assert.ok(off.every((wire) => wire.status === 200 && value(wire, 'Idempotent-Replayed') === undefined))
    assert.equal(site.effects(), 2)
    const own = { ...POST, method: 'PUT', path: '/own' }
    const [first, again] = await site.twice(own)
    assertReplay(first, again)
    assert.equal((await site.send({ ...own, body: '{}' })).status, 409)
    assert.equal(site.effects(), 3)
  })

  it('an impossible contract of a route is refused when the route is declared', async () => {
    const contract = { ...ietf, lease: { ms: 0, handlerMsMax: 0 } }
    const app = fastify()
    await app.register(idempotency({ store: memoryStore(), principal: 'public' }))
    assert.throws(
      () => app.post('/own', { config: { idempotency: { contract } } }, async () => ''),
      (error) => error instanceof OncekeyError && error.code === 'config-invalid' && error.message.includes('lease.ms'),
    )
    await app.close()
  })

  it('covers the routes of encapsulated plugins, with their prefix, and of the instance alone when it is one', async () => {
    const site = await covered((app, ran) => {
      app.register(
        async (child) => {
          child.post('/orders/:id', async (request) => {
            ran()
            return request.params
          })
        },
        { prefix: '/v1' },
      )
    })
    const first = await site.send({ ...POST, path: '/v1/orders/1' })
    assert.equal(first.body.toString(), '{"id":"1"}')
    assertReplay(first, await site.send({ ...POST, path: '/v1/orders/1' }))
    // R2: the scope has the template, the fingerprint has the address.
    assertRefused(await site.send({ ...POST, path: '/v1/orders/2' }), 'key-conflict')
    assert.equal(site.effects(), 1)

    let outside = 0
    const app = fastify()
    app.register(async (child) => {
      child.register(idempotency({ store: memoryStore(), principal: 'public' }))
      child.post('/inside', async () => 'covered')
    })
    app.post('/outside', async () => `run ${++outside}`)
    await app.listen({ host: '127.0.0.1', port: 0 })
    const other = ask({ server: app.server, close: () => app.close() })
    assertRefused(await other.send({ path: '/inside' }), 'key-missing')
    assert.equal((await other.send({ path: '/outside' })).body.toString(), 'run 1')
  })

  it('the handler and the hooks of its route can reach the run', async () => {
    const keys: Array<string | undefined> = []
    const site = await covered((app) => {
      app.post(
        '/orders',
        {
          preHandler: async (request) => {
            keys.push(currentRun(request)?.key)
          },
        },
        async (request) => {
          keys.push(currentRun(request)?.key, currentRun(request.raw)?.key)
          return 'made'
        },
      )
    })
    assert.equal((await site.send(POST)).status, 200)
    assert.deepEqual(keys, ['k', 'k', 'k'])
  })

  it('answers to app.inject, which has no socket', async () => {
    const app = fastify()
    app.register(idempotency({ store: memoryStore(), principal: 'public' }))
    app.post('/orders', async () => ({ id: 1 }))
    const request = { method: 'POST', url: '/orders', headers: { 'idempotency-key': 'k' }, payload: { a: 1 } } as const
    const first = await app.inject(request)
    const again = await app.inject(request)
    assert.equal(first.body, '{"id":1}')
    assert.equal(again.body, '{"id":1}')
    assert.equal(again.headers['idempotent-replayed'], 'true')
    await app.close()
  })

  it('a client that left before a stream was sent leaves no key stuck', async () => {
    const [started, gate] = [new Gate(), new Gate()]
    const site = await covered((app, ran) => {
      app.post('/orders', async (_request, reply) => {
        ran()
        started.open()
        await gate.opened
        return reply.send(Readable.from([Buffer.from('a'), Buffer.from('b')]))
      })
    })
    const left = new Gate()
    site.server.once('connection', (socket) => socket.once('close', () => left.open()))
    const connection = await site.connect()
    connection.send(POST)
    await started.opened
    connection.close()
    await left.opened
    gate.open()
    await site.store.concluded()
    const again = await site.send(POST)
    if (again.status === 409) assertRefused(again, 'outcome-unknown')
    else assert.equal(again.body.toString(), 'ab')
    assert.equal(site.effects(), 1)
  })
})
