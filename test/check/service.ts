import { randomUUID } from 'node:crypto'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import { onTestFinished } from 'vitest'
import type { CheckOptions } from '../../src/check/index.ts'
import type { AdapterServer } from '../../src/testing/adapter-suite.ts'

export interface Service {
  effects: number
  handle(request: Request): Promise<Response>
}

/** How long the slow payload takes: longer than the check waits before it sends the duplicate. */
const SLOW_MS = 400
/** For a defect that shows only when the duplicate truly comes meanwhile, also on a busy machine. */
export const VERY_SLOW_MS = 2_000

/** Takes orders, and has all that the check looks at: an id, a location, a cookie, two encodings, failures, slowness. */
export function orderService(answer: (id: number) => Response = ordered, slowMs: number = SLOW_MS): Service {
  const service: Service = {
    effects: 0,
    async handle(request) {
      const { pathname } = new URL(request.url)
      if (request.method === 'GET' && pathname === '/count') return Response.json({ orders: { made: service.effects } })
      if (request.method !== 'POST') return new Response('Nothing to read here.', { status: 405 })
      const body = await request.text()
      if (!isJson(body)) return Response.json({ error: 'This is not JSON.' }, { status: 400 })
      const order = JSON.parse(body) as { fail?: boolean; slow?: boolean }
      if (order.fail) return new Response('planned by the test', { status: 500 })
      const id = ++service.effects
      if (order.slow) await new Promise((resolve) => setTimeout(resolve, slowMs))
      return encoded(request, answer(id))
    },
  }
  return service
}

function ordered(id: number): Response {
  // Spaces and an escape that nobody who writes it anew would keep.
  return new Response(`{ "id": ${id}, "name": "caf\\u00e9", "price": 1.50 }`, {
    status: 201,
    headers: {
      'Content-Type': 'application/json',
      Location: `/orders/${id}`,
      'Set-Cookie': `session=${randomUUID()}; HttpOnly`,
    },
  })
}

async function encoded(request: Request, response: Response): Promise<Response> {
  if (!request.headers.get('accept-encoding')?.includes('gzip') || response.body === null) return response
  const bytes = gzipSync(Buffer.from(await response.arrayBuffer()))
  const headers = new Headers(response.headers)
  headers.set('Content-Encoding', 'gzip')
  headers.set('Vary', 'Accept-Encoding')
  return new Response(bytes, { status: response.status, headers })
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

export function baseOf({ server, close }: AdapterServer): string {
  onTestFinished(async () => {
    server.closeAllConnections()
    await close()
  })
  return portOf(server)
}

function portOf(server: Server): string {
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Everything that can be told of the service. */
export function everything(base: string): CheckOptions {
  return {
    url: `${base}/orders`,
    headers: [['Authorization', 'Bearer alice']],
    secondPrincipal: [['Authorization', 'Bearer bob']],
    body: '{"amount":{{n}},"note":"{{uuid}}"}',
    failBody: '{"fail":true,"n":{{n}}}',
    slowBody: '{"slow":true,"n":{{n}}}',
    countUrl: `${base}/count`,
    countPath: 'orders.made',
  }
}
