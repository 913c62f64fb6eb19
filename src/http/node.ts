import { type IncomingMessage, ServerResponse } from 'node:http'
import { OncekeyError } from '../error.ts'
import type { Operation, Result, Run } from '../execution.ts'
import type { Payload } from '../operation/fingerprint.ts'
import type { KeyInput } from '../operation/key.ts'
import { type Refusal, refusal } from '../refusal.ts'
import type { Answer, Awaitable } from '../store.ts'
import { isPromise } from '../store-access.ts'
import { hasNoBody } from './bytes.ts'
import { announcesBody, readNodeBody } from './node-body.ts'
import { NodeCapture } from './node-capture.ts'
import { bodyIsGone, isRefusal, type Protection, type RequestFacts } from './protection.ts'
import { renderRefusal } from './refusals.ts'

/** One request on its way through a Node framework, in the terms that all of them share. */
export interface NodeExchange<Req> {
  /** As the framework gives it, for the user's resolvers. */
  readonly request: Req
  readonly incoming: IncomingMessage
  readonly response: ServerResponse
  readonly facts: RequestFacts
  /** The body as the framework has parsed it. An unread body is read here, and put back for the handler. */
  readonly parsedBody?: unknown
  /** Hands over to the handler. */
  readonly proceed: () => void
  /** Called before this layer itself answers: a replay or a refusal, and of which operation where that is known. */
  readonly takeOver?: (refused?: Refusal, id?: string) => void
  /** The handler ends its answer even when the client leaves in the middle of it. */
  readonly outlivesClient?: boolean
}

/**
 * The Node bridge: everything from a request to its answer, for any framework on node:http. What goes wrong before the
 * handler runs is given to `fail`.
 */
export function protectNode<Req>(protection: Protection<Req>, exchange: NodeExchange<Req>, fail: Fail): void {
  const { request, incoming, facts, proceed } = exchange
  // An outer layer already holds this request's operation.
  if (!protection.covers(facts.method) || currentRun(incoming)) return proceed()
  if (incoming.httpVersionMajor > 1) return fail(http2NotSupported())
  try {
    const key = protection.key(request, facts)
    if (key === undefined) return proceed()
    if (isRefusal(key)) return refuse(protection, exchange, key)
    // Step by step without a promise, where nothing has to be waited for.
    const payload = protection.payload(() => request) ?? bodyPayload(protection, exchange)
    const end = when(payload, (known) => {
      if (known === undefined) return refuse(protection, exchange, refusal('body-too-large'))
      return when(
        protection.named(key, () => request),
        (named) => {
          if (named === undefined) return proceed()
          const operation = protection.operation(request, facts, named, known)
          return when(operation, (ready) => execute(protection, exchange, ready, fail))
        },
      )
    })
    if (isPromise(end)) end.catch(fail)
  } catch (error) {
    fail(error)
  }
}

type Fail = (error: unknown) => void

function when<T, R>(value: Awaitable<T>, next: (value: T) => Awaitable<R>): Awaitable<R> {
  return isPromise(value) ? value.then(next) : next(value)
}

function execute<Req>(
  protection: Protection<Req>,
  exchange: NodeExchange<Req>,
  operation: Operation,
  fail: Fail,
): Promise<void> {
  const { incoming, response, proceed } = exchange
  const { echoKey, recorded } = protection.contract.headers
  let capture: NodeCapture | undefined
  if (echoKey) response.setHeader(protection.contract.key.header, operation.key)
  const result = protection.engine.execute(operation, (run) => {
    ;(incoming as WithRun)[RUN] = run
    capture = new NodeCapture(incoming, response, protection, exchange.outlivesClient)
    proceed()
    return capture.done
  })
  const answer = (end: Result): void => {
    switch (end.kind) {
      case 'executed':
        if (end.record === 'unrecorded') capture?.mark(recorded, 'false')
        return capture?.send()
      case 'replayed':
        return replay(protection, exchange, end.answer)
      case 'refused':
        return refuse(protection, exchange, end.refusal, operation.id)
    }
  }
  return result.then((end) => sendTogether({ send: () => answer(end), fail }))
}

interface Ready {
  readonly send: () => void
  readonly fail: Fail
}

const ready: Ready[] = []

/**
 * What is ready in one turn of the event loop goes out back to back. Sending wakes the other side up, which costs as
 * much as all the rest of a small request; a side that is awake already costs nothing.
 */
function sendTogether(answer: Ready): void {
  if (ready.push(answer) === 1) setImmediate(sendReady)
}

function sendReady(): void {
  for (const { send, fail } of ready.splice(0)) {
    try {
      send()
    } catch (error) {
      fail(error)
    }
  }
}

export { declareOutcome } from './declared-outcome.ts'

/** The run behind this request, for the handler: its signal, its attempt, `derive()`. */
export function currentRun(request: object): Run | undefined {
  return (request as WithRun)[RUN] ?? (request as { raw?: WithRun }).raw?.[RUN]
}

/** All values of a header, in order: Node joins repeated ones with a comma, which a key may itself contain. */
export function headerValues(incoming: IncomingMessage, name: string): KeyInput {
  const lower = name.toLowerCase()
  const joined = incoming.headers[lower]
  if (joined === undefined || Array.isArray(joined) || !joined.includes(',')) return joined
  const values: string[] = []
  const { rawHeaders } = incoming
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]?.toLowerCase() === lower) values.push(rawHeaders[i + 1] ?? '')
  }
  return values.length === 1 ? values[0] : values
}

const RUN: unique symbol = Symbol('oncekey.run')
interface WithRun {
  [RUN]?: Run
}

/** `undefined`: over the limit. */
function bodyPayload<Req>(
  { contract }: Protection<Req>,
  { incoming, parsedBody }: NodeExchange<Req>,
): Awaitable<Payload | undefined> {
  if (!announcesBody(incoming)) return { kind: 'none' }
  const contentType = incoming.headers['content-type'] ?? ''
  if (incoming.readableDidRead) {
    if (parsedBody instanceof Uint8Array) return { kind: 'bytes', bytes: parsedBody, contentType }
    // Such parsers leave the fields here and the files elsewhere: two uploads would look the same.
    if (/^multipart\//i.test(contentType)) throw bodyIsGone()
    if (parsedBody !== undefined) return { kind: 'value', value: parsedBody }
    throw bodyIsGone()
  }
  // A parser that did not know the type leaves an empty object and an unread body: only the bytes tell such requests apart.
  return readNodeBody(incoming, contract.limits.requestBytesMax).then((bytes) => {
    if (bytes === undefined) return undefined
    return bytes.length === 0 ? { kind: 'none' } : { kind: 'bytes', bytes, contentType }
  })
}

function http2NotSupported(): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    'This request came over HTTP/2, whose responses cannot be captured yet, so it was not run. Let a proxy speak HTTP/2 to the world and HTTP/1.1 to this service.',
  )
}

function replay<Req>({ contract }: Protection<Req>, exchange: NodeExchange<Req>, answer: Answer): void {
  exchange.takeOver?.()
  const { response } = exchange
  const { body, status, headers } = answer
  const bytes = body === null ? EMPTY : Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const head: string[] = []
  for (const [name, value] of headers) head.push(name, value)
  head.push(contract.headers.replayed, 'true')
  if (!hasNoBody(status) && response.req.method !== 'HEAD') head.push('Content-Length', String(bytes.length))
  if (response.writeHead === ServerResponse.prototype.writeHead) response.writeHead(status, head)
  else setHead(response, status, head)
  // Latin 1 is the same bytes, and Node sends a string together with the head, in one write.
  if (bytes.length <= TEXT_BYTES_MAX) response.end(bytes.toString('latin1'), 'latin1')
  else response.end(bytes)
}

/** The plainest way, for a response that other middleware has laid its hands on: not all of it knows a flat list. */
function setHead(response: ServerResponse, status: number, head: readonly string[]): void {
  const values = new Map<string, string[]>()
  for (let i = 0; i < head.length; i += 2) {
    const name = head[i] ?? ''
    values.set(name, [...(values.get(name) ?? []), head[i + 1] ?? ''])
  }
  for (const [name, all] of values) response.setHeader(name, all.length === 1 ? (all[0] ?? '') : all)
  response.statusCode = status
}

const EMPTY = Buffer.alloc(0)
const TEXT_BYTES_MAX = 16 * 1024

function refuse<Req>({ contract }: Protection<Req>, exchange: NodeExchange<Req>, refused: Refusal, id?: string): void {
  exchange.takeOver?.(refused, id)
  const { response } = exchange
  const { status, headers, body } = renderRefusal(contract, refused)
  for (const [name, value] of headers) response.setHeader(name, value)
  // The rest of an oversized body is not worth reading to keep the connection.
  if (refused.code === 'body-too-large') response.setHeader('Connection', 'close')
  response.statusCode = status
  response.end(body)
}
