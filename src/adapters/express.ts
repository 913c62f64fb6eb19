import type { Request, RequestHandler } from 'express'
import { headerValues, protectNode } from '../http/node.ts'
import { type IdempotencyOptions, Protection } from '../http/protection.ts'

export { currentRun, declareOutcome } from '../http/node.ts'
export type { IdempotencyOptions }

/** `app.use(idempotency({ store, principal }))`, or on a single route, where it also knows the route's template. */
export function idempotency(options: IdempotencyOptions<Request>): RequestHandler {
  const protection = new Protection(options)
  const { header } = protection.contract.key
  return (request, response, next) => {
    const facts = {
      method: request.method ?? 'GET',
      target: request.originalUrl,
      route: routeTemplate(request),
      keys: headerValues(request, header),
    }
    const exchange = { request, incoming: request, response, facts, parsedBody: request.body, proceed: next }
    protectNode(protection, exchange, next)
  }
}

/** Known once the route has matched; as an application-wide middleware it runs before that, and the path must do. */
function routeTemplate({ baseUrl, route, path }: Request): string {
  return baseUrl + (route?.path === undefined ? path : String(route.path))
}
