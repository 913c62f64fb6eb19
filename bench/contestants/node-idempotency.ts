import fastify, { type FastifyRequest } from 'fastify'
import { addFastifyRoute, serveFastify } from './bare.ts'
import type { Started } from './index.ts'
import { peer } from './peers.ts'
import { serverOf } from './servers.ts'

interface Idempotency {
  onRequest(request: Parameters): Promise<Recorded | undefined>
  onResponse(request: Parameters, response: Recorded): Promise<void>
}

interface Parameters {
  readonly method: string
  readonly path: string
  readonly headers: FastifyRequest['headers']
  readonly body: unknown
}

interface Recorded {
  readonly body?: string
  readonly additional?: { readonly status: number; readonly type: string }
}

interface Core {
  readonly Idempotency: new (storage: object) => Idempotency
  readonly IdempotencyError: new () => Error & { readonly code: string }
}

interface RedisStorage {
  connect(): Promise<void>
  disconnect(): Promise<void>
}

export async function startMemory(): Promise<Started> {
  const { MemoryStorageAdapter } = peer<{ MemoryStorageAdapter: new () => object }>(
    '@node-idempotency/storage-adapter-memory',
  )
  return start(new MemoryStorageAdapter())
}

export async function startRedis(): Promise<Started> {
  const { RedisStorageAdapter } = peer<{ RedisStorageAdapter: new (options: { url: string }) => RedisStorage }>(
    '@node-idempotency/storage-adapter-redis',
  )
  const storage = new RedisStorageAdapter(await serverOf('redis'))
  await storage.connect()
  const started = await start(storage)
  const close = async () => {
    await started.close()
    await storage.disconnect()
  }
  return { ...started, close }
}

/** Its plugin for Fastify is not in the registry; these hooks are the leanest use of its core that answers correctly. */
async function start(storage: object): Promise<Started> {
  const { Idempotency, IdempotencyError } = peer<Core>('@node-idempotency/core')
  const idempotency = new Idempotency(storage)
  const app = fastify()
  // Answers that are not the handler's own are not recorded.
  const foreign = new WeakSet<FastifyRequest>()

  app.addHook('preHandler', async (request, reply) => {
    try {
      const recorded = await idempotency.onRequest(parametersOf(request))
      if (recorded === undefined) return
      foreign.add(request)
      reply.code(recorded.additional?.status ?? 200).header('idempotent-replayed', 'true')
      return reply.type(recorded.additional?.type ?? 'text/plain').send(recorded.body)
    } catch (error) {
      foreign.add(request)
      if (!(error instanceof IdempotencyError)) throw error
      return reply.code(error.code === 'REQUEST_IN_PROGRESS' ? 409 : 422).send({ code: error.code })
    }
  })
  app.addHook('onSend', async (request, reply, payload) => {
    if (foreign.has(request)) return
    await idempotency.onResponse(parametersOf(request), {
      body: String(payload),
      additional: { status: reply.statusCode, type: String(reply.getHeader('content-type')) },
    })
  })
  addFastifyRoute(app)
  return serveFastify(app)
}

function parametersOf({ method, url, headers, body }: FastifyRequest): Parameters {
  return { method, path: url, headers, body }
}
