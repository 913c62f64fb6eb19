import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { getDefaultEnvironment, StdioClientTransport } from '@modelcontextprotocol/client/stdio'
import type { FastifyInstance } from 'fastify'
import { type Collection, type CommandStartedEvent, type Db, MongoClient } from 'mongodb'
import { resources } from '../../src/contracts/index.ts'
import type { Contract } from '../../src/index.ts'
import type { Hooks } from './records.ts'
import type { Path } from './schema.ts'
import { createResources } from './service.ts'

export interface Answered {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  readonly body: {
    readonly _id?: string
    readonly error?: { readonly code: string; readonly message: string }
    readonly [field: string]: unknown
  }
}

export interface Called {
  readonly structuredContent?: unknown
  readonly content: readonly unknown[]
  readonly isError?: boolean | undefined
  readonly _idempotent_replay?: unknown
}

export interface Sent {
  readonly key?: string | undefined
  readonly token?: string
  /** As JSON text, where its very bytes matter. */
  readonly text?: string
}

const WAIT_MS_MAX = 30_000
const LOOK_EVERY_MS = 10

/** The service over real sockets, on a database of its own, with every command seen that it sends. */
export class Testbed {
  readonly app: FastifyInstance
  readonly db: Db
  readonly url: string
  readonly mongodbUrl: string
  readonly #mongo: MongoClient
  readonly #commands: CommandStartedEvent[] = []
  readonly #clients: Client[] = []

  static async open(mongodbUrl: string, contract: Contract = resources, hooks: Hooks = {}): Promise<Testbed> {
    const mongo = new MongoClient(mongodbUrl, { monitorCommands: true, serverSelectionTimeoutMS: 10_000 })
    const db = mongo.db(`resources_${randomUUID().slice(0, 8)}`)
    const app = createResources({ db, contract, hooks })
    const url = await app.listen({ host: '127.0.0.1', port: 0 })
    return new Testbed(app, mongo, db, url, mongodbUrl)
  }

  private constructor(app: FastifyInstance, mongo: MongoClient, db: Db, url: string, mongodbUrl: string) {
    this.app = app
    this.db = db
    this.url = url
    this.mongodbUrl = mongodbUrl
    this.#mongo = mongo
    mongo.on('commandStarted', (event) => void this.#commands.push(event))
  }

  get keys(): Collection {
    return this.db.collection('idempotency_key')
  }

  async post(path: Path, record: object, { key, token = 'anna-token', text }: Sent = {}): Promise<Answered> {
    const headers = {
      'Content-Type': 'application/json',
      Authorization: `Bearer ${token}`,
      ...(key !== undefined && { 'Idempotency-Key': key }),
    }
    const body = text ?? JSON.stringify(record)
    const response = await fetch(new URL(`/api/v1/${path}`, this.url), { method: 'POST', headers, body })
    const answer = await response.text()
    return { status: response.status, headers: response.headers, text: answer, body: JSON.parse(answer) }
  }

  /** How many records there are, whoever made them. */
  count(path: Path): Promise<number> {
    return this.db.collection(path).countDocuments()
  }

  /** A real MCP client over HTTP; of the 2026 revision of the protocol, or of 2025. */
  async overHttp(token = 'anna-token', pin: string | undefined = '2026-07-28'): Promise<ToolCaller> {
    const requestInit = { headers: { Authorization: `Bearer ${token}` } }
    const transport = new StreamableHTTPClientTransport(new URL('/mcp', this.url), { requestInit })
    return this.#connected(transport, pin)
  }

  /** The same with the server as a child process. */
  async overStdio(token = 'anna-token'): Promise<ToolCaller> {
    const variables = { MONGODB_URL: this.mongodbUrl, MONGODB_DATABASE: this.db.databaseName, RESOURCES_TOKEN: token }
    const args = [join(import.meta.dirname, 'mcp-stdio.ts')]
    const env = { ...getDefaultEnvironment(), ...variables }
    return this.#connected(new StdioClientTransport({ command: process.execPath, args, env }), undefined)
  }

  async #connected(transport: Parameters<Client['connect']>[0], pin: string | undefined): Promise<ToolCaller> {
    const options = pin === undefined ? {} : { versionNegotiation: { mode: { pin } } }
    const client = new Client({ name: 'agent', version: '1.0.0' }, options)
    await client.connect(transport)
    this.#clients.push(client)
    return {
      client,
      async create(path, record, idempotencyKey) {
        const given = idempotencyKey === undefined ? { record } : { record, idempotencyKey }
        return client.callTool({ name: `create_${path}`, arguments: given })
      },
    }
  }

  /** The commands that an act sends to the collection of the keys, and to those of the records. */
  async commandsOf(act: () => Promise<unknown>): Promise<readonly CommandStartedEvent[]> {
    const before = this.#commands.length
    await act()
    return this.#commands.slice(before).filter(({ databaseName }) => databaseName === this.db.databaseName)
  }

  /** Resolves when the clock of the database has passed this moment. */
  async past(moment: Date): Promise<void> {
    const deadline = performance.now() + WAIT_MS_MAX
    while (performance.now() < deadline) {
      const { localTime } = await this.#mongo.db('admin').command({ hello: 1 })
      if (localTime > moment) return
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
    }
    throw new Error('The clock of the database has not passed it in 30 s.')
  }

  async close(): Promise<void> {
    for (const client of this.#clients) await client.close()
    // After a test that failed, a request may still be on its way: its connection is idle only later.
    const idle = setInterval(() => this.app.server.closeIdleConnections(), LOOK_EVERY_MS)
    await this.app.close()
    clearInterval(idle)
    await this.db.dropDatabase()
    await this.#mongo.close()
  }
}

export interface ToolCaller {
  readonly client: Client
  create(path: Path, record: object, idempotencyKey?: string): Promise<Called>
}

/** A place in the service where a request stops until it is let go. */
export class Turnstile {
  readonly #arrived = Promise.withResolvers<void>()
  readonly #open = Promise.withResolvers<void>()

  /** Resolves when somebody stands in it. */
  get arrived(): Promise<void> {
    return this.#arrived.promise
  }

  async pass(): Promise<void> {
    this.#arrived.resolve()
    await this.#open.promise
  }

  open(): void {
    this.#open.resolve()
  }

  /** So that a test which fails in between does not wait for whoever stands in it. */
  [Symbol.dispose](): void {
    this.open()
  }
}
