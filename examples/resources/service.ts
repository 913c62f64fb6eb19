import { createMcpHandler, type McpServerFactory } from '@modelcontextprotocol/server'
import fastify, { type FastifyInstance, type FastifyRequest } from 'fastify'
import type { Db } from 'mongodb'
import { idempotency } from '../../src/adapters/fastify.ts'
import { resources } from '../../src/contracts/index.ts'
import type { Contract, Store } from '../../src/index.ts'
import { mongodbStore } from '../../src/stores/mongodb.ts'
import { type Caller, effective, failed, type Hooks, Records } from './records.ts'
import { type Path, paths } from './schema.ts'
import { createTools } from './tools.ts'
import { callerWith } from './users.ts'

export interface ResourcesOptions {
  readonly db: Db
  readonly contract?: Contract
  readonly hooks?: Hooks
}

/** An API and the tools for agents, both from the schema, both safe to retry. */
export function createResources(options: ResourcesOptions): FastifyInstance {
  const { db, contract = resources, hooks = {} } = options
  const records = new Records(db, hooks)
  const store = keyStore(db)
  const app = fastify()
  const callers = new WeakMap<FastifyRequest, Caller>()
  const callerOf = (request: FastifyRequest) => callers.get(request) as Caller

  app.addHook('onRequest', async (request, reply) => {
    const caller = callerWith(tokenOf(request))
    if (!caller) return reply.code(401).send(failed(401, 'UNAUTHORIZED', 'Send a bearer token that is known.').body)
    callers.set(request, caller)
  })
  app.setErrorHandler(async (error: Error & { statusCode?: number }, _request, reply) => {
    const { statusCode = 500, message } = error
    if (statusCode < 500) return reply.code(statusCode).send(failed(statusCode, 'BAD_REQUEST', message).body)
    return reply.code(statusCode).send(failed(statusCode, 'INTERNAL', 'The server failed. Try again.').body)
  })
  app.addHook('onClose', () => store.close())

  app.register(async (rest) => {
    rest.register(
      idempotency({
        store,
        contract,
        principal: (request) => callerOf(request).userId,
        // The hash is over what will be written, not over what was sent.
        payload: (request) => effective(pathOf(request), callerOf(request), request.body),
        route: (request) => `${request.method} ${request.routeOptions.url}`,
        labels: true,
      }),
    )
    for (const path of paths) {
      rest.post(`${PREFIX}${path}`, async (request, reply) => {
        const { status, body } = await records.create(path, callerOf(request), request.body)
        return reply.code(status).send(body)
      })
      rest.get(`${PREFIX}${path}`, async (request) => (await records.list(path, callerOf(request))).body)
    }
  })

  serveMcp(app, createTools({ records, store, contract, callerOf: (auth) => callerWith(auth?.token) }))
  return app
}

/** The keys, in a collection of their own. */
export function keyStore(db: Db): Store {
  return mongodbStore(db.collection('idempotency_key'), {
    fields: { key: 'key', userId: 'principal', route: 'route', bodyHash: 'fingerprint' },
    unique: ['key', 'userId', 'route'],
  })
}

const PREFIX = '/api/v1/'

function pathOf(request: FastifyRequest): Path {
  return request.routeOptions.url?.slice(PREFIX.length) as Path
}

function tokenOf({ headers: { authorization = '' } }: FastifyRequest): string | undefined {
  return /^Bearer (\S+)$/.exec(authorization)?.[1]
}

/** Streamable HTTP beside the REST routes. The key of a tool's call is in its arguments: the header has no part in it. */
function serveMcp(app: FastifyInstance, tools: McpServerFactory): void {
  const handler = createMcpHandler(tools)
  app.addHook('onClose', () => handler.close())
  app.route({
    method: ['POST', 'GET', 'DELETE'],
    url: '/mcp',
    async handler(request, reply) {
      const { method, headers, body: parsedBody } = request
      const left = new AbortController()
      reply.raw.once('close', () => left.abort())
      const url = new URL(request.url, `http://${headers.host}`)
      const incoming = new Request(url, { method, headers: headers as Record<string, string>, signal: left.signal })
      const token = tokenOf(request) ?? ''
      const authInfo = { token, clientId: callerWith(token)?.userId ?? '', scopes: [] }
      return reply.send(await handler.fetch(incoming, { authInfo, parsedBody }))
    },
  })
}
