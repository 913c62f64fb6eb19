import { once } from 'node:events'
import { createServer, type Server as HttpServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'

/** API keys, and whose they are. */
export const ORGANIZATIONS: ReadonlyMap<string, string> = new Map([
  ['key-acme', 'acme'],
  ['key-globex', 'globex'],
])

export async function listen(app: RequestListener, port = 0): Promise<{ server: HttpServer; url: string }> {
  const server = createServer(app).listen(port, '127.0.0.1')
  await once(server, 'listening')
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

export async function closed(server: HttpServer): Promise<void> {
  server.closeAllConnections()
  server.close()
  await once(server, 'close')
}
