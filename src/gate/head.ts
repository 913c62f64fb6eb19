import { type IncomingMessage, STATUS_CODES } from 'node:http'
import type { TLSSocket } from 'node:tls'
import { badRequest, type Problem } from './problems.ts'

/** How the head of a request is changed on its way. */
export interface HeadRules {
  /** `undefined`: the client's own Host is kept. */
  readonly host: string | undefined
  /** Whether X-Forwarded-* and Forwarded of the client are believed and continued, or replaced. */
  readonly trustForwarded: boolean
  /** In lower case: never taken out because a Connection header names them. */
  readonly kept: ReadonlySet<string>
}

/**
 * Why a request cannot be passed on, if it cannot. Node's parser has already refused what is ambiguous in its framing:
 * two lengths, a length beside a transfer coding, a folded line, a chunk that is none.
 */
export function requestFault(incoming: IncomingMessage): Problem | undefined {
  const { url = '', method, rawHeaders, headers, httpVersionMinor } = incoming
  if (url.charCodeAt(0) !== SLASH && !(url === '*' && method === 'OPTIONS')) {
    return badRequest('The request target must be a path that begins with a slash, not a whole address.')
  }
  let hosts = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i] as string
    if (name.length === 4 && name.toLowerCase() === 'host') hosts++
  }
  if (hosts > 1) return badRequest('The Host header was sent more than once.')
  const coding = headers['transfer-encoding']
  if (coding === undefined) return undefined
  if (httpVersionMinor === 0) return badRequest('A transfer coding has no meaning in HTTP/1.0.')
  if (coding.toLowerCase() === 'chunked') return undefined
  return badRequest(
    `The transfer coding ${JSON.stringify(coding)} is not known here.`,
    501,
    'The transfer coding is not known',
  )
}

const SLASH = 0x2f

/** What the upstream gets: end-to-end headers as they came, in their order, and who the gate speaks for. */
export function upstreamHeaders(incoming: IncomingMessage, rules: HeadRules): string[] {
  const { rawHeaders, socket } = incoming
  const named = namedByConnection(incoming.headers.connection, rules.kept)
  const headers: string[] = []
  const came: Partial<Record<Told, string>> = {}
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const name = rawHeaders[i] as string
    const kind = kindOf(name)
    if (kind === 'pass') {
      if (named === undefined || !named.has(name.toLowerCase())) headers.push(name, rawHeaders[i + 1] as string)
    } else if (kind !== 'drop') {
      const before = came[kind]
      const value = rawHeaders[i + 1] as string
      came[kind] = before === undefined ? value : `${before}, ${value}`
    }
  }
  const host = came.host ?? ''
  const peer = plainAddress(socket.remoteAddress)
  const proto = (socket as Partial<TLSSocket>).encrypted ? 'https' : 'http'
  const trusted = rules.trustForwarded ? came : UNTOLD
  const hop = `for=${peer.includes(':') ? `"[${peer}]"` : peer};host="${host.replaceAll(/["\\]/g, '')}";proto=${proto}`
  const via = `${incoming.httpVersion} oncekey`
  headers.push(
    'Host',
    rules.host ?? host,
    'X-Forwarded-For',
    trusted['x-forwarded-for'] === undefined ? peer : `${trusted['x-forwarded-for']}, ${peer}`,
    'X-Forwarded-Proto',
    trusted['x-forwarded-proto'] ?? proto,
    'X-Forwarded-Host',
    trusted['x-forwarded-host'] ?? host,
    'Forwarded',
    trusted.forwarded === undefined ? hop : `${trusted.forwarded}, ${hop}`,
    'Via',
    came.via === undefined ? via : `${came.via}, ${via}`,
  )
  return headers
}

/** End-to-end headers of an answer, as one flat list. Latin 1 keeps every byte. */
export function answerHeaders(raw: ReadonlyArray<string | Buffer>): string[] {
  const headers: string[] = []
  let connection: string | undefined
  for (let i = 0; i < raw.length; i += 2) {
    const name = text(raw[i])
    const value = text(raw[i + 1])
    if (kindOf(name) !== 'drop') headers.push(name, value)
    else if (name.toLowerCase() === 'connection')
      connection = connection === undefined ? value : `${connection},${value}`
  }
  const named = namedByConnection(connection, NONE)
  if (named === undefined) return headers
  const left: string[] = []
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] as string
    if (!named.has(name.toLowerCase())) left.push(name, headers[i + 1] as string)
  }
  return left
}

/** As it came, unless Node would not send it; then the one that the status has by itself. */
export function reasonPhrase(status: number | undefined, came = ''): string {
  return INVALID_IN_REASON.test(came) ? (STATUS_CODES[status ?? 0] ?? '') : came
}

/** Throws for a final answer that cannot be passed on: Node reads statuses that nobody may send. */
export function checkAnswerStatus(status: number): void {
  if (status >= 200 && status <= 999) return
  throw new Error(`The upstream answered with status ${status}, which is none.`)
}

const INVALID_IN_REASON = /[^\t\x20-\x7e\x80-\xff]/

export function headerOf(headers: readonly string[], lower: string): string | undefined {
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] as string
    if (name.length === lower.length && name.toLowerCase() === lower) return headers[i + 1]
  }
  return undefined
}

function text(value: string | Buffer | undefined): string {
  return typeof value === 'string' ? value : (value?.toString('latin1') ?? '')
}

/** What the gate says itself, from what it was told. */
type Told = 'host' | 'x-forwarded-for' | 'x-forwarded-proto' | 'x-forwarded-host' | 'forwarded' | 'via'
type Kind = 'pass' | 'drop' | Told

const UNTOLD: Partial<Record<Told, string>> = {}
const NONE: ReadonlySet<string> = new Set()

/** Of one connection only. Expect is answered by whoever reads the body, and Proxy has never been a header. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'expect',
  'http2-settings',
])
const TOLD: ReadonlySet<string> = new Set<Told>([
  'host',
  'x-forwarded-for',
  'x-forwarded-proto',
  'x-forwarded-host',
  'forwarded',
  'via',
])

/** Framing, and whose request it is: a client must not be able to have them taken out. */
const ALWAYS_KEPT: ReadonlySet<string> = new Set([
  'content-length',
  'content-type',
  'content-encoding',
  'authorization',
])

/** Clients spell a name in few ways: the spelling is looked up as it came, and the table stays small. */
const kinds = new Map<string, Kind>()
const SPELLINGS_MAX = 2_000

function kindOf(name: string): Kind {
  const known = kinds.get(name)
  if (known !== undefined) return known
  const lower = name.toLowerCase()
  const kind: Kind = HOP_BY_HOP.has(lower) ? 'drop' : TOLD.has(lower) ? (lower as Told) : 'pass'
  if (kinds.size < SPELLINGS_MAX) kinds.set(name, kind)
  return kind
}

/** Headers that a Connection header declares to be of this connection only. */
function namedByConnection(value: string | undefined, kept: ReadonlySet<string>): ReadonlySet<string> | undefined {
  if (value === undefined || value === 'keep-alive' || value === 'close' || value === 'Keep-Alive') return undefined
  const names = value
    .split(',')
    .map((name) => name.trim().toLowerCase())
    .filter((name) => name !== '' && !ALWAYS_KEPT.has(name) && !kept.has(name))
  return new Set(names)
}

/** An IPv4 client on an IPv6 socket is an IPv4 client. */
function plainAddress(address: string | undefined): string {
  if (address === undefined) return 'unknown'
  return address.startsWith('::ffff:') ? address.slice(7) : address
}
