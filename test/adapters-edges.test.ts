import { once } from 'node:events'
import { createServer, type RequestListener, type ServerResponse } from 'node:http'
import { connect as connectHttp2, createServer as createHttp2Server } from 'node:http2'
import { type AddressInfo, connect } from 'node:net'
import express from 'express'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { idempotency as forExpress } from '../src/adapters/express.ts'
import { idempotency as forFetch } from '../src/adapters/fetch.ts'
import { idempotency as forNode } from '../src/adapters/node.ts'
import { defineContract } from '../src/contract-check.ts'
import { ietf } from '../src/contracts/ietf.ts'
import { stripe } from '../src/contracts/stripe.ts'
import type { Store } from '../src/store.ts'
import { memoryStore } from '../src/stores/memory.ts'

/** What went wrong once, or nearly: each of these was a defect that somebody found by looking hard. */

const HEADERS = { 'content-type': 'application/json', 'idempotency-key': 'k1' }

describe('node:http', () => {
  it('server.close() lets a held answer go out', async () => {
    const { store, settling, reached } = slowToSettle()
    const { server, url } = await listen(forNode({ store, principal: 'public' })((_req, res) => void res.end('paid')))
    const answer = fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k1' } })
    await reached.promise
    const closed = new Promise((resolve) => server.close(resolve))
    server.closeIdleConnections()
    settling.resolve()
    expect(await (await answer).text()).toBe('paid')
    await closed
  })

  it('X2: bytes that are no request, sent after one, do not make its handler run twice', async () => {
    const runs: Array<() => void> = []
    const contract = defineContract(ietf, { crash: 'rerun' })
    const started = Promise.withResolvers<void>()
    const { url } = await listen(
      forNode({ store: memoryStore(), principal: 'public', contract })((_req, res) => {
        runs.push(() => res.end('paid'))
        started.resolve()
      }),
    )
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    socket.on('error', () => {})
    socket.resume()
    socket.write('POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n')
    await started.promise
    socket.write('garbage\r\n\r\n')
    await once(socket, 'close')
    const retry = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k1' } })
    expect(await retry.json()).toMatchObject({ code: 'in-flight' })
    expect(runs).toHaveLength(1)
    runs[0]?.()
    await vi.waitFor(async () => {
      const replay = await fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k1' } })
      expect(await replay.text()).toBe('paid')
    })
  })

  it('an async listener that rejects is answered with 500, and so is its retry', async () => {
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    onTestFinished(() => error.mockRestore())
    let runs = 0
    const { url } = await listen(
      forNode({ store: memoryStore(), principal: 'public' })(async () => {
        runs++
        throw new Error('planned')
      }),
    )
    const post = () => fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k1' } })
    expect((await post()).status).toBe(500)
    expect((await post()).headers.get('idempotent-replayed')).toBe('true')
    expect(runs).toBe(1)
  })

  it('a replay goes through middleware that reads a flat list of headers as pairs', async () => {
    const listener = forNode({ store: memoryStore(), principal: 'public' })((_req, res) => {
      res.writeHead(201, { 'content-type': 'text/plain' }).end('paid')
    })
    const { url } = await listen((req, res) => {
      const { writeHead } = res
      res.writeHead = function (this: ServerResponse, status: number, headers?: object | unknown[]) {
        if (Array.isArray(headers))
          for (const [name, value] of headers as string[][]) this.setHeader(name as string, value as string)
        return Reflect.apply(writeHead, this, Array.isArray(headers) ? [status] : [status, headers])
      } as typeof writeHead
      listener(req, res)
    })
    const post = () => fetch(url, { method: 'POST', headers: { 'idempotency-key': 'k1' } })
    await post()
    const replay = await post()
    expect([replay.status, replay.headers.get('content-type'), await replay.text()]).toEqual([
      201,
      'text/plain',
      'paid',
    ])
  })

  it('HTTP/2 is refused with words, and nothing runs', async () => {
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    onTestFinished(() => error.mockRestore())
    let runs = 0
    const listener = forNode({ store: memoryStore(), principal: 'public' })(() => {
      runs++
    })
    const server = createHttp2Server(listener as never).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const client = connectHttp2(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    onTestFinished(() => {
      client.close()
      server.close()
    })
    const stream = client.request({ ':method': 'POST', ':path': '/', 'idempotency-key': 'k1' })
    stream.end()
    const [headers] = await once(stream, 'response')
    expect(headers[':status']).toBe(500)
    expect(String(error.mock.calls[0]?.[0])).toMatch(/HTTP\/2/)
    expect(runs).toBe(0)
  })
})

describe('express', () => {
  it('a request without a principal is 401, not a failure of the server', async () => {
    const app = express()
    app.post('/', forExpress({ store: memoryStore(), principal: () => undefined }), (_req, res) => void res.end('ran'))
    app.use(((error, _req, res, _next) => {
      res.status(error.status ?? 500).end(error.message)
    }) as express.ErrorRequestHandler)
    const { url } = await listen(app)
    const answer = await fetch(url, { method: 'POST', headers: HEADERS, body: '{}' })
    expect(answer.status).toBe(401)
    expect(await answer.text()).toMatch(/gave nothing for this request/)
  })

  it('a key of another type than text is an error, not a missing key', async () => {
    const app = express()
    app.use(express.json())
    let runs = 0
    const key = (req: express.Request) => req.body.orderId
    app.post('/', forExpress({ store: memoryStore(), principal: 'public', contract: stripe, key }), (_req, res) => {
      runs++
      res.end('ran')
    })
    app.use(((error, _req, res, _next) => void res.status(500).end(error.message)) as express.ErrorRequestHandler)
    const { url } = await listen(app)
    const answer = await fetch(url, { method: 'POST', headers: HEADERS, body: '{"orderId":42}' })
    expect(await answer.text()).toMatch(/must be a string, but is a number/)
    expect(runs).toBe(0)
  })

  it('an upload whose files another parser has taken away is refused, unless payload says what it is about', async () => {
    const app = express()
    app.use((req, _res, next) => {
      req.resume().on('end', () => {
        req.body = { title: 'the same' }
        next()
      })
    })
    const store = memoryStore()
    app.post('/bare', forExpress({ store, principal: 'public' }), (_req, res) => void res.end('ran'))
    const payload = (req: express.Request) => req.headers['x-file-hash']
    app.post('/told', forExpress({ store, principal: 'public', payload }), (_req, res) => void res.end('ran'))
    app.use(((error, _req, res, _next) => void res.status(500).end(error.message)) as express.ErrorRequestHandler)
    const { url } = await listen(app)
    const upload = (path: string, hash: string) => {
      const body = new FormData()
      body.set('file', new Blob(['x']))
      return fetch(url + path, { method: 'POST', body, headers: { 'idempotency-key': 'k1', 'x-file-hash': hash } })
    }
    expect(await (await upload('/bare', 'a')).text()).toMatch(/was read before idempotency\(\) saw it/)
    expect(await (await upload('/told', 'a')).text()).toBe('ran')
    expect((await upload('/told', 'b')).status).toBe(422)
  })
})

describe('fetch', () => {
  it('a client that leaves a streamed answer while it is being recorded does no harm', async () => {
    const { store, settling, reached } = slowToSettle()
    const piece = Promise.withResolvers<void>()
    const handler = forFetch({ store, principal: 'public' })(() => {
      const stream = new ReadableStream({
        async start(controller) {
          controller.enqueue(Buffer.from('first'))
          await piece.promise
          controller.enqueue(Buffer.from('last'))
          controller.close()
        },
      })
      return new Response(stream)
    })
    const post = () => handler(new Request('http://x/', { method: 'POST', headers: { 'idempotency-key': 'k1' } }))
    const answer = await post()
    const reader = answer.body?.getReader()
    await reader?.read()
    piece.resolve()
    await reader?.read()
    await reached.promise
    await reader?.cancel()
    settling.resolve()
    await vi.waitFor(async () => expect((await post()).headers.get('idempotent-replayed')).toBe('true'))
  })

  it('payload may read the body, and the handler still finds it', async () => {
    const handler = forFetch({
      store: memoryStore(),
      principal: 'public',
      payload: async (req) => ((await req.json()) as { amount: number }).amount,
    })(async (req) => new Response(await req.text()))
    const post = (body: string) => handler(new Request('http://x/', { method: 'POST', headers: HEADERS, body }))
    expect(await (await post('{"amount":5,"at":1}')).text()).toBe('{"amount":5,"at":1}')
    expect((await post('{"amount":5,"at":2}')).headers.get('idempotent-replayed')).toBe('true')
    expect((await post('{"amount":6,"at":2}')).status).toBe(422)
  })
})

async function listen(listener: RequestListener) {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

/** A real store that takes its time to settle: until the test says so. */
function slowToSettle() {
  const settling = Promise.withResolvers<void>()
  const reached = Promise.withResolvers<void>()
  const inner = memoryStore()
  const store: Store = {
    name: inner.name,
    claim: (request) => inner.claim(request),
    async settle(...args) {
      reached.resolve()
      await settling.promise
      return inner.settle(...args)
    },
    release: (...args) => inner.release(...args),
    renew: (...args) => inner.renew(...args),
    read: (id) => inner.read(id),
    list: (query) => inner.list(query),
    forget: (id) => inner.forget(id),
    redact: (id) => inner.redact(id),
    sweep: (limit) => inner.sweep(limit),
    close: () => inner.close(),
  }
  return { store, settling, reached }
}
