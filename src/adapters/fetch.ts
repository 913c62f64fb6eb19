import type { Run } from '../execution.ts'
import { protectFetch } from '../http/fetch.ts'
import { type IdempotencyOptions, Protection } from '../http/protection.ts'

export type { IdempotencyOptions }

/** `run` is `undefined` when the request is not covered. */
export type FetchHandler = (request: Request, run?: Run) => Response | Promise<Response>

/** For anything that is `(Request) => Response`: `export default { fetch: idempotency({ store, principal })(handler) }`. */
export function idempotency(
  options: IdempotencyOptions<Request>,
): (handler: FetchHandler) => (request: Request) => Promise<Response> {
  const protection = new Protection(options)
  const { header } = protection.contract.key
  return (handler) => (incoming) => {
    const url = new URL(incoming.url)
    const facts = {
      method: incoming.method,
      target: url.pathname + url.search,
      route: url.pathname,
      keys: incoming.headers.get(header) ?? undefined,
    }
    const proceed = async (request: Request, run: Run | undefined) => {
      if (!run) return handler(request)
      try {
        return await handler(request, run)
      } catch (error) {
        // The retry must get what the first request got, so the answer is made here and not by whoever catches this.
        console.error(error)
        return new Response('Internal Server Error', { status: 500 })
      }
    }
    const rebuilt = (request: Request) => request
    return protectFetch(protection, { request: incoming, incoming, facts, rebuilt, proceed })
  }
}
