import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { Client, StreamableHTTPClientTransport, type Transport } from '@modelcontextprotocol/client'
import { getDefaultEnvironment, StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import type { CommandStartedEvent, Document } from 'mongodb'
import { resourcesFromEnvironment } from '../../src/contracts/index.ts'
import type { Answered, Example, Stage } from '../kit.ts'
import { createClient } from './client.ts'
import type { ResourcesExample } from './example.ts'
import { type Path, paths } from './schema.ts'
import { createResources } from './service.ts'

/** D1 to D14, one after the other. */
export async function tour(stage: Stage, example: Example): Promise<void> {
  const guide = new Guide(stage, example as ResourcesExample)
  await everyRoute(guide)
  await retries(guide)
  await effectivePayload(guide)
  await claims(guide)
  await inProgress(guide)
  await corrections(guide)
  await scopes(guide)
  await timeToLive(guide)
  await tools(guide)
  await client(guide)
}

async function everyRoute({ stage, post, key }: Guide): Promise<void> {
  stage.scene('D1 D2', 'Every resource of the schema has a POST route, and every one of them may be retried.')
  for (const path of paths) {
    const name = key()
    const first = await post(path, SAMPLES[path], name)
    const again = await post(path, SAMPLES[path], name)
    stage.holds(
      first.status === 201 && isReplay(again) && again.text === first.text,
      `${path}: 201, then the same bytes`,
    )
  }
}

async function retries({ stage, post, key }: Guide): Promise<void> {
  stage.scene('D3', 'The same key for something else: nobody can know what was meant, so nothing runs.')
  const name = key()
  const first = await post('account', { accountName: 'Acme' }, name)
  const conflict = await post('account', { accountName: 'Globex' }, name)
  stage.holds(conflict.status === 409 && codeOf(conflict) === 'IDEMPOTENCY_CONFLICT', 'a conflict')
  const again = await post('account', { accountName: 'Acme' }, name)
  stage.holds(isReplay(again) && again.text === first.text, 'which has not touched the first one')
}

async function effectivePayload({ stage, post, key }: Guide): Promise<void> {
  stage.scene(
    'D4',
    'The hash is over what is written: stripped and stamped fields, and the order of names, do not count.',
  )
  const name = key()
  const record = { accountName: 'Acme', address: { city: 'Rome', street: 'Via Appia' }, tags: ['a', 'b'] }
  const first = await post('account', { ...record, creditLimit: 9_000_000 }, name)
  stage.holds(!first.text.includes('creditLimit'), 'a member may not write creditLimit: it was stripped')
  stage.holds(isReplay(await post('account', record, name)), 'so the retry without it is the same')
  stage.holds(
    isReplay(await post('account', { ...record, tenantId: 'globex' }, name)),
    'tenantId is stamped, whatever was sent',
  )
  const turned = { tags: ['a', 'b'], address: { street: 'Via Appia', city: 'Rome' }, accountName: 'Acme' }
  stage.holds(isReplay(await post('account', turned, name)), 'names in another order, at every depth: the same')
  const other = await post('account', { ...turned, tags: ['b', 'a'] }, name)
  stage.holds(codeOf(other) === 'IDEMPOTENCY_CONFLICT', 'a list in another order is another list')
}

async function claims({ stage, post, key, commandsOf, keys }: Guide): Promise<void> {
  stage.scene('D5 D14', 'Claim, execute, complete: what the service sends to MongoDB for one request.')
  const name = key()
  const commands = await commandsOf(() => post('account', { accountName: 'Acme' }, name))
  for (const command of commands) stage.say(command)
  stage.holds(
    commands.join() === 'findAndModify idempotency_key,insert account,update idempotency_key',
    'one write decides who has it, one creates, one completes',
  )
  const indexes = await keys.listIndexes().toArray()
  const isUnique = (index: Document) => index.unique && JSON.stringify(index.key) === '{"key":1,"userId":1,"route":1}'
  stage.holds(indexes.some(isUnique), 'key, userId and route are unique together, by an index')
  const document: Document = (await keys.findOne({ key: name })) ?? {}
  for (const field of STORED) stage.say(`${field}: ${String(document[field])}`)
  stage.holds(
    STORED.every((field) => document[field] !== undefined),
    'the stored document has them all',
  )

  stage.scene('D9', 'No key: no effect at all.')
  const without = await commandsOf(() => post('account', { accountName: 'Acme' }))
  stage.holds(without.join() === 'insert account', 'the collection of the keys is not even looked at')
}

async function inProgress({ stage, post, key, example }: Guide): Promise<void> {
  stage.scene('D6', 'A retry while the first is still running.')
  const name = key()
  const [arrived, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  example.beforeCreate = () => {
    arrived.resolve()
    return goOn.promise
  }
  const first = post('account', { accountName: 'Slow' }, name)
  await arrived.promise
  const same = await post('account', { accountName: 'Slow' }, name)
  stage.holds(same.status === 409 && codeOf(same) === 'IDEMPOTENCY_IN_PROGRESS', 'the same body: in progress')
  const other = await post('account', { accountName: 'Other' }, name)
  stage.holds(codeOf(other) === 'IDEMPOTENCY_CONFLICT', 'another body: a conflict at once')
  example.beforeCreate = () => {}
  goOn.resolve()
  stage.holds((await first).status === 201, 'and the first one ends as if nobody had asked')
}

async function corrections({ stage, post, key, example }: Guide): Promise<void> {
  stage.scene('D7', 'Only success is kept: whoever corrects a mistake goes on under the same key.')
  const name = key()
  stage.holds((await post('contact', {}, name)).status === 400, 'a bad payload')
  example.beforeCreate = () => {
    throw new Error('the rules engine is down')
  }
  stage.holds((await post('contact', { name: 'Ada' }, name)).status === 500, 'a throw')
  example.beforeCreate = () => {}
  const created = await post('contact', { name: 'Ada Lovelace' }, name)
  stage.holds(created.status === 201 && !isReplay(created), 'the corrected one runs')
  stage.holds(isReplay(await post('contact', { name: 'Ada Lovelace' }, name)), 'and from now on it is kept')
}

async function scopes({ stage, post, key }: Guide): Promise<void> {
  stage.scene('D8', 'One key, three operations: another user or another route is another key.')
  const name = key()
  const answers = [
    await post('account', { accountName: 'Acme' }, name),
    await post('account', { accountName: 'Globex' }, name, 'zoe-token'),
    await post('contact', { name: 'Ada' }, name),
  ]
  stage.holds(
    answers.every((answer) => answer.status === 201 && !isReplay(answer)),
    'all of them ran',
  )
}

async function timeToLive({ stage, example, key, keys }: Guide): Promise<void> {
  stage.scene('D10', 'How long an answer is kept, and what is refused at the start.')
  for (const { name, value, source } of example.settings) stage.say(`${name} = ${value} (${source})`)
  try {
    resourcesFromEnvironment({ IDEMPOTENCY_TTL_SECONDS: 'a day' })
    stage.holds(false, 'a setting that cannot be meant is refused')
  } catch (error) {
    stage.holds(String(error).includes('IDEMPOTENCY_TTL_SECONDS'), String(error))
  }

  stage.scene('D11', 'The TTL is a hard ceiling, whether or not anybody has swept.')
  const { contract } = resourcesFromEnvironment({ IDEMPOTENCY_TTL_SECONDS: '0.2' })
  const app = createResources({ db: example.mongo.db(example.database), contract })
  const name = key()
  const send = async (accountName: string) => {
    const headers = { authorization: 'Bearer anna-token', 'idempotency-key': name }
    const { statusCode, body } = await app.inject({
      method: 'POST',
      url: '/api/v1/account',
      headers,
      payload: { accountName },
    })
    stage.say(`a service with IDEMPOTENCY_TTL_SECONDS=0.2: ${statusCode} ${body}`)
    return body
  }
  const first = await send('Acme')
  const old: Document = (await keys.findOne({ key: name })) ?? {}
  await passed(example, old.expiresAt)
  stage.say(
    `expired at ${old.expiresAt.toISOString()}, still in the collection: ${(await keys.countDocuments({ key: name })) === 1}`,
  )
  const again = await send('Acme')
  stage.holds(first !== again, 'it ran again')
  stage.holds(
    (await keys.countDocuments({ key: name, createdAt: old.createdAt })) === 0,
    'and the expired record is gone',
  )
  await app.close()
}

async function tools({ stage, example, key }: Guide): Promise<void> {
  stage.scene('D12 D1', 'The same for an agent: real MCP clients over HTTP and over stdio.')
  const name = key()
  const token = 'anna-token'
  const requestInit = { headers: { Authorization: `Bearer ${token}` } }
  const agents: Readonly<Record<string, Transport>> = {
    HTTP: new StreamableHTTPClientTransport(new URL('/mcp', example.url), { requestInit }),
    stdio: new StdioClientTransport({
      command: process.execPath,
      args: [join(import.meta.dirname, 'mcp-stdio.ts')],
      env: {
        ...getDefaultEnvironment(),
        MONGODB_URL: example.mongodbUrl,
        MONGODB_DATABASE: example.database,
        RESOURCES_TOKEN: token,
      },
    }),
  }
  const replays: unknown[] = []
  for (const [way, transport] of Object.entries(agents)) {
    const agent = new Client({ name: 'tour', version: '1.0.0' })
    await agent.connect(transport)
    const { tools: known } = await agent.listTools()
    stage.holds(
      paths.every((path) => known.some((tool) => tool.name === `create_${path}`)),
      `${way}: a create tool for each resource`,
    )
    const call = async (accountName: string) => {
      const given = { record: { accountName }, idempotencyKey: name }
      stage.say(`→ ${way} tools/call create_account ${JSON.stringify(given)}`)
      const result = await agent.callTool({ name: 'create_account', arguments: given })
      stage.say(`← ${JSON.stringify({ ...result, content: undefined })}`)
      return result as { readonly _idempotent_replay?: unknown; readonly isError?: boolean }
    }
    for (let i = 0; i < 2; i++) replays.push((await call('Acme'))._idempotent_replay)
    stage.holds((await call('Globex')).isError === true, 'another record under this key is refused')
    await agent.close()
  }
  stage.holds(
    JSON.stringify(replays) === '[null,true,true,true]',
    'one created it; all the others got _idempotent_replay',
  )
}

async function client({ stage, example, key }: Guide): Promise<void> {
  stage.scene('D13', 'The TypeScript client, on a network that loses the first two answers.')
  const sent: (string | null)[] = []
  const lossy = async (input: string | URL | Request, init?: RequestInit): Promise<Response> => {
    const response = await fetch(input, init)
    sent.push(new Headers(init?.headers).get('Idempotency-Key'))
    stage.say(
      `→ POST  Idempotency-Key: ${sent.at(-1)}  ← ${response.status}${sent.length <= 2 ? ', which is lost' : ''}`,
    )
    if (sent.length <= 2) throw new TypeError('the connection broke off')
    return response
  }
  const api = createClient({ url: example.url, token: 'anna-token', retrying: { fetch: lossy, backoffMs: 10 } })
  const name = key()
  const { record, isReplay: isAgain } = await api.opportunity.create(
    { title: 'Big', amount: 5 },
    { idempotencyKey: name },
  )
  stage.say(JSON.stringify(record))
  stage.holds(sent.length === 3 && sent.every((given) => given === name), 'one key on all three attempts')
  stage.holds(isAgain, 'and one record: the third attempt got the first one’s answer')
}

const SAMPLES: { readonly [P in Path]: object } = {
  account: { accountName: 'Acme' },
  contact: { name: 'Ada' },
  opportunity: { title: 'Big', amount: 5 },
}
const STORED = ['key', 'userId', 'route', 'bodyHash', 'status', 'body', 'headers', 'expiresAt', 'createdAt'] as const
const WAIT_MS_MAX = 30_000
const LOOK_EVERY_MS = 20

class Guide {
  readonly stage: Stage
  readonly example: ResourcesExample

  constructor(stage: Stage, example: ResourcesExample) {
    this.stage = stage
    this.example = example
  }

  get keys() {
    return this.example.mongo.db(this.example.database).collection('idempotency_key')
  }

  key = (): string => randomUUID().slice(0, 8)

  post = (path: Path, record: object, key?: string, token = 'anna-token'): Promise<Answered> => {
    const headers = {
      Authorization: `Bearer ${token}`,
      'Content-Type': 'application/json',
      ...(key !== undefined && { 'Idempotency-Key': key }),
    }
    const init = { method: 'POST', headers, body: JSON.stringify(record) }
    return this.stage.request(`/api/v1/${path}`, init, ['Idempotency-Replay'])
  }

  /** What an act sends to the database, as `command collection`. */
  commandsOf = async (act: () => Promise<unknown>): Promise<readonly string[]> => {
    const commands: string[] = []
    const listen = ({ databaseName, commandName, command }: CommandStartedEvent) => {
      if (databaseName === this.example.database) commands.push(`${commandName} ${command[commandName]}`)
    }
    this.example.mongo.on('commandStarted', listen)
    await act()
    this.example.mongo.off('commandStarted', listen)
    return commands
  }
}

function isReplay({ headers }: Answered): boolean {
  return headers.get('Idempotency-Replay') === 'true'
}

function codeOf({ text }: Answered): string {
  return (JSON.parse(text) as { error?: { code: string } }).error?.code ?? ''
}

async function passed({ mongo }: ResourcesExample, moment: Date): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX
  while (performance.now() < deadline) {
    const { localTime } = await mongo.db('admin').command({ hello: 1 })
    if (localTime > moment) return
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
  }
}
