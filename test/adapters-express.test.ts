import assert from 'node:assert/strict'
import { createServer, type RequestListener } from 'node:http'
import { createGzip, type Gzip, gunzipSync } from 'node:zlib'
import express5, { type Express, type NextFunction, type Request, type Response } from 'express'
import express4 from 'express4'
import { describe, it } from 'vitest'
import { currentRun, idempotency } from '../src/adapters/express.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { assertRefused, assertReplay } from '../src/testing/adapter-cases/expect.ts'
import { value } from '../src/testing/adapter-cases/wire.ts'
import { type Asked, ask, JSON_TYPE } from './adapters/ask.ts'
import { listening } from './adapters/subjects.ts'

for (const [version, express] of [
  ['express 5', express5],
  ['express 4', express4],
] as const) {
  describe(version, () => {
    /** An application whose routes are covered as a whole, with a count of what ran. */
    async function covered(routes: (app: Express, ran: () => void) => void): Promise<Asked & { effects(): number }> {
      let effects = 0
      const app = express()
      app.set('env', 'test')
      routes(app, () => {
        effects++
      })
      return { ...ask(await listening(createServer(app as unknown as RequestListener))), effects: () => effects }
    }
    const everybody = () => idempotency({ store: memoryStore(), principal: 'public' })

    const ANSWERS: Readonly<Record<string, (response: Response) => void>> = {
      'res.json': (response) => void response.status(201).json({ id: 1, name: 'ä' }),
      'res.send of a string': (response) => void response.send('<p>hello</p>'),
      'res.send of an object': (response) => void response.send({ a: 1 }),
      'res.send of a buffer': (response) => void response.send(Buffer.from([0, 255, 128])),
      'res.sendStatus': (response) => void response.sendStatus(202),
      'res.status(204).end': (response) => void response.status(204).end(),
      'res.redirect': (response) => void response.redirect(303, '/orders/1'),
      'res.sendFile': (response) => void response.sendFile(import.meta.filename),
      'res.download': (response) => void response.download(import.meta.filename, 'answer.ts'),
      'res.type and res.links': (response) => void response.type('csv').links({ next: '/2' }).send('a,b\n'),
      'res.jsonp': (response) => void response.jsonp({ a: 1 }),
    }
    for (const [name, answer] of Object.entries(ANSWERS)) {
      it(`X4: replays ${name}`, async () => {
        const site = await covered((app, ran) => {
          app.use(everybody())
          app.post('/orders', (_request, response) => {
            ran()
            answer(response)
          })
        })
        const [first, again] = await site.twice({ key: 'k', body: '{}', headers: [JSON_TYPE] })
        assert.ok(first.status < 400)
        assertReplay(first, again)
        assert.equal(site.effects(), 1)
      })
    }

    for (const order of ['before', 'after'] as const) {
      it(`works ${order} express.json(), which still sees its body`, async () => {
        const site = await covered((app, ran) => {
          if (order === 'before') app.use(everybody())
          app.use(express.json())
          app.use(express.urlencoded({ extended: true }))
          if (order === 'after') app.use(everybody())
          app.post('/orders', (request, response) => {
            ran()
            response.status(201).json({ got: request.body })
          })
        })
        const first = await site.send({ key: 'k', headers: [JSON_TYPE], body: '{"a":{"b":1,"c":[1,2]}}' })
        assert.equal(first.body.toString(), '{"got":{"a":{"b":1,"c":[1,2]}}}')
        assertReplay(first, await site.send({ key: 'k', headers: [JSON_TYPE], body: '{ "a":{"c":[1,2],"b":1} }' }))
        assertRefused(
          await site.send({ key: 'k', headers: [JSON_TYPE], body: '{"a":{"b":2,"c":[1,2]}}' }),
          'key-conflict',
        )
        const form = [['Content-Type', 'application/x-www-form-urlencoded']] as const
        const posted = await site.send({ key: 'f', headers: form, body: 'x=1&y[z]=2' })
        assert.equal(posted.body.toString(), '{"got":{"x":"1","y":{"z":"2"}}}')
        assertReplay(posted, await site.send({ key: 'f', headers: form, body: 'x=1&y[z]=2' }))
        assertRefused(await site.send({ key: 'f', headers: form, body: 'x=1&y[z]=3' }), 'key-conflict')
        assert.equal(site.effects(), 2)
      })

      it(`tells bodies apart that the parser did not read, ${order} it`, async () => {
        const site = await covered((app, ran) => {
          if (order === 'before') app.use(everybody())
          app.use(express.json())
          if (order === 'after') app.use(everybody())
          app.post('/orders', async (request, response) => {
            ran()
            const parts: Buffer[] = []
            for await (const part of request) parts.push(part)
            response.send(Buffer.concat(parts))
          })
        })
        const headers = [['Content-Type', 'text/csv']] as const
        const first = await site.send({ key: 'k', headers, body: 'a,b' })
        assert.equal(first.body.toString(), 'a,b')
        assertRefused(await site.send({ key: 'k', headers, body: 'a,c' }), 'key-conflict')
        assertReplay(first, await site.send({ key: 'k', headers, body: 'a,b' }))
        assert.equal(site.effects(), 1)
      })
    }

    it('R2: the template of the route is the scope, and the address is part of the request', async () => {
      const site = await covered((app, ran) => {
        app.post('/orders/:id', everybody(), (request, response) => {
          ran()
          response.send(`order ${request.params.id}`)
        })
      })
      const first = await site.send({ key: 'k', path: '/orders/1' })
      assertRefused(await site.send({ key: 'k', path: '/orders/2' }), 'key-conflict')
      assertReplay(first, await site.send({ key: 'k', path: '/orders/1' }))
      assert.equal(site.effects(), 1)
    })

    it('knows the whole path in nested routers', async () => {
      const site = await covered((app, ran) => {
        const answer = (request: Request, response: Response) => {
          ran()
          response.send(`${request.baseUrl} ${JSON.stringify(request.params)}`)
        }
        const guard = everybody()
        const items = express.Router({ mergeParams: true })
        items.post('/items', guard, answer)
        const shops = express.Router()
        shops.use('/shops/:shop', items)
        app.use('/a', shops)
        app.use('/b', shops)
      })
      const first = await site.send({ key: 'k', path: '/a/shops/1/items' })
      assert.equal(first.body.toString(), '/a/shops/1 {"shop":"1"}')
      assertReplay(first, await site.send({ key: 'k', path: '/a/shops/1/items' }))
      const elsewhere = await site.send({ key: 'k', path: '/b/shops/1/items' })
      assert.equal(elsewhere.body.toString(), '/b/shops/1 {"shop":"1"}')
      assert.equal(site.effects(), 2)
    })

    it('a router that is covered as a whole covers each of its routes', async () => {
      const site = await covered((app, ran) => {
        const router = express.Router()
        router.use(everybody())
        for (const path of ['/orders', '/refunds']) {
          router.post(path, (request, response) => {
            ran()
            response.send(request.originalUrl)
          })
        }
        app.use('/v1', router)
        app.post('/v1/orders-uncovered', (_request, response) => void response.send(''))
      })
      for (const path of ['/v1/orders', '/v1/refunds']) {
        const [first, again] = await site.twice({ key: 'k', path })
        assert.equal(first.body.toString(), path)
        assertReplay(first, again)
      }
      assert.equal(site.effects(), 2)
    })

    const WRITTEN: Readonly<Record<string, (response: Response) => void>> = {
      'at once': (response) => void response.type('text').send('one two'),
      'in pieces': (response) => {
        response.type('text').write('one ')
        response.end('two')
      },
    }
    for (const order of ['before', 'after'] as const) {
      for (const [how, answer] of Object.entries(WRITTEN)) {
        it(`a middleware that compresses, ${order} idempotency: an answer written ${how} can be read by all`, async () => {
          const site = await covered((app, ran) => {
            if (order === 'before') app.use(compressing)
            app.use(everybody())
            if (order === 'after') app.use(compressing)
            app.post('/orders', (_request, response) => {
              ran()
              answer(response)
            })
          })
          const [first, again] = await site.twice({ key: 'k' })
          for (const wire of [first, again]) {
            assert.equal(value(wire, 'Content-Encoding'), 'gzip')
            assert.equal(gunzipSync(wire.body).toString(), 'one two')
          }
          assert.equal(value(again, 'Idempotent-Replayed'), 'true')
          assert.equal(site.effects(), 1)
        })
      }
    }

    it('replays what the error handler made of a thrown error', async () => {
      const site = await covered((app, ran) => {
        app.use(everybody())
        app.post('/orders', () => {
          ran()
          throw Object.assign(new Error('no stock'), { status: 422 })
        })
        app.use((error: Error & { status: number }, _request: Request, response: Response, _next: NextFunction) => {
          response.status(error.status).json({ error: error.message })
        })
      })
      const [first, again] = await site.twice({ key: 'k' })
      assert.equal(first.status, 422)
      assert.equal(first.body.toString(), '{"error":"no stock"}')
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })

    it('replays the error page of Express itself', async () => {
      const site = await covered((app, ran) => {
        app.use(everybody())
        app.post('/orders', (_request, _response, next) => {
          ran()
          next(new Error('planned'))
        })
      })
      const [first, again] = await site.twice({ key: 'k' })
      assert.equal(first.status, 500)
      assert.match(first.body.toString(), /planned/)
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })

    it('replays the 404 of a route that does not exist', async () => {
      const site = await covered((app) => app.use(everybody()))
      const [first, again] = await site.twice({ key: 'k', path: '/nowhere' })
      assert.equal(first.status, 404)
      assertReplay(first, again)
    })

    it('the handler can reach its run; the options can say where key, payload and route come from', async () => {
      const keys: Array<string | undefined> = []
      const site = await covered((app, ran) => {
        app.use(express.json())
        const options = {
          store: memoryStore(),
          principal: (request: { headers: Record<string, unknown> }) => String(request.headers['x-user']),
          key: (request: { body?: unknown }) => (request.body as { ref: string }).ref,
          payload: (request: { body?: unknown }) => ({ amount: (request.body as { amount: number }).amount }),
          route: () => 'orders',
          labels: true,
        }
        app.post(['/orders', '/v2/orders'], idempotency(options), (request, response) => {
          ran()
          keys.push(currentRun(request)?.key)
          response.status(201).json({})
        })
      })
      const headers = [JSON_TYPE, ['X-User', 'u1']] as const
      const first = await site.send({ headers, body: '{"ref":"r1","amount":1,"note":"a"}' })
      assert.equal(first.status, 201)
      assertReplay(first, await site.send({ headers, body: '{"ref":"r1","amount":1,"note":"b"}' }))
      assertRefused(await site.send({ headers, body: '{"ref":"r1","amount":2,"note":"a"}' }), 'key-conflict')
      assert.deepEqual(keys, ['r1'])
      assert.equal(site.effects(), 1)
    })

    it('twice on the way of one request is as good as once', async () => {
      const site = await covered((app, ran) => {
        const layer = everybody()
        app.use(layer)
        app.post('/orders', layer, everybody(), (_request, response) => {
          ran()
          response.status(201).json({ id: 1 })
        })
      })
      const [first, again] = await site.twice({ key: 'k' })
      assert.equal(first.status, 201)
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })

    it('a handler that only passes on, and one that answers later, are one run', async () => {
      const site = await covered((app, ran) => {
        app.use(everybody())
        app.post('/orders', (_request, response, next) => {
          ran()
          response.setHeader('ETag', '"7"')
          setImmediate(next)
        })
        app.post('/orders', (_request, response) => void response.json({ done: true }))
      })
      const [first, again] = await site.twice({ key: 'k' })
      assert.equal(value(first, 'ETag'), '"7"')
      assertReplay(first, again)
      assert.equal(site.effects(), 1)
    })
  })
}

/** What `compression` does, in short: decides when the head is written, and sends the body through gzip. */
function compressing(_request: Request, response: Response, next: NextFunction): void {
  const original = {
    writeHead: response.writeHead.bind(response) as (status: number) => Response,
    write: response.write.bind(response) as (chunk: unknown) => boolean,
    end: response.end.bind(response) as (chunk?: unknown) => Response,
  }
  let gzip: Gzip | undefined
  let begun = false
  response.writeHead = ((status: number, list: string[] | Record<string, string> = {}) => {
    begun = true
    const pairs = Array.isArray(list)
      ? list.flatMap((name, at) => (at % 2 ? [] : [[name, list[at + 1]]]))
      : Object.entries(list)
    for (const [name, content] of pairs) response.setHeader(String(name), String(content))
    if (response.getHeader('Content-Encoding') === undefined) {
      gzip = createGzip()
      gzip.on('data', (chunk: Buffer) => void original.write(chunk))
      gzip.on('end', () => void original.end())
      response.setHeader('Content-Encoding', 'gzip')
      response.removeHeader('Content-Length')
    }
    return original.writeHead(status)
  }) as typeof response.writeHead
  response.write = ((chunk: unknown) => {
    if (!begun) response.writeHead(response.statusCode)
    return gzip ? gzip.write(chunk) : original.write(chunk)
  }) as typeof response.write
  response.end = ((chunk?: string | Buffer) => {
    if (!begun) response.writeHead(response.statusCode)
    if (gzip) gzip.end(chunk)
    else original.end(chunk)
    return response
  }) as typeof response.end
  next()
}
