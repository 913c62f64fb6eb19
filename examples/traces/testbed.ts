import { mkdtempSync, rmSync } from 'node:fs'
import type { Server as HttpServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type CommandStartedEvent, type Db, MongoClient } from 'mongodb'
import { createTraces, type TracesOptions, type TracesService } from './service.ts'
import { closed, listen, ORGANIZATIONS } from './site.ts'

export interface Sent {
  readonly key?: string
  readonly apiKey?: string
  /** As JSON text, where its very bytes matter. */
  readonly text?: string
  readonly method?: string
}

export interface Answered {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  readonly body: Readonly<Record<string, unknown>> & {
    readonly traceId?: string
    readonly keySource?: string
    readonly error?: { readonly code: string; readonly message: string }
  }
}

/** The service over real sockets, on a database of its own, with every command seen that it sends to MongoDB. */
export class Testbed {
  readonly db: Db
  readonly service: TracesService
  readonly url: string
  readonly log: string[]
  readonly folder: string
  readonly #commands: CommandStartedEvent[]
  readonly #client: MongoClient
  readonly #server: HttpServer

  private constructor(service: TracesService, server: HttpServer, url: string, parts: Parts) {
    this.service = service
    this.url = url
    this.db = parts.db
    this.log = parts.log
    this.folder = parts.folder
    this.#commands = parts.commands
    this.#client = parts.client
    this.#server = server
  }

  /** Patient with MongoDB unless a test says otherwise: a machine that is busy is not an outage. */
  static async start(mongodbUrl: string, name: string, over: Partial<TracesOptions> = {}): Promise<Testbed> {
    const client = new MongoClient(mongodbUrl, { monitorCommands: true, serverSelectionTimeoutMS: 1_000 })
    const commands: CommandStartedEvent[] = []
    client.on('commandStarted', (event) => commands.push(event))
    const folder = mkdtempSync(join(tmpdir(), 'oncekey-traces-'))
    const log: string[] = []
    const db = client.db(name)
    const service = await createTraces({
      client,
      db,
      spoolFile: join(folder, 'spool.jsonl'),
      organizations: ORGANIZATIONS,
      storeMsMax: 10_000,
      log: (line) => log.push(line),
      ...over,
    })
    const { server, url } = await listen(service.app)
    return new Testbed(service, server, url, { db, log, folder, commands, client })
  }

  async send(path: string, body?: unknown, { key, apiKey = 'key-acme', text, method }: Sent = {}): Promise<Answered> {
    const content = text ?? (body === undefined ? undefined : JSON.stringify(body))
    const response = await fetch(`${this.url}${path}`, {
      method: method ?? (content === undefined ? 'GET' : 'POST'),
      headers: {
        'x-api-key': apiKey,
        ...(content !== undefined && { 'content-type': 'application/json' }),
        ...(key !== undefined && { 'idempotency-key': key }),
      },
      ...(content !== undefined && { body: content }),
    })
    const answer = await response.text()
    return {
      status: response.status,
      headers: response.headers,
      text: answer,
      body: answer === '' ? {} : JSON.parse(answer),
    }
  }

  trace(body: unknown, sent: Sent = {}): Promise<Answered> {
    return this.send('/api/v1/traces', body, sent)
  }

  /** How often the trace count of the organization has risen, when all that is on its way has arrived. */
  async usage(organizationId = 'acme'): Promise<number> {
    await this.service.meter.idle()
    return this.service.meter.count(organizationId)
  }

  /** The commands that went to the records of keys since the last call. */
  keyCommands(): CommandStartedEvent[] {
    const seen = this.#commands.splice(0)
    return seen.filter(({ command, commandName }) => command[commandName] === 'idempotency_keys')
  }

  async stop(): Promise<void> {
    await closed(this.#server)
    await this.service.close()
    await this.#client.close()
    rmSync(this.folder, { recursive: true, force: true })
  }
}

interface Parts {
  readonly db: Db
  readonly log: string[]
  readonly folder: string
  readonly commands: CommandStartedEvent[]
  readonly client: MongoClient
}

/** Opens when told to. */
export interface Gate {
  readonly passed: Promise<void>
  open(): void
}

export function gate(): Gate {
  const { promise, resolve } = Promise.withResolvers<void>()
  return { passed: promise, open: resolve }
}
