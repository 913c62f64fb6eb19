import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { ietf } from '../../contracts/ietf.ts'
import type { Run } from '../../execution.ts'
import type { Store } from '../../store.ts'
import {
  type AdapterServer,
  type AdapterSuiteOptions,
  type AdapterUnderTest,
  type FetchHandle,
  type NodeHandle,
  ROUTES,
} from './subject.ts'
import { Watched } from './watched.ts'
import { Connection, type Wire, type WireRequest } from './wire.ts'

/** One case of the suite. */
export interface Case {
  readonly name: string
  /** Only for adapters of this flavour. */
  readonly flavour?: AdapterUnderTest['flavour']
  run(bench: Bench): Promise<void>
}

/** A request as a handler sees it, whichever flavour the adapter has. */
export interface Call {
  readonly method: string
  /** Path and query. */
  readonly target: string
  readonly run: Run | undefined
  header(name: string): string | undefined
  body(): Promise<Buffer>
}

/** An answer, to be written in whichever way the adapter's flavour has. An iterable is streamed, the rest is one piece. */
export interface Reply {
  readonly status?: number
  readonly headers?: ReadonlyArray<readonly [name: string, value: string]>
  readonly body?: string | Uint8Array | AsyncIterable<string | Uint8Array>
}

export type Handler =
  | ((call: Call) => Reply | Promise<Reply>)
  | { readonly node?: NodeHandle; readonly fetch?: FetchHandle }

/** Makes servers for one case, and takes them down after it. */
export class Bench {
  readonly adapter: AdapterUnderTest
  readonly #makeStore: () => Store
  readonly #sites: Site[] = []

  constructor(adapter: AdapterUnderTest, makeStore: () => Store) {
    this.adapter = adapter
    this.#makeStore = makeStore
  }

  /** A server whose handler is behind the adapter. Each run of the handler is counted as one effect. */
  async serve(handler: Handler, options: Partial<AdapterSuiteOptions> = {}): Promise<Site> {
    const store = new Watched(options.store ?? this.#makeStore())
    const site = new Site(store)
    this.#sites.push(site)
    const given: AdapterSuiteOptions = { principal: 'public', contract: ietf, ...options, store }
    await site.start(this.adapter, handler, given)
    return site
  }

  async close(): Promise<void> {
    for (const site of this.#sites) await site.close()
  }
}

/** A server of one case. */
export class Site {
  readonly store: Watched
  effects = 0
  #served: AdapterServer | undefined
  #port = 0
  #requests = 0
  readonly #sockets: Socket[] = []
  readonly #connections: Connection[] = []

  constructor(store: Watched) {
    this.store = store
  }

  async start(adapter: AdapterUnderTest, handler: Handler, options: AdapterSuiteOptions): Promise<void> {
    const count = (): void => {
      this.effects++
    }
    const served =
      adapter.flavour === 'node'
        ? await adapter.serve({ options, routes: ROUTES, handle: nodeHandle(handler, count) })
        : await adapter.serve({ options, routes: ROUTES, handle: fetchHandle(handler, count) })
    this.#served = served
    this.#port = portOf(served.server)
    served.server.on('connection', (socket) => this.#sockets.push(socket))
    served.server.on('request', () => this.#requests++)
  }

  /** A request on a connection of its own. */
  async send(request: WireRequest): Promise<Wire> {
    const connection = await this.connect()
    try {
      return await connection.request(request)
    } finally {
      connection.close()
    }
  }

  /** The same request again, and again. */
  async twice(request: WireRequest): Promise<[first: Wire, again: Wire]> {
    return [await this.send(request), await this.send(request)]
  }

  async connect(): Promise<Connection> {
    const connection = await Connection.open(this.#port)
    this.#connections.push(connection)
    return connection
  }

  /** Resolves when the server itself has noticed that all clients so far are gone. */
  async clientsGone(): Promise<void> {
    for (const socket of this.#sockets) {
      if (!socket.closed) await new Promise((resolve) => socket.once('close', resolve))
    }
  }

  /** Resolves when so many requests have reached the server, and the adapter has had its turn with each. */
  async requestsSeen(count: number): Promise<void> {
    const server = this.#served?.server
    assert.ok(server)
    while (this.#requests < count) await once(server, 'request')
    await new Promise((resolve) => setImmediate(resolve))
  }

  async close(): Promise<void> {
    for (const connection of this.#connections) connection.close()
    this.#served?.server.closeAllConnections()
    await this.#served?.close()
    await this.store.close()
  }
}

function portOf(server: Server): number {
  const address = server.address()
  assert.ok(address !== null && typeof address === 'object', 'the server listens on a port')
  return address.port
}

function nodeHandle(handler: Handler, count: () => void): NodeHandle {
  return (request, response, given) => {
    count()
    if (typeof handler !== 'function') {
      assert.ok(handler.node, 'the case has a handler for this flavour')
      return handler.node(request, response, given)
    }
    const call: Call = {
      method: request.method ?? '',
      target: request.url ?? '',
      run: given.run,
      header: (name) => request.headers[name.toLowerCase()]?.toString(),
      body: async () => (given.body ? Buffer.from(given.body) : readAll(request)),
    }
    const reply = handler(call)
    return reply instanceof Promise ? reply.then((made) => writeReply(response, made)) : writeReply(response, reply)
  }
}

async function readAll(stream: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

function writeReply(response: ServerResponse, { status = 200, headers = [], body }: Reply): void | Promise<void> {
  response.statusCode = status
  for (const [name, value] of headers) response.appendHeader(name, value)
  if (body === undefined || typeof body === 'string' || body instanceof Uint8Array) {
    response.end(body)
    return
  }
  return (async () => {
    try {
      for await (const chunk of body) {
        if (response.write(chunk)) continue
        if (response.destroyed) return
        await Promise.race([once(response, 'drain'), once(response, 'close')])
      }
      response.end()
    } catch {
      response.destroy()
    }
  })()
}

function fetchHandle(handler: Handler, count: () => void): FetchHandle {
  return (request, run) => {
    count()
    if (typeof handler !== 'function') {
      assert.ok(handler.fetch, 'the case has a handler for this flavour')
      return handler.fetch(request, run)
    }
    const call: Call = {
      method: request.method,
      target: request.url.slice(new URL(request.url).origin.length),
      run,
      header: (name) => request.headers.get(name) ?? undefined,
      body: async () => Buffer.from(await request.arrayBuffer()),
    }
    const reply = handler(call)
    return reply instanceof Promise ? reply.then(toResponse) : toResponse(reply)
  }
}

function toResponse({ status = 200, headers = [], body }: Reply): Response {
  const list = new Headers()
  for (const [name, value] of headers) list.append(name, value)
  const init = { status, headers: list }
  if (body === undefined) return new Response(null, init)
  if (typeof body === 'string' || body instanceof Uint8Array) return new Response(Buffer.from(body as string), init)
  const chunks = body[Symbol.asyncIterator]()
  const stream = new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await chunks.next()
      if (done) controller.close()
      else controller.enqueue(typeof value === 'string' ? Buffer.from(value) : value)
    },
    async cancel() {
      await chunks.return?.()
    },
  })
  return new Response(stream, init)
}

/** A header of whatever an adapter calls its request: Node's, Fetch's, or a context that has one. */
export function headerOf(request: unknown, name: string): string | undefined {
  const given = request as {
    readonly headers?: Headers | IncomingMessage['headers']
    readonly req?: { readonly raw?: Request }
  }
  const headers = given.req?.raw?.headers ?? given.headers
  if (headers instanceof Headers) return headers.get(name) ?? undefined
  return (headers as IncomingMessage['headers'] | undefined)?.[name]?.toString()
}

/** A promise and the hand that settles it: tests say when things happen, no clock does. */
export class Gate {
  readonly opened: Promise<void>
  #open: () => void = () => {}

  constructor() {
    this.opened = new Promise((resolve) => {
      this.#open = resolve
    })
  }

  open(): void {
    this.#open()
  }
}
