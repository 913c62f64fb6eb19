import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { declareOutcome, headerValues, protectNode } from '../http/node.ts'
import { type IdempotencyOptions, Protection } from '../http/protection.ts'

export { currentRun } from '../http/node.ts'
export type { IdempotencyOptions }
export { declareOutcome }

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
        fail(request, response, error)
      }
    }
    protectNode(protection, { request, incoming: request, response, facts, proceed }, (error) =>
      fail(request, response, error),
    )
  }
}

/**
 * There is no framework to report to: what broke is shown, and the client gets a bare 500, or a broken answer if it had
 * begun. A client that has left gets neither, but the run must come to its end all the same, or its key would be stuck.
 */
function fail(request: IncomingMessage, response: ServerResponse, error: unknown): void {
  console.error(error)
  if (response.headersSent && !response.destroyed) return void response.destroy()
  if (response.headersSent) declareOutcome(request, 'unknown')
  else response.statusCode = 500
  response.end()
}
