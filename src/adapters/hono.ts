import type { Context, MiddlewareHandler } from 'hono'
import type { Run } from '../execution.ts'
import { protectFetch } from '../http/fetch.ts'
import { bodyIsGone, type IdempotencyOptions, Protection } from '../http/protection.ts'

export type { IdempotencyOptions }

declare module 'hono' {
  interface ContextVariableMap {
    /** The run behind this request; `undefined` when the request is not covered. */
    oncekey: Run | undefined
  }
}

/** `app.use(idempotency({ store, principal }))`. */
export function idempotency(options: IdempotencyOptions<Context>): MiddlewareHandler {
  const protection = new Protection(options)
  const { header } = protection.contract.key
  return async (context, next) => {
    // An outer layer already holds this request's operation.
    if (context.get('oncekey')) return next()
    const url = new URL(context.req.url)
    const facts = {
      method: context.req.method,
      target: url.pathname + url.search,
      route: context.req.matchedRoutes.at(-1)?.path ?? url.pathname,
      keys: context.req.header(header),
    }
    const proceed = async (incoming: Request, run: Run | undefined) => {
      context.req.raw = incoming
      context.set('oncekey', run)
      await next()
      return context.res
    }
    const rebuilt = (incoming: Request) => {
      context.req.raw = incoming
      return context
    }
    const incoming = context.req.raw.bodyUsed ? await fromCache(context) : context.req.raw
    const response = await protectFetch(protection, { request: context, incoming, facts, rebuilt, proceed })
    if (context.finalized && response !== context.res) context.res = undefined
    context.res = response
  }
}

/** A middleware that has read the body left it in Hono's own cache; a form would come back with another boundary. */
async function fromCache({ req }: Context): Promise<Request> {
  const { url, method, headers } = req.raw
  if (Object.keys(req.bodyCache).every((kind) => kind === 'formData' || kind === 'parsedBody')) throw bodyIsGone()
  return new Request(url, { method, headers, body: await req.arrayBuffer() })
}
