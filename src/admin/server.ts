import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { RecordState, Store } from '../store.ts'
import { PROBE_ID } from '../store-checks.ts'
import { findAsset } from './assets.ts'
import { History } from './history.ts'
import { type Gauge, renderMetrics } from './metrics.ts'
import { openApi } from './openapi.ts'
import { Operations } from './operations.ts'
import { checkSecurity, denial, type SecurityOptions, setSecurityHeaders } from './security.ts'
import { STREAMS_MAX, streamEvents } from './stream.ts'

export interface AdminOptions {
  readonly store: Store
  readonly version: string
  /** 0 takes a free one. */
  readonly port: number
  /** Other than loopback only with a token. */
  readonly host?: string
  readonly token?: string | undefined
  readonly readOnly?: boolean
  /** Whether keys, principals, headers and bodies may be shown. Default: not. */
  readonly reveal?: boolean
  /** What stands before the store, for /api/status and the gauges. */
  readonly gate?: () => { readonly info: object; readonly gauges: readonly Gauge[] }
}

/** What /api/status answers. */
export interface Status {
  readonly version: string
  readonly startedAt: number
  readonly readOnly: boolean
  readonly reveal: boolean
  readonly store: { readonly name: string } & Health
  readonly gate: object | null
  /** By type of event, since the start. */
  readonly counters: Readonly<Record<string, number>>
}

export interface Admin {
  readonly url: string
  stop(): Promise<void>
}

/** The admin API and the dashboard, on a port of their own. It answers for this process and for the store behind it. */
export async function startAdmin(options: AdminOptions): Promise<Admin> {
  const { host = '127.0.0.1', token, readOnly = false } = options
  const security: SecurityOptions = { host, token, readOnly }
  checkSecurity(security)
  const api = new Api(options, security)
  const server = createServer((request, response) => void api.answer(request, response))
  server.requestTimeout = REQUEST_MS_MAX
  await listen(server, options.port, host)
  const { port } = server.address() as AddressInfo
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    async stop() {
      api.close()
      server.closeAllConnections()
      await new Promise<void>((resolve) => server.close(() => resolve()))
    },
  }
}

const REQUEST_MS_MAX = 10_000
const READY_MS_MAX = 2_000
const BODY_BYTES_MAX = 16 * 1024
const LIMIT_DEFAULT = 100
const LIMIT_MAX = 1_000
const WINDOW_S_DEFAULT = 300
const STATES: readonly string[] = ['running', 'unknown', 'settled', 'expired'] satisfies RecordState['state'][]
const FAILED_STATUS_DEFAULT = 409

interface Health {
  readonly ok: boolean
  readonly latencyMs: number
  readonly error?: string
}

const STILL_RUNNING =
  'It is running: a retry would run beside it. Nothing was changed; wait for its lease to end, or send {"force": true}.'

class Api {
  readonly #options: AdminOptions
  readonly #security: SecurityOptions
  readonly #history = new History()
  readonly #operations: Operations
  readonly #startedAt = Date.now()
  #streams = 0
  #probe: Promise<Health> | undefined

  constructor(options: AdminOptions, security: SecurityOptions) {
    this.#options = options
    this.#security = security
    this.#operations = new Operations(options.store, this.#history, options.reveal ?? false)
  }

  close(): void {
    this.#history.close()
  }

  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    setSecurityHeaders(response)
    try {
      await this.#route(request, response, new URL(request.url ?? '/', 'http://localhost'))
    } catch (error) {
      // The store's own words: what happened, and what to do next.
      if (!response.headersSent) problem(response, 503, error instanceof Error ? error.message : String(error))
      else response.destroy()
    }
  }

  async #route(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const { pathname: path } = url
    const { method = 'GET' } = request
    if (path === '/livez') return text(response, 200, 'ok\n')
    if (path === '/readyz') return this.#ready(response)
    const denied = denial(request, this.#security, method !== 'GET' && method !== 'HEAD')
    // The page itself holds nothing: it is where the token is asked for.
    const asset = method === 'GET' ? await findAsset(path) : undefined
    if (asset !== undefined && denied?.status !== 421) {
      if (asset.isImmutable) response.setHeader('Cache-Control', 'public, max-age=31536000, immutable')
      response.writeHead(200, { 'Content-Type': asset.type })
      return void response.end(asset.bytes)
    }
    if (denied !== undefined) return problem(response, denied.status, denied.detail)
    const action = /^\/api\/operations\/([^/]+)\/(release|fail|redact)$/.exec(path)
    if (action !== null) {
      if (method !== 'POST') return problem(response, 405, 'Send it as POST.')
      return this.#act(request, response, action[1] ?? '', action[2] as 'release' | 'fail' | 'redact')
    }
    if (method !== 'GET') return problem(response, 405, 'Only GET is answered here.')
    return this.#read(request, response, url)
  }

  async #read(request: IncomingMessage, response: ServerResponse, { pathname, searchParams }: URL): Promise<void> {
    const one = /^\/api\/operations\/([^/]+)$/.exec(pathname)
    if (one !== null) {
      const found = await this.#operations.show(one[1] ?? '')
      if (found === undefined) return problem(response, 404, 'There is no operation with this id, and none was seen.')
      return json(response, 200, found)
    }
    switch (pathname) {
      case '/metrics':
        return text(response, 200, renderMetrics(this.#history, this.#gauges()))
      case '/openapi.json':
        return json(response, 200, openApi(this.#options.version))
      case '/api/status':
        return json(response, 200, await this.#status())
      case '/api/operations':
        return this.#search(response, searchParams)
      case '/api/rates': {
        const windowS = Number(searchParams.get('window') ?? WINDOW_S_DEFAULT)
        if (!(windowS > 0)) return problem(response, 400, 'window must be a number of seconds above 0.')
        return json(response, 200, this.#history.rates(windowS * 1_000))
      }
      case '/api/expiry':
        return json(response, 200, await this.#operations.expiry())
      case '/api/events':
        return this.#stream(request, response)
      default:
        return problem(response, 404, `There is nothing at ${pathname}; /openapi.json lists what there is.`)
    }
  }

  async #search(response: ServerResponse, params: URLSearchParams): Promise<void> {
    const state = params.get('state') || undefined
    const limit = Number(params.get('limit') ?? LIMIT_DEFAULT)
    if (state !== undefined && !STATES.includes(state)) {
      return problem(response, 400, `state is ${JSON.stringify(state)}; give one of ${STATES.join(', ')}.`)
    }
    if (!Number.isInteger(limit) || limit < 1 || limit > LIMIT_MAX) {
      return problem(response, 400, `limit must be a whole number from 1 to ${LIMIT_MAX}.`)
    }
    const [q, route, principal, after] = ['q', 'route', 'principal', 'after'].map(
      (name) => params.get(name) || undefined,
    )
    const search = { state: state as RecordState['state'] | undefined, q, route, principal, after, limit }
    return json(response, 200, await this.#operations.search(search))
  }

  async #act(
    request: IncomingMessage,
    response: ServerResponse,
    id: string,
    verb: 'release' | 'fail' | 'redact',
  ): Promise<void> {
    const body = await readJson(request)
    if (body === undefined) return problem(response, 400, 'The body must be a JSON object, or be left out.')
    if (verb === 'redact') return acted(response, await this.#operations.redact(id))
    if (verb === 'release') {
      const end = await this.#operations.release(id, body.force === true)
      if (end === 'running') return problem(response, 409, STILL_RUNNING)
      return acted(response, end)
    }
    const { status = FAILED_STATUS_DEFAULT, note = '' } = body
    if (!(Number.isInteger(status) && Number(status) >= 400 && Number(status) <= 599)) {
      return problem(response, 400, 'status must be a whole number from 400 to 599.')
    }
    return acted(response, await this.#operations.fail(id, Number(status), String(note)))
  }

  #stream(request: IncomingMessage, response: ServerResponse): void {
    if (this.#streams >= STREAMS_MAX)
      return problem(response, 503, `${STREAMS_MAX} streams are open, as many as may be.`)
    this.#streams += 1
    response.once('close', () => {
      this.#streams -= 1
    })
    request.socket.setTimeout(0)
    streamEvents(this.#history, (event) => this.#operations.event(event), request, response)
  }

  async #ready(response: ServerResponse): Promise<void> {
    const { ok } = await this.#health()
    // Anybody may ask: why it does not is told by /api/status.
    return ok ? text(response, 200, 'ready\n') : text(response, 503, 'the store does not answer\n')
  }

  async #status(): Promise<Status> {
    const { version, store, gate } = this.#options
    return {
      version,
      startedAt: this.#startedAt,
      readOnly: this.#security.readOnly,
      reveal: this.#options.reveal ?? false,
      store: { name: store.name, ...(await this.#health()) },
      gate: gate?.().info ?? null,
      counters: Object.fromEntries(this.#history.counters),
    }
  }

  /** One question at a time, however many want to know. */
  #health(): Promise<Health> {
    this.#probe ??= this.#askStore().finally(() => {
      this.#probe = undefined
    })
    return this.#probe
  }

  async #askStore(): Promise<Health> {
    const startedAt = performance.now()
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no answer within ${READY_MS_MAX} ms`)), READY_MS_MAX)
    })
    try {
      await Promise.race([this.#options.store.read(PROBE_ID), late])
      return { ok: true, latencyMs: performance.now() - startedAt }
    } catch (error) {
      const latencyMs = performance.now() - startedAt
      return { ok: false, latencyMs, error: error instanceof Error ? error.message : String(error) }
    } finally {
      clearTimeout(timer)
    }
  }

  #gauges(): readonly Gauge[] {
    const { rss } = process.memoryUsage()
    return [
      { name: 'oncekey_process_resident_bytes', help: 'Memory of this process.', value: rss },
      { name: 'oncekey_streams', help: 'Open event streams.', value: this.#streams },
      ...(this.#options.gate?.().gauges ?? []),
    ]
  }
}

function acted(response: ServerResponse, end: string): void {
  if (end === 'done') return json(response, 200, { done: true })
  if (end === 'absent') return problem(response, 404, 'There is no such record; nothing was changed.')
  if (end === 'unanswered') return problem(response, 409, 'It has no answer yet; nothing was changed.')
  return problem(response, 409, `Its outcome is not unknown, it is ${end}; nothing was changed.`)
}

function json(response: ServerResponse, status: number, value: unknown): void {
  response.writeHead(status, { 'Content-Type': 'application/json' })
  response.end(JSON.stringify(value))
}

function text(response: ServerResponse, status: number, value: string): void {
  response.writeHead(status, { 'Content-Type': 'text/plain; charset=utf-8' })
  response.end(value)
}

function problem(response: ServerResponse, status: number, detail: string): void {
  response.writeHead(status, { 'Content-Type': 'application/problem+json' })
  response.end(JSON.stringify({ status, detail }))
}

/** `undefined`: not an object, or too large. */
async function readJson(request: IncomingMessage): Promise<Record<string, unknown> | undefined> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > BODY_BYTES_MAX) return undefined
    chunks.push(chunk)
  }
  if (bytes === 0) return {}
  try {
    const value: unknown = JSON.parse(Buffer.concat(chunks).toString())
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => resolve())
  })
}
