import type { Done, Result, Run } from '../execution.ts'
import type { Payload } from '../operation/fingerprint.ts'
import { type Refusal, refusal } from '../refusal.ts'
import type { Answer } from '../store.ts'
import { concat, hasNoBody } from './bytes.ts'
import { FetchCapture } from './fetch-capture.ts'
import { isRefusal, type Protection, type RequestFacts } from './protection.ts'
import { renderRefusal } from './refusals.ts'

/** One request on its way through a framework that speaks `Request` and `Response`. */
export interface FetchExchange<Req> {
  /** As the framework gives it, for the user's resolvers. */
  readonly request: Req
  readonly incoming: Request
  readonly facts: RequestFacts
  /** The framework's request once more, with its body unread, for a resolver that looks into it. */
  readonly rebuilt: (incoming: Request) => Req
  /** Runs the handler on this request; `run` is `undefined` when the request is not covered. */
  readonly proceed: (incoming: Request, run: Run | undefined) => Promise<Response>
}

/** The Fetch bridge: everything from a `Request` to its `Response`. */
export async function protectFetch<Req>(protection: Protection<Req>, exchange: FetchExchange<Req>): Promise<Response> {
  const { request, facts, proceed } = exchange
  let { incoming } = exchange
  const { contract } = protection
  if (!protection.covers(facts.method)) return proceed(incoming, undefined)
  const key = protection.key(request, facts)
  if (key === undefined) return proceed(incoming, undefined)
  if (isRefusal(key)) return refuse(protection, key)

  const bytes = await readBody(incoming, contract.limits.requestBytesMax)
  if (bytes === 'too-large') return refuse(protection, refusal('body-too-large'))
  const unread = () => exchange.rebuilt(bytes ? withBody(incoming, bytes) : incoming)
  const given = protection.payload(unread)
  const payload = given ? await given : toPayload(bytes, incoming)
  const named = await protection.named(key, unread)
  if (bytes) incoming = withBody(incoming, bytes)
  if (named === undefined) return proceed(incoming, undefined)
  const operation = await protection.operation(request, facts, named, payload)

  let capture: FetchCapture | undefined
  const streaming = Promise.withResolvers<FetchCapture>()
  const result = protection.engine.execute(operation, async (run): Promise<Done> => {
    capture = new FetchCapture(facts.method, protection, await proceed(incoming, run))
    streaming.resolve(capture)
    return capture.done
  })
  // An answer that takes its time goes out while it is made; its end waits for the record.
  const early = streaming.promise.then((started) => started.untilStreaming)
  const first = await Promise.race([result, early])
  const response = first instanceof Response ? first : toResponse(protection, first, capture)
  if (first instanceof Response) letGoWhenRecorded(result, capture)
  if (contract.headers.echoKey) response.headers.set(contract.key.header, operation.key)
  return response
}

function toResponse<Req>(protection: Protection<Req>, result: Result, capture: FetchCapture | undefined): Response {
  switch (result.kind) {
    case 'executed': {
      const response = capture?.response() ?? Response.error()
      if (result.record === 'unrecorded') response.headers.set(protection.contract.headers.recorded, 'false')
      return response
    }
    case 'replayed':
      return replay(protection, result.answer)
    case 'refused':
      return refuse(protection, result.refusal)
  }
}

function letGoWhenRecorded(result: Promise<Result>, capture: FetchCapture | undefined): void {
  result.then(
    () => capture?.end(),
    () => capture?.end(),
  )
}

function replay<Req>({ contract }: Protection<Req>, { status, headers, body }: Answer): Response {
  const replayed = new Headers()
  for (const [name, value] of headers) replayed.append(name, value)
  replayed.set(contract.headers.replayed, 'true')
  return new Response(hasNoBody(status) || body?.byteLength === 0 ? null : (body as Uint8Array<ArrayBuffer>), {
    status,
    headers: replayed,
  })
}

function refuse<Req>({ contract }: Protection<Req>, refused: Refusal): Response {
  const { status, headers, body } = renderRefusal(contract, refused)
  return new Response(body, { status, headers: headers.map(([name, value]) => [name, value]) })
}

/** From its parts: a server's own kind of Request is not one that `new Request` can copy. */
function withBody({ url, method, headers, signal }: Request, body: Uint8Array<ArrayBuffer>): Request {
  return new Request(url, { method, headers, signal, body })
}

function toPayload(bytes: Uint8Array | undefined, incoming: Request): Payload {
  if (!bytes || bytes.length === 0) return { kind: 'none' }
  return { kind: 'bytes', bytes, contentType: incoming.headers.get('content-type') ?? '' }
}

async function readBody(
  incoming: Request,
  bytesMax: number,
): Promise<Uint8Array<ArrayBuffer> | 'too-large' | undefined> {
  if (!incoming.body) return undefined
  if (Number(incoming.headers.get('content-length') ?? 0) > bytesMax) return 'too-large'
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of incoming.body) {
    bytes += chunk.byteLength
    if (bytes > bytesMax) return 'too-large'
    chunks.push(chunk)
  }
  return concat(chunks, bytes)
}
