import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, afterEach, describe, it } from 'vitest'
import { resources } from '../../src/contracts/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { ApiError, createClient } from './client.ts'
import type { Hooks } from './records.ts'
import { type Path, paths } from './schema.ts'
import { type Called, Testbed, type ToolCaller, Turnstile } from './testbed.ts'

const found = await findMongod()
const title =
  typeof found === 'string' ? `resources (skipped: ${found})` : `resources, tools and client on ${found.title}`
const closing: (() => Promise<unknown>)[] = []

async function given(hooks?: Hooks): Promise<Testbed> {
  if (typeof found === 'string') throw new Error(found)
  const bed = await Testbed.open(found.url, resources, hooks)
  closing.push(() => bed.close())
  return bed
}

afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close()
})
afterAll(async () => {
  if (typeof found !== 'string') await found.stop()
})

const ACME = { accountName: 'Acme' }
const SAMPLES: { readonly [P in Path]: object } = {
  account: ACME,
  contact: { name: 'Ada' },
  opportunity: { title: 'Big', amount: 5 },
}

const codeOf = ({ structuredContent }: Called) => (structuredContent as { error: { code: string } }).error.code

/** As a client sees it: the same result, with the mark of a replay on it. */
function assertReplay(first: Called, again: Called): void {
  assert.equal(first._idempotent_replay, undefined)
  assert.equal(again._idempotent_replay, true)
  assert.deepEqual([again.content, again.structuredContent], [first.content, first.structuredContent])
}

const TRANSPORTS: Readonly<Record<string, (bed: Testbed) => Promise<ToolCaller>>> = {
  stdio: (bed) => bed.overStdio(),
  'HTTP, protocol of 2026': (bed) => bed.overHttp(),
  'HTTP, protocol of 2025': (bed) => bed.overHttp('anna-token', undefined),
}

describe.skipIf(typeof found === 'string')(title, () => {
  for (const [name, connect] of Object.entries(TRANSPORTS)) {
    it(`D1 D12: every create tool takes idempotencyKey, and replays with _idempotent_replay (${name})`, async () => {
      const bed = await given()
      const agent = await connect(bed)
      const { tools } = await agent.client.listTools()
      assert.deepEqual(
        tools.map((tool) => tool.name).sort(),
        paths.flatMap((path) => [`create_${path}`, `list_${path}`]).sort(),
      )
      for (const path of paths) {
        const { inputSchema } = tools.find((tool) => tool.name === `create_${path}`) ?? {}
        assert.ok(inputSchema?.properties?.idempotencyKey)
        assert.deepEqual(inputSchema?.required, ['record'])
        assertReplay(await agent.create(path, SAMPLES[path], 'k'), await agent.create(path, SAMPLES[path], 'k'))
        assert.equal(await bed.count(path), 1)
      }
    })
  }

  it('D12: a retry over another transport and from another process is the same call', async () => {
    const bed = await given()
    const [stdio, http] = [await bed.overStdio(), await bed.overHttp()]
    const first = await stdio.create('account', ACME, 'k')
    assertReplay(first, await http.create('account', ACME, 'k'))
    assertReplay(first, await (await bed.overStdio()).create('account', ACME, 'k'))
    assert.equal(await bed.count('account'), 1)
  })

  it('D3 D4: the tools hash the effective record', async () => {
    const bed = await given()
    const agent = await bed.overHttp()
    const first = await agent.create('account', { ...ACME, creditLimit: 9e6, tags: ['a', 'b'] }, 'k')
    assert.equal((first.structuredContent as { creditLimit?: number }).creditLimit, undefined)
    assertReplay(first, await agent.create('account', { tags: ['a', 'b'], ...ACME }, 'k'))
    const conflict = await agent.create('account', { ...ACME, tags: ['b', 'a'] }, 'k')
    assert.deepEqual([conflict.isError, codeOf(conflict)], [true, 'IDEMPOTENCY_CONFLICT'])
    assert.equal(await bed.count('account'), 1)
  })

  it('D6: a tool’s call in progress refuses its retry, and a conflict is a conflict', async () => {
    using turnstile = new Turnstile()
    const bed = await given({ beforeCreate: () => turnstile.pass() })
    const agent = await bed.overHttp()
    const first = agent.create('account', ACME, 'k')
    await turnstile.arrived
    assert.equal(codeOf(await agent.create('account', ACME, 'k')), 'IDEMPOTENCY_IN_PROGRESS')
    assert.equal(codeOf(await agent.create('account', { accountName: 'Other' }, 'k')), 'IDEMPOTENCY_CONFLICT')
    turnstile.open()
    assertReplay(await first, await agent.create('account', ACME, 'k'))
    assert.equal(await bed.count('account'), 1)
  })

  it('D7: a tool that fails or throws leaves the key free', async () => {
    let isBroken = true
    const beforeCreate = () => {
      if (isBroken) throw new Error('the rules engine is down')
    }
    const bed = await given({ beforeCreate })
    const agent = await bed.overHttp()
    assert.equal(
      codeOf(await agent.create('contact', { name: 'Ada', accountId: 'nowhere' }, 'k')),
      'REFERENCE_NOT_FOUND',
    )
    const thrown = await agent.create('contact', { name: 'Ada' }, 'k')
    assert.deepEqual([thrown.isError, thrown.content], [true, [{ type: 'text', text: 'the rules engine is down' }]])
    assert.equal(await bed.keys.countDocuments({ key: 'k' }), 0)
    isBroken = false
    const created = await agent.create('contact', { name: 'Ada Lovelace' }, 'k')
    assertReplay(created, await agent.create('contact', { name: 'Ada Lovelace' }, 'k'))
    assert.equal(await bed.count('contact'), 1)
  })

  it('D8 D14: a tool is a route of its own, and users never meet', async () => {
    const bed = await given()
    await bed.post('account', ACME, { key: 'k' })
    const anna = await (await bed.overHttp()).create('account', ACME, 'k')
    const zoe = await (await bed.overHttp('zoe-token')).create('account', ACME, 'k')
    assert.deepEqual([anna._idempotent_replay, zoe._idempotent_replay], [undefined, undefined])
    assert.equal(await bed.count('account'), 3)
    const documents = await bed.keys.find({ key: 'k' }).toArray()
    assert.deepEqual(documents.map(({ userId, route }) => `${userId} ${route}`).sort(), [
      'anna POST /api/v1/account',
      'anna create_account',
      'zoe create_account',
    ])
    for (const document of documents) assert.match(document.bodyHash, /^[0-9a-f]{64}$/)
  })

  it('D9: a tool’s call without a key never looks at the keys', async () => {
    const bed = await given()
    const agent = await bed.overHttp()
    const commands = await bed.commandsOf(async () => {
      for (let i = 0; i < 2; i++) assert.equal((await agent.create('account', ACME))._idempotent_replay, undefined)
    })
    assert.deepEqual(
      commands.map(({ commandName, command }) => `${commandName} ${command[commandName]}`),
      Array(2).fill('insert account'),
    )
  })

  it('D13: the client sends the key that it is given, and the same on every retry of one call', async () => {
    const bed = await given()
    const seen: (string | string[] | undefined)[] = []
    const url = await losing(bed.url, 2, seen)
    const client = createClient({ url, token: 'anna-token', retrying: { backoffMs: 1 } })
    const { record, isReplay } = await client.account.create({ accountName: 'Acme' }, { idempotencyKey: 'order-7' })
    assert.deepEqual(seen, ['order-7', 'order-7', 'order-7'])
    assert.equal(isReplay, true, 'the first attempt had created it, though nobody heard of it')
    assert.deepEqual([record.accountName, record.tenantId], ['Acme', 'acme'])
    assert.deepEqual(await client.account.list(), [record])
    await assert.rejects(
      client.account.create({ accountName: 'Other' }, { idempotencyKey: 'order-7' }),
      (error: unknown) => {
        return error instanceof ApiError && error.status === 409 && error.code === 'IDEMPOTENCY_CONFLICT'
      },
    )
  })

  it('D13: without a key of the caller’s, each call has one of its own', async () => {
    const bed = await given()
    const seen: (string | string[] | undefined)[] = []
    const url = await losing(bed.url, 1, seen)
    const client = createClient({ url, token: 'anna-token', retrying: { backoffMs: 1 } })
    await client.contact.create({ name: 'Ada' })
    await client.contact.create({ name: 'Ada' })
    assert.equal(seen.length, 3)
    assert.equal(seen[0], seen[1])
    assert.notEqual(seen[1], seen[2])
    assert.equal(await bed.count('contact'), 2)
  })
})

/** A network that loses the first answers to POST: the service has done its work, and the client hears nothing. */
async function losing(target: string, answers: number, seen: (string | string[] | undefined)[]): Promise<string> {
  let lost = 0
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const { method = 'GET', url = '/', headers } = request
    const body = method === 'POST' ? { body: Buffer.concat(chunks) } : {}
    if (method === 'POST') seen.push(headers['idempotency-key'])
    const sent = ['authorization', 'content-type', 'idempotency-key'].flatMap((name) => {
      return typeof headers[name] === 'string' ? [[name, headers[name]] as [string, string]] : []
    })
    const answer = await fetch(new URL(url, target), { method, headers: sent, ...body })
    const text = await answer.text()
    if (method === 'POST' && lost++ < answers) return response.destroy()
    response.writeHead(answer.status, {
      'content-type': 'application/json',
      [REPLAY]: answer.headers.get(REPLAY) ?? 'false',
    })
    response.end(text)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  closing.push(async () => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const REPLAY = 'Idempotency-Replay'
