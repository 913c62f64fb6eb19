import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Contract } from '../contract.ts'
import { currentRun, headerValues, protectNode } from '../http/node.ts'
import { type IdempotencyOptions, Protection } from '../http/protection.ts'

export type { IdempotencyOptions }
export { currentRun }

declare module 'fastify' {
  interface FastifyContextConfig {
    idempotency?: RouteIdempotency
  }
}

/** A route's `config.idempotency`: `false` leaves it alone; a contract replaces the plugin's. */
export type RouteIdempotency = false | { readonly contract: Contract }

export type FastifyIdempotency = (app: FastifyInstance) => Promise<void>

/**
 * `app.register(idempotency({ store, principal }))` covers every route of the instance, whichever was declared first.
 * It runs as a `preHandler` of the instance: after authentication in `onRequest` or `preValidation`, before the
 * pre-handlers of single routes.
 */
export function idempotency(options: IdempotencyOptions<FastifyRequest>): FastifyIdempotency {
  const whole = new Protection(options)
  const overrides = new Map<Contract, Protection<FastifyRequest>>()
  const plugin = async (app: FastifyInstance): Promise<void> => {
    // A contract that cannot work is refused when its route is declared, not when its first request comes.
    app.addHook('onRoute', ({ config }) => void protectionFor(config?.idempotency))
    app.addHook('preHandler', (request, reply, done) => {
      const protection = protectionFor(request.routeOptions.config.idempotency)
      if (protection?.covers(request.method)) protect(protection, request, reply, done)
      else done()
    })
    // Fastify does not send a stream to a client that has left; the answer is to be recorded all the same.
    app.addHook('onSend', (request, reply, payload, done) => {
      if (!reply.raw.destroyed || !isStream(payload) || !currentRun(request)) return done(null, payload)
      const { answerBytesMax } = (protectionFor(request.routeOptions.config.idempotency) ?? whole).contract.limits
      gather(reply, payload, answerBytesMax).then(
        (body) => done(null, body),
        (error) => done(error),
      )
    })
  }
  // Seen by the instance that registers it, not by a child of its own.
  return Object.assign(plugin, { [Symbol.for('skip-override')]: true })

  function protectionFor(config: RouteIdempotency | undefined): Protection<FastifyRequest> | undefined {
    if (config === undefined) return whole
    if (config === false) return undefined
    let protection = overrides.get(config.contract)
    if (!protection) {
      protection = new Protection({ ...options, contract: config.contract })
      overrides.set(config.contract, protection)
    }
    return protection
  }
}

function isStream(payload: unknown): payload is Readable | ReadableStream<Uint8Array> | Response {
  return payload instanceof Readable || payload instanceof ReadableStream || payload instanceof Response
}

/** Nobody will receive it, so what is more than can be kept need not be held: one byte over says that it was too much. */
async function gather(
  reply: FastifyReply,
  payload: Readable | ReadableStream<Uint8Array> | Response,
  bytesMax: number,
): Promise<Buffer> {
  if (payload instanceof Response) {
    reply.code(payload.status)
    for (const [name, value] of payload.headers) reply.header(name, value)
  }
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of payload instanceof Response ? (payload.body ?? []) : payload) {
    if (bytes > bytesMax) continue
    chunks.push(typeof chunk === 'string' ? Buffer.from(chunk) : chunk)
    bytes += chunk.length
  }
  return Buffer.concat(chunks).subarray(0, bytesMax + 1)
}

function protect(
  protection: Protection<FastifyRequest>,
  request: FastifyRequest,
  reply: FastifyReply,
  done: (error?: Error) => void,
): void {
  const facts = {
    method: request.method,
    target: request.originalUrl,
    route: request.routeOptions.url ?? request.originalUrl,
    keys: headerValues(request.raw, protection.contract.key.header),
  }
  const takeOver = () => {
    reply.hijack()
    // What other hooks have set so far (CORS, rate limits) belongs to this answer, too.
    for (const [name, value] of Object.entries(reply.getHeaders())) {
      if (value !== undefined) reply.raw.setHeader(name, value)
    }
  }
  const { raw: incoming, body: parsedBody } = request
  const exchange = { request, incoming, response: reply.raw, facts, parsedBody, proceed: done, takeOver }
  protectNode(protection, exchange, (error) => done(error as Error))
}
