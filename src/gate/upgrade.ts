import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { publishGate } from './events.ts'
import { answerHeaders, type HeadRules, reasonPhrase, requestFault, upstreamHeaders } from './head.ts'
import { badRequest, type Problem, problemMessage, UPSTREAM_BROKEN, UPSTREAM_REFUSED } from './problems.ts'
import type { Upstream } from './upstream.ts'

/** A change of protocol, such as to WebSocket, is the upstream's to accept; from then on the gate only carries bytes. */
export function passUpgrade(
  incoming: IncomingMessage,
  client: Duplex,
  head: Buffer,
  upstream: Upstream,
  rules: HeadRules,
): void {
  client.on('error', () => client.destroy())
  const refuse = (problem: Problem): void => {
    // What it still sends is nobody's, and must not keep its end from being seen.
    client.resume()
    client.end(problemMessage(problem))
    const late = setTimeout(() => client.destroy(), REFUSED_MS_MAX)
    client.on('close', () => clearTimeout(late))
  }
  const fault = requestFault(incoming) ?? bodyFault(incoming)
  if (fault) {
    publishGate({ type: 'refused-request', status: fault.status, reason: fault.detail })
    return refuse(fault)
  }
  const headers = upstreamHeaders(incoming, rules)
  headers.push('Connection', 'Upgrade', 'Upgrade', incoming.headers.upgrade ?? '')
  const request = upstream.request(incoming.method ?? 'GET', incoming.url ?? '/', headers, 'own-connection')
  let answered = false
  client.on('close', () => request.destroy())
  request.setTimeout(upstream.upgradeMsMax, () => request.destroy())
  request.on('upgrade', (answer, service, serviceHead) => {
    answered = true
    request.setTimeout(0)
    service.setTimeout(0)
    client.write(messageHead(answer, ['Connection', 'Upgrade', 'Upgrade', answer.headers.upgrade ?? '']), 'latin1')
    if (serviceHead.length > 0) client.write(serviceHead)
    if (head.length > 0) service.write(head)
    join(client, service)
    join(service, client)
  })
  request.on('response', (answer) => {
    answered = true
    client.write(messageHead(answer, ['Connection', 'close']), 'latin1')
    answer.pipe(client)
    answer.on('error', () => client.destroy())
  })
  request.on('error', (error: NodeJS.ErrnoException) => {
    if (answered) return void client.destroy()
    answered = true
    const refused = error.syscall === 'connect' || error.syscall === 'getaddrinfo'
    if (refused) publishGate({ type: 'upstream-refused', covered: false, error })
    else publishGate({ type: 'upstream-broken', covered: false, error, timedOut: false })
    refuse(refused ? UPSTREAM_REFUSED : UPSTREAM_BROKEN)
  })
  request.end()
}

const REFUSED_MS_MAX = 1_000

/**
 * The bytes after the head are the new protocol's. An upstream that does not change to it would wait for the announced
 * body, and take somebody else's next request for it.
 */
function bodyFault({ headers }: IncomingMessage): Problem | undefined {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = headers
  if (length === '0' && coding === undefined) return undefined
  return badRequest('A request that changes the protocol must have no body.')
}

function join(from: Duplex, to: Duplex): void {
  from.pipe(to)
  from.on('error', () => to.destroy())
  from.on('close', () => to.destroy())
}

function messageHead({ statusCode, statusMessage, rawHeaders }: IncomingMessage, own: readonly string[]): string {
  const headers = [...answerHeaders(rawHeaders), ...own]
  let text = `HTTP/1.1 ${statusCode} ${reasonPhrase(statusCode, statusMessage)}\r\n`
  for (let i = 0; i < headers.length; i += 2) text += `${headers[i]}: ${headers[i + 1]}\r\n`
  return `${text}\r\n`
}
