import assert from 'node:assert/strict'
import { McpServer } from '@modelcontextprotocol/server'
import { afterEach, describe, it } from 'vitest'
import { z } from 'zod'
import { type Connect, closeClients, inMemory, overHttp } from '../../test/adapters/mcp-clients.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from '../contracts/ietf.ts'
import { resources } from '../contracts/resources.ts'
import { OncekeyError } from '../error.ts'
import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { currentRun, idempotency, type ToolIdempotencyOptions } from './mcp.ts'

const PAY = z.object({ amount: z.number(), note: z.unknown().optional(), idempotencyKey: z.string().optional() })
const PAID = z.object({ payment: z.number() })

/** What the tool does, in the order in which it was called. */
type Act = (amount: number, context: object) => unknown

interface Site {
  /** How often the tool ran. */
  ran(): number
  call(key: string | undefined, args?: Record<string, unknown>, meta?: Record<string, unknown>): Promise<Answered>
  as(user: string): Promise<Site>
}

interface Answered {
  readonly structuredContent?: unknown
  readonly content: readonly unknown[]
  readonly isError?: boolean | undefined
  readonly _meta?: Record<string, unknown> | undefined
  readonly _idempotent_replay?: unknown
}

afterEach(closeClients)

interface SiteOptions extends Partial<ToolIdempotencyOptions> {
  readonly act?: Act
}

async function site(connect: Connect, { act = (amount) => amount, ...options }: SiteOptions = {}): Promise<Site> {
  let ran = 0
  const once = idempotency({ store: memoryStore(), principal: 'public', contract: resources, ...options })
  const make = () => {
    const server = new McpServer({ name: 'bank', version: '1' })
    const pay = once('pay', async ({ amount }: z.infer<typeof PAY>, context) => {
      const payment = ++ran
      const said = await act(amount, context)
      if (said === 'refused') return { content: [{ type: 'text' as const, text: 'no money' }], isError: true }
      return {
        content: [{ type: 'text' as const, text: `paid ${amount}` }],
        structuredContent: { payment },
        _meta: { 'bank/branch': 7 },
      }
    })
    server.registerTool('pay', { inputSchema: PAY, outputSchema: PAID }, pay)
    server.registerTool(
      'ping',
      { inputSchema: z.object({}) },
      once('ping', async () => ({ content: [{ type: 'text' as const, text: `${++ran}` }] })),
    )
    return server
  }
  const of = async (user: string): Promise<Site> => {
    const client = await connect(make, user)
    return {
      ran: () => ran,
      as: of,
      async call(key, { tool = 'pay', ...args } = { amount: 5 }, meta) {
        const given = tool === 'pay' ? { ...args, ...(key !== undefined && { idempotencyKey: key }) } : {}
        return client.callTool({ name: String(tool), arguments: given, ...(meta && { _meta: meta }) })
      },
    }
  }
  return of('alice')
}

const closed: Act = () => {
  throw new Error('the bank is closed')
}

const codeOf = ({ structuredContent }: Answered) => (structuredContent as { error: { code: string } }).error.code

for (const [name, connect] of Object.entries({
  'a client of 2025, in memory': inMemory,
  'a client of 2026, over HTTP': overHttp,
})) {
  describe(`oncekey/mcp, ${name}`, () => {
    it('D12: replays the whole result, and says so where a client sees it', async () => {
      const bank = await site(connect)
      const first = await bank.call('k')
      const again = await bank.call('k')
      assert.equal(bank.ran(), 1)
      assert.equal(first._idempotent_replay, undefined)
      assert.equal(again._idempotent_replay, true)
      assert.equal(again._meta?.['oncekey/replayed'], true)
      assert.equal(again._meta?.['bank/branch'], 7)
      assert.deepEqual(again.content, first.content)
      assert.deepEqual(again.structuredContent, { payment: 1 })
    })

    it('takes the key from _meta, also for a tool without other arguments, and never from the id of the request', async () => {
      const bank = await site(connect)
      const meta = { 'oncekey/idempotencyKey': 'k' }
      await bank.call(undefined, { amount: 5 }, meta)
      const again = await bank.call('k')
      assert.equal(again._idempotent_replay, true)
      const [ping, pong] = [
        await bank.call(undefined, { tool: 'ping' }, meta),
        await bank.call(undefined, { tool: 'ping' }, meta),
      ]
      assert.deepEqual(pong.content, ping.content)
      assert.equal(pong._idempotent_replay, true)
      assert.equal(bank.ran(), 2)
    })

    it('D9: without a key every call runs, and the store is not asked', async () => {
      const store = { name: 'none', claim: () => assert.fail('the store was asked') } as unknown as Store
      const bank = await site(connect, { store })
      for (const key of [undefined, '']) assert.equal((await bank.call(key))._idempotent_replay, undefined)
      assert.equal(bank.ran(), 2)
    })

    it('D3: the same key with other arguments is a conflict, in the order of names it is not', async () => {
      const bank = await site(connect)
      await bank.call('k', { amount: 5, note: { a: 1, b: [1, 2] } })
      const conflict = await bank.call('k', { amount: 5, note: { a: 1, b: [2, 1] } })
      assert.equal(conflict.isError, true)
      assert.equal(codeOf(conflict), 'IDEMPOTENCY_CONFLICT')
      assert.match(JSON.stringify(conflict.content), /IDEMPOTENCY_CONFLICT.*other arguments/)
      const again = await bank.call('k', { note: { b: [1, 2], a: 1 }, amount: 5 })
      assert.equal(again._idempotent_replay, true)
      assert.equal(bank.ran(), 1)
    })

    it('D6: while the first runs, the same call is in progress and another one is a conflict', async () => {
      const started = Promise.withResolvers<void>()
      const goOn = Promise.withResolvers<void>()
      const act = async () => {
        started.resolve()
        await goOn.promise
      }
      const bank = await site(connect, { act })
      const first = bank.call('k')
      await started.promise
      const same = await bank.call('k')
      const other = await bank.call('k', { amount: 6 })
      goOn.resolve()
      assert.equal(codeOf(same), 'IDEMPOTENCY_IN_PROGRESS')
      assert.equal(typeof same._meta?.['oncekey/retryAfterMs'], 'number')
      assert.equal(codeOf(other), 'IDEMPOTENCY_CONFLICT')
      assert.deepEqual((await first).structuredContent, { payment: 1 })
      assert.equal(bank.ran(), 1)
    })

    it('D7: a result that is an error, and a throw, leave the key free', async () => {
      const acts: Act[] = [() => 'refused', closed, () => 'paid']
      const bank = await site(connect, { act: (...given) => acts.shift()?.(...given) })
      assert.deepEqual((await bank.call('k', { amount: -1 })).content, [{ type: 'text', text: 'no money' }])
      const thrown = await bank.call('k', { amount: 0 })
      assert.deepEqual([thrown.isError, thrown.content], [true, [{ type: 'text', text: 'the bank is closed' }]])
      assert.deepEqual((await bank.call('k', { amount: 1 })).structuredContent, { payment: 3 })
      assert.equal((await bank.call('k', { amount: 1 }))._idempotent_replay, true)
    })

    it('keeps an error and a throw where the contract says so', async () => {
      const acts: Act[] = [() => 'refused', closed]
      const bank = await site(connect, { contract: ietf, act: (...given) => acts.shift()?.(...given) })
      const pairs = [
        [await bank.call('a'), await bank.call('a')],
        [await bank.call('b'), await bank.call('b')],
      ] as const
      for (const [first, again] of pairs) {
        assert.deepEqual([again.isError, again.content, again._idempotent_replay], [true, first.content, true])
      }
      assert.equal(bank.ran(), 2)
    })

    it('refuses a call without a key where the contract asks for one', async () => {
      const bank = await site(connect, { contract: defineContract(resources, { key: { absent: 'refuse' } }) })
      assert.equal(codeOf(await bank.call(undefined)), 'IDEMPOTENCY_KEY_MISSING')
      assert.equal(bank.ran(), 0)
    })

    it('refuses two keys, and a key that cannot be read', async () => {
      const bank = await site(connect)
      assert.equal(
        codeOf(await bank.call('k', { amount: 5 }, { 'oncekey/idempotencyKey': 'l' })),
        'IDEMPOTENCY_KEY_INVALID',
      )
      assert.equal(
        codeOf(await bank.call(undefined, { amount: 5 }, { 'oncekey/idempotencyKey': 7 })),
        'IDEMPOTENCY_KEY_INVALID',
      )
      assert.equal(codeOf(await bank.call('two words')), 'IDEMPOTENCY_KEY_INVALID')
      assert.equal(bank.ran(), 0)
      await bank.call('k', { amount: 5 }, { 'oncekey/idempotencyKey': 'k' })
      assert.equal(bank.ran(), 1)
    })

    it('refuses when the store is away, or runs, as the contract says', async () => {
      const away = () => Promise.reject(new OncekeyError('store-unavailable', 'away'))
      const store = { name: 'away', claim: away, settle: away, release: away, renew: away } as unknown as Store
      const shut = await site(connect, { store })
      assert.equal(codeOf(await shut.call('k')), 'IDEMPOTENCY_UNAVAILABLE')
      assert.equal(shut.ran(), 0)
      const open = await site(connect, { store, contract: defineContract(resources, { storeFailure: 'open' }) })
      const answered = await open.call('k')
      assert.equal(answered._meta?.['oncekey/recorded'], false)
      assert.equal(open.ran(), 1)
    })

    it('a result that is too large to keep reaches the client, and the retry does not run', async () => {
      const bank = await site(connect, { contract: defineContract(resources, { limits: { answerBytesMax: 10 } }) })
      assert.deepEqual((await bank.call('k')).structuredContent, { payment: 1 })
      assert.equal(codeOf(await bank.call('k')), 'IDEMPOTENCY_ANSWER_NOT_KEPT')
      assert.equal(bank.ran(), 1)
    })

    it('X7: gives the tool its run', async () => {
      const derived: (string | undefined)[] = []
      const acts: Act[] = [() => 'refused', () => 'paid']
      const act: Act = (amount, context) => {
        derived.push(currentRun(context)?.derive('charge'))
        return acts.shift()?.(amount, context)
      }
      const bank = await site(connect, { act })
      await bank.call('k')
      await bank.call('k')
      assert.equal(derived.length, 2)
      assert.match(String(derived[0]), /^[0-9a-f-]{36}$/)
      assert.equal(derived[0], derived[1])
    })
  })
}

describe('oncekey/mcp', () => {
  it('D8: equal keys of different users and of different tools never meet', async () => {
    const bank = await site(overHttp, { principal: ({ context }) => context.http?.authInfo?.clientId })
    const alice = await bank.call('k')
    const bob = await (await bank.as('bob')).call('k')
    await bank.call(undefined, { tool: 'ping' }, { 'oncekey/idempotencyKey': 'k' })
    assert.deepEqual([alice.structuredContent, bob.structuredContent], [{ payment: 1 }, { payment: 2 }])
    assert.equal(bank.ran(), 3)
    assert.equal((await (await bank.as('bob')).call('k'))._idempotent_replay, true)
  })

  it('X6: nobody starts without a principal, and a call of nobody does not run', async () => {
    const store = memoryStore()
    const unnamed = { store } as unknown as ToolIdempotencyOptions
    assert.throws(() => idempotency(unnamed), { code: 'config-invalid', message: /principal is missing/ })
    const bank = await site(inMemory, { principal: ({ context }) => context.http?.authInfo?.clientId })
    const answered = await bank.call('k')
    assert.equal(answered.isError, true)
    assert.equal(bank.ran(), 0)
  })

  it('names the option that cannot work', () => {
    const store = memoryStore()
    const wrong = { store, principal: 'public', keyArgument: '' } as const
    assert.throws(() => idempotency(wrong), { code: 'config-invalid', message: /keyArgument/ })
    const unknown = { store, principal: 'public', ttl: 5 } as unknown as ToolIdempotencyOptions
    assert.throws(() => idempotency(unknown), { code: 'config-invalid', message: /ttl is not an option/ })
    const once = idempotency({ store, principal: 'public' })
    assert.throws(() => once('', async () => ({})), { code: 'config-invalid' })
  })

  it('a tool that is called without arguments does not run unprotected in silence', async () => {
    const once = idempotency({ store: memoryStore(), principal: 'public' })
    const ping = once('ping', async () => assert.fail('it ran')) as unknown as (context: object) => Promise<object>
    await assert.rejects(ping({ mcpReq: {} }), { code: 'config-invalid', message: /ping .* inputSchema/ })
  })

  it('D4: the payload, if given, is what the operation is about', async () => {
    const bank = await site(inMemory, { payload: ({ args: { amount } }) => ({ amount }) })
    await bank.call('k', { amount: 5, note: 'first' })
    assert.equal((await bank.call('k', { amount: 5, note: 'again' }))._idempotent_replay, true)
    assert.equal(codeOf(await bank.call('k', { amount: 6 })), 'IDEMPOTENCY_CONFLICT')
  })
})
