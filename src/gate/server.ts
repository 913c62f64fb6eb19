import { createServer, type IncomingMessage, type Server, type ServerOptions } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo, Socket } from 'node:net'
import { OncekeyError } from '../error.ts'
import { within } from './bounds.ts'
import { publishGate } from './events.ts'
import type { GateLimits } from './limits.ts'
import { badRequest, type Problem, problemMessage, STOPPING } from './problems.ts'
import type { GateProxy } from './proxy.ts'
import type { Budget } from './shedding.ts'
import { SlowClients } from './slow.ts'

/** PEM texts. `ca`: whose client certificates are trusted. */
export interface ServerTls {
  readonly key: string | Uint8Array
  readonly cert: string | Uint8Array
  readonly ca?: string | Uint8Array
}

export interface Listening {
  readonly url: string
  readonly connections: number
  stop(): Promise<void>
}

interface ListenOptions {
  readonly port: number
  readonly host: string
  readonly tls: ServerTls | undefined
  /** Clients must show a certificate. */
  readonly isMutual: boolean
  readonly limits: GateLimits
  readonly budget: Budget
}

/** The side of the gate that faces the clients: connections, and requests that cannot even be read. */
export async function listen(proxy: GateProxy, options: ListenOptions): Promise<Listening> {
  const { limits, budget, tls, isMutual } = options
  const settings = serverSettings(limits)
  const server: Server = tls
    ? createTlsServer({ ...settings, ...pem(tls), requestCert: isMutual, rejectUnauthorized: isMutual })
    : createServer(settings)
  // A header too many is a matter of bytes; one that is left out in silence could be the key.
  server.maxHeadersCount = 0
  server.maxConnections = limits.connectionsMax
  /** All of them: Node does not know any more of those whose protocol has changed, and not yet of those without TLS. */
  const sockets = new Set<Socket>()
  server.on('connection', (socket: Socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })
  server.on('request', (incoming, response) => proxy.serve(incoming, response, false))
  server.on('checkContinue', (incoming, response) => proxy.serve(incoming, response, true))
  server.on('upgrade', (incoming: IncomingMessage, socket: Socket, head: Buffer) => {
    if (owedAnswer(socket)) return void socket.destroy()
    if (!wantsUpgrade(incoming)) return refuse(socket, badRequest('Only GET can change the protocol.'))
    if (proxy.isStopping) return refuse(socket, STOPPING)
    proxy.upgrade(incoming, socket, head)
  })
  server.on('connect', (_incoming, socket: Socket) => {
    if (owedAnswer(socket)) return void socket.destroy()
    refuse(socket, badRequest('This gate is no tunnel.', 405))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => unreadable(error, socket))
  server.on('drop', () => budget.count('connections'))
  await bind(server, options)
  const slow = new SlowClients(limits, proxy.exchanges)
  const { address, port, family } = server.address() as AddressInfo
  const shown = family === 'IPv6' ? `[${address}]` : address
  return {
    url: `${tls ? 'https' : 'http'}://${shown}:${port}`,
    get connections() {
      return sockets.size
    },
    async stop() {
      await drain(server, proxy, sockets, limits.stopMsMax)
      slow.stop()
    },
  }
}

function serverSettings(limits: GateLimits): ServerOptions {
  return {
    insecureHTTPParser: false,
    requireHostHeader: true,
    maxHeaderSize: limits.headerBytesMax,
    headersTimeout: limits.headerMsMax,
    // A body is timed by what it is for: see `bodyMsMax` and `slowMsMax`.
    requestTimeout: 0,
    connectionsCheckingInterval: Math.max(CHECK_MS_MIN, Math.min(CHECK_MS_MAX, Math.floor(limits.headerMsMax / 4))),
    keepAliveTimeout: limits.idleMsMax,
    noDelay: true,
    // Node before 24.9 does not know it, and takes every offer to change the protocol for a demand.
    shouldUpgradeCallback: wantsUpgrade,
  } as ServerOptions
}

const CHECK_MS_MIN = 50
const CHECK_MS_MAX = 1_000

/** An offer of HTTP/2 is left aside, as the RFC allows; a body beside an upgrade would pass unprotected. */
function wantsUpgrade({ method, headers }: IncomingMessage): boolean {
  return method === 'GET' && headers.upgrade !== undefined && !/^\s*h2c?\s*$/i.test(headers.upgrade)
}

function pem({ key, cert, ca }: ServerTls): object {
  const bytes = (text: string | Uint8Array): string | Buffer => (typeof text === 'string' ? text : Buffer.from(text))
  return { key: bytes(key), cert: bytes(cert), ...(ca !== undefined && { ca: bytes(ca) }) }
}

function bind(server: Server, { port, host }: ListenOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => {
      const why = cause.code === 'EADDRINUSE' ? 'another process listens there' : cause.message
      reject(new OncekeyError('config-invalid', `The gate cannot listen on ${host}:${port}: ${why}.`, { cause }))
    })
    server.listen({ port, host, backlog: BACKLOG }, resolve)
  })
}

const BACKLOG = 1_024

function refuse(socket: Socket, problem: Problem): void {
  publishGate({ type: 'refused-request', status: problem.status, reason: problem.detail })
  socket.on('error', () => socket.destroy())
  if (socket.writable) socket.end(problemMessage(problem), () => socket.destroySoon())
  else socket.destroy()
}

/** To an earlier request on this connection, if one is owed: what is written now would be taken for it. */
function owedAnswer(socket: Socket): { readonly req: IncomingMessage; readonly headersSent: boolean } | undefined {
  const { _httpMessage: owed } = socket as Socket & { _httpMessage?: ReturnType<typeof owedAnswer> | null }
  return owed ?? undefined
}

/** What Node's parser has refused, in words. */
function unreadable(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return void socket.destroy()
  const owed = owedAnswer(socket)
  if (owed && (owed.req.complete || owed.headersSent)) return void socket.destroy()
  refuse(socket, problemOf(error))
}

function problemOf({ code, message }: NodeJS.ErrnoException): Problem {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return badRequest('The head of the request is larger than this gate accepts.', 431, 'Head too large')
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return badRequest('The chunk extensions are larger than this gate accepts.', 413, 'Content too large')
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return badRequest('The head of the request took too long to arrive.', 408, 'Request timeout')
    default:
      return badRequest(`The request is not valid HTTP/1.1 (${message.replace(/^Parse Error: /, '')}).`)
  }
}

/** At most `drainMsMax(msMax)`, whatever the clients do. */
async function drain(server: Server, proxy: GateProxy, sockets: Iterable<Socket>, msMax: number): Promise<void> {
  proxy.isStopping = true
  const closed = new Promise<void>((resolve) => server.close(() => resolve()))
  const done = new Promise<void>((resolve) => {
    const look = (): void => {
      // Connections whose last answer has just gone out are idle a moment later.
      setImmediate(() => server.closeIdleConnections())
      if (proxy.exchanges.size === 0) resolve()
    }
    proxy.onEnd = look
    look()
  })
  if ((await within(done, msMax)) === 'late') for (const exchange of proxy.exchanges.members()) exchange.cut?.()
  // An answer that was just given may still be on its way; a client that never reads it is not waited for. Neither is a
  // changed protocol: only its two ends know when it is over.
  const grace = setTimeout(() => {
    for (const socket of sockets) socket.destroy()
  }, GRACE_MS)
  server.closeIdleConnections()
  await closed
  clearTimeout(grace)
}

const GRACE_MS = 1_000

export function drainMsMax(stopMsMax: number): number {
  return stopMsMax + GRACE_MS
}
