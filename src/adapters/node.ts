import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { headerValues, protectNode } from '../http/node.ts'
import { type IdempotencyOptions, Protection } from '../http/protection.ts'

export { currentRun } from '../http/node.ts'
export type { IdempotencyOptions }

/** For plain node:http: `createServer(idempotency({ store, principal })(listener))`. */
export function idempotency(
  options: IdempotencyOptions<IncomingMessage>,
): (listener: RequestListener) => RequestListener {
  const protection = new Protection(options)
  const { header } = protection.contract.key
  return (listener) => (request, response) => {
    const target = request.url ?? '/'
    const facts = {
      method: request.method ?? 'GET',
      target,
      route: target.split('?', 1)[0] ?? target,
      keys: headerValues(request, header),
    }
    // A listener that fails before it has answered is answered for, and the 500 is what a retry will get.
    const proceed = async () => {
      try {
        await listener(request, response)
      } catch (error) {
        fail(response, error)
      }
    }
    protectNode(protection, { request, incoming: request, response, facts, proceed }, (error) => fail(response, error))
  }
}

/** There is no framework to report to: what broke before the handler ran is shown, and the client gets a bare 500. */
function fail(response: ServerResponse, error: unknown): void {
  if (response.destroyed) return
  console.error(error)
  if (response.headersSent) return void response.destroy()
  response.statusCode = 500
  response.end()
}
