import assert from 'node:assert/strict'
import { inputRequired, McpServer, type ServerContext } from '@modelcontextprotocol/server'
import { afterEach, describe, it } from 'vitest'
import { z } from 'zod'
import { closeClients, inMemory, overHttp } from '../../test/adapters/mcp-clients.ts'
import { resources } from '../contracts/resources.ts'
import { memoryStore } from '../stores/memory.ts'
import { idempotency } from './mcp.ts'

afterEach(closeClients)

describe('oncekey/mcp, calls of more than one round', () => {
  it('a tool that asks for input is not done: its next round runs, and is then kept', async () => {
    let ran = 0
    const once = idempotency({ store: memoryStore(), principal: 'public', contract: resources })
    const make = () => {
      const server = new McpServer({ name: 'bank', version: '1' })
      const inputSchema = z.object({ idempotencyKey: z.string() })
      const close = once('close', async (_args: z.infer<typeof inputSchema>, context: ServerContext) => {
        if (context.mcpReq.inputResponses === undefined) {
          const requestedSchema = { type: 'object' as const, properties: { sure: { type: 'boolean' as const } } }
          return inputRequired({ inputRequests: { sure: inputRequired.elicit({ message: 'Sure?', requestedSchema }) } })
        }
        return { content: [{ type: 'text' as const, text: `closed ${++ran}` }] }
      })
      server.registerTool('close', { inputSchema }, close)
      return server
    }
    const client = await overHttp(make)
    let asked = 0
    client.setRequestHandler('elicitation/create', async () => {
      asked++
      return { action: 'accept', content: { sure: true } }
    })
    const call = () => client.callTool({ name: 'close', arguments: { idempotencyKey: 'k' } })
    const first = await call()
    const again = await call()
    assert.deepEqual(again.content, first.content)
    assert.equal(again._idempotent_replay, true)
    assert.deepEqual([ran, asked], [1, 1])
  })

  it('passes the client’s abort on to the tool', async () => {
    const aborted = Promise.withResolvers<void>()
    const started = Promise.withResolvers<void>()
    const once = idempotency({ store: memoryStore(), principal: 'public', contract: resources })
    const server = new McpServer({ name: 'bank', version: '1' })
    const inputSchema = z.object({ idempotencyKey: z.string() })
    // Written in place, as a user would: the types of both arguments come from the schema and from the server.
    server.registerTool(
      'wait',
      { inputSchema },
      once('wait', async ({ idempotencyKey }, { mcpReq }) => {
        mcpReq.signal.addEventListener('abort', () => aborted.resolve())
        started.resolve()
        await aborted.promise
        return { content: [{ type: 'text', text: `${idempotencyKey.trim()} was aborted` }], isError: true }
      }),
    )
    const client = await inMemory(() => server)
    const controller = new AbortController()
    const call = client.callTool({ name: 'wait', arguments: { idempotencyKey: 'k' } }, { signal: controller.signal })
    await started.promise
    controller.abort()
    await assert.rejects(call)
    await aborted.promise
  })

  it('works with the callbacks of sdk 1.x, which have _meta and authInfo on the second argument itself', async () => {
    let ran = 0
    const principal = ({ context }: { context: { authInfo?: { clientId: string } | undefined } }) =>
      context.authInfo?.clientId
    const once = idempotency({ store: memoryStore(), principal, contract: resources })
    const pay = once('pay', async (_args: { amount: number }) => ({ content: [{ type: 'text', text: `${++ran}` }] }))
    const extra = { _meta: { 'oncekey/idempotencyKey': 'k' }, authInfo: { clientId: 'alice' } }
    const first = await pay({ amount: 1 }, extra)
    const again = await pay({ amount: 1 }, { ...extra })
    assert.deepEqual(again, { ...first, _meta: { 'oncekey/replayed': true }, _idempotent_replay: true })
  })
})
