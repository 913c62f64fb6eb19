import { Client, InMemoryTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { createMcpHandler, type McpServer } from '@modelcontextprotocol/server'

/** A real client of a server that `make` makes. Over HTTP the call is `user`'s. */
export type Connect = (make: () => McpServer, user?: string) => Promise<Client>

/** Of the protocol of 2025, with a session. */
export const inMemory: Connect = async (make) => {
  const [near, far] = InMemoryTransport.createLinkedPair()
  await make().connect(far)
  const client = new Client({ name: 'test', version: '1' })
  await client.connect(near)
  open.push(client)
  return client
}

/** Of the protocol of 2026: a server for each request. */
export const overHttp: Connect = async (make, user = 'alice') => {
  const handler = createMcpHandler(make)
  const negotiated = { versionNegotiation: { mode: { pin: '2026-07-28' } }, capabilities: { elicitation: {} } }
  const client = new Client({ name: 'test', version: '1' }, negotiated)
  const authInfo = { token: user, clientId: user, scopes: [] }
  const fetch = (url: string | URL, init?: RequestInit) => handler.fetch(new Request(url, init), { authInfo })
  await client.connect(new StreamableHTTPClientTransport(new URL('http://127.0.0.1/mcp'), { fetch }))
  open.push(client, handler)
  return client
}

export async function closeClients(): Promise<void> {
  for (const opened of open.splice(0)) await opened.close()
}

const open: { close(): Promise<void> }[] = []
