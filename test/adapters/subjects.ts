import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createAdaptorServer } from '@hono/node-server'
import express5 from 'express'
import express4 from 'express4'
import fastify, { type FastifyInstance } from 'fastify'
import { Hono } from 'hono'
import * as express from '../../src/adapters/express.ts'
import * as fastifyAdapter from '../../src/adapters/fastify.ts'
import * as fetch from '../../src/adapters/fetch.ts'
import * as hono from '../../src/adapters/hono.ts'
import * as node from '../../src/adapters/node.ts'
import { REQUEST_SCENES } from '../../src/testing/adapter-cases/node-scenes.ts'
import type {
  AdapterServer,
  AdapterSetup,
  FetchAdapterUnderTest,
  FetchHandle,
  NodeAdapterUnderTest,
  NodeHandle,
} from '../../src/testing/adapter-suite.ts'

export async function listening(server: Server): Promise<AdapterServer> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    server,
    close: () => new Promise((resolve, reject) => server.close((error) => (error ? reject(error) : resolve()))),
  }
}

export const nodeSubject: NodeAdapterUnderTest = {
  name: 'node',
  flavour: 'node',
  thrown: 'kept',
  skips: { 'a handler that rejects runs once': 'node:http does not look at what a listener returns' },
  serve: async ({ options, handle }) => {
    const listener = node.idempotency(options)((request, response) =>
      handle(request, response, { run: node.currentRun(request) }),
    )
    return listening(createServer(listener))
  },
}

type Express = typeof express5

function expressSubject(name: string, create: Express): NodeAdapterUnderTest {
  return {
    name,
    flavour: 'node',
    thrown: 'kept',
    serve: async ({ options, handle, routes }) => {
      const app = create()
      app.set('env', 'test')
      for (const route of routes) {
        app.all(route, express.idempotency(options), (request, response, next) => {
          const made = handle(request, response, { run: express.currentRun(request) })
          // Express 4 does not look at what a handler returns.
          made?.catch(next)
        })
      }
      return listening(createServer(app as unknown as RequestListener))
    },
  }
}

export const express5Subject: NodeAdapterUnderTest = expressSubject('express 5', express5)
export const express4Subject: NodeAdapterUnderTest = expressSubject('express 4', express4)

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']
const READ_BY_FASTIFY = 'Fastify reads the body itself, under its own bodyLimit'
const HIJACKED = 'after hijack() Fastify has no error answer to give'
const STREAMED_BY_FASTIFY = 'Fastify streams every Response; its other answers are in adapters-fastify.test.ts'

/** Fastify with bodies as they came, so that the suite can compare bytes. */
export function rawFastify(): FastifyInstance {
  const app = fastify({ exposeHeadRoutes: false, bodyLimit: 16 * 1024 * 1024 })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
  return app
}

async function fastifyServer(app: FastifyInstance): Promise<AdapterServer> {
  await app.listen({ host: '127.0.0.1', port: 0 })
  return { server: app.server, close: () => app.close() }
}

/** The handler takes over the raw response. */
export const fastifyRawSubject: NodeAdapterUnderTest = {
  name: 'fastify, raw response',
  flavour: 'node',
  thrown: 'kept',
  skips: {
    'a request body over requestBytesMax is refused, and nothing runs': READ_BY_FASTIFY,
    'a handler that rejects runs once': HIJACKED,
    'a handler that throws after its client has left leaves no key stuck, and does not run again': HIJACKED,
    ...Object.fromEntries(
      Object.keys(REQUEST_SCENES).map((scene) => [
        `the request is read as on bare node:http: ${scene}`,
        READ_BY_FASTIFY,
      ]),
    ),
  },
  serve: async ({ options, handle, routes }: AdapterSetup<NodeHandle>) => {
    const app = rawFastify()
    app.register(fastifyAdapter.idempotency(options))
    for (const url of routes) {
      app.route({
        method: METHODS,
        url,
        handler: (request, reply) => {
          const body = (request.body as Buffer | undefined) ?? Buffer.alloc(0)
          const made = handle(request.raw, reply.raw, { run: fastifyAdapter.currentRun(request), body })
          reply.hijack()
          return made
        },
      })
    }
    return fastifyServer(app)
  },
}

/** The handler returns a `Response`, which Fastify sends. */
export const fastifySubject: FetchAdapterUnderTest = {
  name: 'fastify',
  flavour: 'fetch',
  thrown: 'kept',
  skips: {
    'a request body over requestBytesMax is refused, and nothing runs': READ_BY_FASTIFY,
    'an answer is sent only after it was recorded': STREAMED_BY_FASTIFY,
    'A10: with an open contract, a store that is down blocks nothing; the answer says that it was not recorded':
      STREAMED_BY_FASTIFY,
    'a store that dies between effect and record: the client gets the real answer, marked as unrecorded':
      STREAMED_BY_FASTIFY,
  },
  serve: async ({ options, handle, routes }: AdapterSetup<FetchHandle>) => {
    const app = rawFastify()
    app.register(fastifyAdapter.idempotency(options))
    for (const url of routes) {
      app.route({
        method: METHODS,
        url,
        handler: async (request) => {
          const body = request.body as Buffer<ArrayBuffer> | undefined
          return handle(toRequest(request.raw, body?.length ? body : undefined), fastifyAdapter.currentRun(request))
        },
      })
    }
    return fastifyServer(app)
  },
}

function honoSubject(name: string, overrideGlobalObjects: boolean): FetchAdapterUnderTest {
  return {
    name,
    flavour: 'fetch',
    thrown: 'kept',
    serve: async ({ options, handle, routes }) => {
      const app = new Hono()
      app.use(hono.idempotency(options))
      for (const route of routes) app.all(route, (context) => handle(context.req.raw, context.get('oncekey')))
      return listening(createAdaptorServer({ fetch: app.fetch, overrideGlobalObjects }) as Server)
    },
  }
}

export const honoPlainSubject: FetchAdapterUnderTest = honoSubject('hono', false)
/** As `serve()` does it unless told otherwise: with its own light Request and Response. */
export const honoLightSubject: FetchAdapterUnderTest = honoSubject('hono, light objects', true)

export const fetchSubject: FetchAdapterUnderTest = {
  name: 'fetch',
  flavour: 'fetch',
  thrown: 'kept',
  serve: async ({ options, handle }) => listening(createServer(bridge(fetch.idempotency(options)(handle)))),
}

/** The smallest server for a `(Request) => Response`: what a runtime does, with nothing of its own in between. */
export function bridge(handler: (request: Request) => Promise<Response>): RequestListener {
  return (incoming, response) => {
    const { method, headers } = incoming
    const hasBody = headers['content-length'] !== undefined || headers['transfer-encoding'] !== undefined
    const body = hasBody && method !== 'GET' && method !== 'HEAD' ? unreadBody(incoming) : undefined
    const gone = new AbortController()
    response.on('close', () => gone.abort())
    answer(handler, toRequest(incoming, body, gone.signal), response).catch(() => {
      if (response.headersSent) response.destroy()
      else response.writeHead(500).end()
    })
  }
}

async function answer(
  handler: (request: Request) => Promise<Response>,
  request: Request,
  response: ServerResponse,
): Promise<void> {
  const answered = await handler(request)
  const headers: string[] = []
  answered.headers.forEach((value, name) => {
    headers.push(name, value)
  })
  response.writeHead(answered.status, headers)
  if (answered.body) await pipeline(Readable.fromWeb(answered.body as never), response)
  else response.end()
}

/** Touches the request only when somebody reads: Node throws away a body that nobody touched, and goes on. */
function unreadBody(incoming: IncomingMessage): ReadableStream<Uint8Array> {
  let chunks: AsyncIterator<Uint8Array> | undefined
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        chunks ??= incoming[Symbol.asyncIterator]() as AsyncIterator<Uint8Array>
        const { done, value } = await chunks.next()
        if (done) controller.close()
        else controller.enqueue(value)
      },
    },
    { highWaterMark: 0 },
  )
}

function toRequest(
  incoming: IncomingMessage,
  body: ReadableStream<Uint8Array> | Buffer<ArrayBuffer> | undefined,
  signal?: AbortSignal,
): Request {
  const headers = new Headers()
  const { rawHeaders } = incoming
  for (let i = 0; i < rawHeaders.length; i += 2) headers.append(rawHeaders[i] ?? '', rawHeaders[i + 1] ?? '')
  return new Request(`http://${incoming.headers.host}${incoming.url}`, {
    method: incoming.method ?? 'GET',
    headers,
    ...(body && { body, duplex: 'half' as const }),
    ...(signal && { signal }),
  })
}
