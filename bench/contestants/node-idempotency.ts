import fastify, { type FastifyRequest } from 'fastify'
import { addFastifyRoute, serveFastify } from './bare.ts'
import type { Started } from './index.ts'
import { peer } from './peers.ts'

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

/** Its plugin for Fastify is not in the registry; these hooks are the leanest use of its core that answers correctly. */
export async function start(): Promise<Started> {
  const { Idempotency, IdempotencyError } = peer<Core>('@node-idempotency/core')
  const { MemoryStorageAdapter } = peer<{ MemoryStorageAdapter: new () => object }>(
    '@node-idempotency/storage-adapter-memory',
  )
  const idempotency = new Idempotency(new MemoryStorageAdapter())
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
