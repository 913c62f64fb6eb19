import { createHash } from 'node:crypto'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import express, { type ErrorRequestHandler, type Express, type Request, type RequestHandler } from 'express'
import type { Db, MongoClient } from 'mongodb'
import { currentRun, idempotency } from '../../src/adapters/express.ts'
import { traces } from '../../src/contracts/index.ts'
import { createMeter, type Meter } from '../../src/guards/meter.ts'
import { type Clock, type Contract, OncekeyError, type OncekeyEvent, type Store } from '../../src/index.ts'
import { mongodbStore } from '../../src/stores/mongodb.ts'
import { invalid, organizationOf } from './http.ts'
import { mountNamed, prepareNamed } from './named.ts'
import { Pipeline, type Trace } from './pipeline.ts'
import { Webhooks } from './webhooks.ts'

export interface TracesOptions {
  readonly client: MongoClient
  readonly db: Db
  /** Traces wait in this file while MongoDB is away. */
  readonly spoolFile: string
  /** Which organization an API key belongs to. */
  readonly organizations: ReadonlyMap<string, string>
  /** Where an organization wants to hear of new traces. */
  readonly webhookUrls?: ReadonlyMap<string, string>
  readonly contract?: Contract
  /** How long ingestion lets itself be held up by MongoDB, for each call. Default 250. */
  readonly storeMsMax?: number
  /** What else a trace goes through before it is taken; here: how sure the agent was. */
  readonly assess?: (trace: Trace) => Promise<number>
  readonly log?: (line: string) => void
  /** For the webhooks. */
  readonly clock?: Clock
}

export interface TracesService {
  readonly app: Express
  readonly store: Store
  readonly meter: Meter
  readonly webhooks: Webhooks
  readonly pipeline: Pipeline
  close(): Promise<void>
}

/**
 * Trace ingestion that is never blocked and never billed twice. Only `POST /api/v1/traces` is protected: duplicates of it
 * cost money. The other routes are the operators', and their unique indexes are enough for them.
 */
export async function createTraces(options: TracesOptions): Promise<TracesService> {
  const { client, db, organizations, contract = traces, storeMsMax = STORE_MS_MAX, log = console.error } = options
  const store = mongodbStore(db.collection('idempotency_keys'), {
    client,
    fields: { key: 'key', organizationId: 'principal' },
    unique: ['key', 'organizationId'],
  })
  const counts = mongodbStore(db.collection('trace_counts'), { client })
  const meter = createMeter({ store: counts, tenant: ({ labels }) => labels.principal, contract: contract.name })
  const webhooks = new Webhooks(db, options)
  const pipeline = await Pipeline.open(options, async (trace, from) => {
    await webhooks.enqueue(trace)
    // The process that ran it may have ended before it could count.
    if (from === 'disk') meter.add(trace.operation, trace.organizationId)
  })
  const observer = new Observer(contract.name, log)
  await prepareNamed(db)
  await webhooks.start()

  const app = express()
  app.use(authenticated(organizations))
  app.use(express.json({ limit: BODY_LIMIT, verify: keepText }))
  app.post(
    '/api/v1/traces',
    idempotency({ store, contract, principal: organizationOf, autoKey, labels: true, storeMsMax }),
    ingest(pipeline, meter, options.assess ?? (async () => 1)),
  )
  app.get('/api/v1/traces', async (request, response) => {
    response.json(await pipeline.list(organizationOf(request)))
  })
  app.get('/api/v1/usage', async (request, response) => {
    // Counting is behind the answers; what waits is of all organizations.
    const { waiting } = meter.stats()
    response.json({ traces: await meter.count(organizationOf(request)), waiting })
  })
  app.get('/api/v1/status', (_request, response) => {
    response.json({ ...observer.counts, buffered: pipeline.buffered, meter: meter.stats() })
  })
  mountNamed(app, db)
  app.use(failed(log))

  return {
    app,
    store,
    meter,
    webhooks,
    pipeline,
    async close() {
      observer.close()
      await pipeline.close()
      webhooks.close()
      await meter.close()
      await Promise.all([store.close(), counts.close()])
    },
  }
}

/** The key of a trace that came without one: what it says, who says it, and for whom. */
export function autoKey(request: Request): string {
  const { agentId } = request.body as { agentId?: unknown }
  const text = `${agentId}:${organizationOf(request)}:${JSON.stringify(request.body)}`
  return createHash('sha256').update(text).digest('hex')
}

function ingest(pipeline: Pipeline, meter: Meter, assess: (trace: Trace) => Promise<number>): RequestHandler {
  return async (request, response) => {
    const { agentId, decision } = (request.body ?? {}) as { agentId?: unknown; decision?: unknown }
    if (typeof agentId !== 'string' || typeof decision !== 'string') {
      return void response.status(400).json(invalid('agentId and decision must be strings.'))
    }
    // None when the key could not be made: such a trace is taken as it comes, as often as it comes.
    const run = currentRun(request)
    // The same id on every run of one operation, so that a run without protection finds what another has written.
    const id = run?.derive('trace') ?? crypto.randomUUID()
    const trace: Trace = {
      _id: id,
      operation: run?.id ?? id,
      organizationId: organizationOf(request),
      agentId,
      decision,
      body: textOf(request),
      keySource: run?.keySource ?? 'none',
      receivedAt: new Date(),
    }
    const confidence = await assess(trace)
    if (!(await pipeline.take(trace))) {
      const message = 'Too many traces wait for the database. Nothing was taken; send it again later.'
      return void response.status(503).json({ error: { code: 'OVERLOADED', message } })
    }
    // The engine tells the meter of every operation; this one is none.
    if (!run) meter.add(trace.operation, trace.organizationId)
    response.status(201).json({ traceId: id, agentId, decision, confidence, keySource: trace.keySource })
  }
}

/** Counts and logs what ran without protection: never in silence. */
class Observer {
  readonly counts = { unprotected: 0, storeFailures: 0, replayed: 0 }
  readonly #contract: string
  readonly #log: (line: string) => void

  constructor(contract: string, log: (line: string) => void) {
    this.#contract = contract
    this.#log = log
    subscribe('oncekey', this.#listener)
  }

  readonly #listener = (message: unknown): void => {
    const { type, contract, id, labels, error } = message as OncekeyEvent
    if (contract !== this.#contract) return
    if (type === 'replayed') this.counts.replayed++
    if (type === 'store-failed') this.counts.storeFailures++
    if (type !== 'unprotected') return
    this.counts.unprotected++
    const reason = error instanceof Error ? error.message : 'the store does not answer'
    this.#log(`trace without idempotency: ${labels?.principal ?? 'unknown'} ${id || 'no key'}: ${reason}`)
  }

  close(): void {
    unsubscribe('oncekey', this.#listener)
  }
}

function authenticated(organizations: ReadonlyMap<string, string>): RequestHandler {
  return (request, response, next) => {
    const organizationId = organizations.get(request.get('x-api-key') ?? '')
    if (organizationId !== undefined) {
      response.locals.organizationId = organizationId
      return next()
    }
    response.status(401).json({ error: { code: 'UNAUTHORIZED', message: 'Send an X-API-Key that is known.' } })
  }
}

const texts = new WeakMap<object, string>()

/** The trace is kept as the agent wrote it. */
function keepText(request: object, _response: object, bytes: Buffer): void {
  texts.set(request, bytes.toString('utf8'))
}

function textOf(request: Request): string {
  return texts.get(request) ?? ''
}

function failed(log: (line: string) => void): ErrorRequestHandler {
  return (error: Error & { status?: number }, _request, response, next) => {
    if (response.headersSent) return next(error)
    const { status = 500, message } = error
    if (status < 500 && !(error instanceof OncekeyError)) return void response.status(status).json(invalid(message))
    log(`failed: ${error.stack}`)
    response.status(status).json({ error: { code: 'INTERNAL', message: 'The server failed. Send it again.' } })
  }
}

const STORE_MS_MAX = 250
const BODY_LIMIT = '1mb'
