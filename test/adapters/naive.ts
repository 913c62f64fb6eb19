import { createServer } from 'node:http'
import { headerFilter, verdicts } from '../../src/contract.ts'
import { ietf } from '../../src/contracts/ietf.ts'
import type { RefusalCode } from '../../src/error.ts'
import type { Run } from '../../src/execution.ts'
import { renderRefusal } from '../../src/http/refusals.ts'
import { fingerprint } from '../../src/operation/fingerprint.ts'
import { parseKey } from '../../src/operation/key.ts'
import { deriveKey, operationId } from '../../src/operation/scope.ts'
import { refusal } from '../../src/refusal.ts'
import type { Answer, Claim, ClaimRequest, RecordState, Settlement, Store } from '../../src/store.ts'
import type { AdapterSuiteOptions, FetchAdapterUnderTest, FetchHandle } from '../../src/testing/adapter-suite.ts'
import { bridge, listening } from './subjects.ts'

/** Mistakes that published libraries make, each with the case of the suite that must catch it. */
export const BUGS = {
  'bodies go through .text()': 'X4: replays binary, every byte value',
  'Set-Cookie is kept': 'Set-Cookie, hop-by-hop headers, Date and what is not on the list are not replayed',
  'headers are an object': 'Set-Cookie, hop-by-hop headers, Date and what is not on the list are not replayed',
  'an empty body counts as no answer': 'X4: replays an empty 201',
  'a redirect counts as a failure': 'X4: replays a 303 with Location',
  'a refusal is stored': 'a key reused with another body is a conflict; the first record stays as it was',
  'the principal is not in the scope': 'X6: two principals with one key never meet',
  'the route is not in the scope': 'D8: one key on two routes, or with two methods, names two operations',
  'the query is ignored': 'a key reused with another query string is a conflict; the first record stays as it was',
  'the body is compared as text': 'a JSON body whose names come in another order is the same request',
  'only 64 KB of the body are compared':
    'a key reused with a body that differs after 100 KB is a conflict; the first record stays as it was',
  'a client that left frees the key':
    'a client that leaves before the answer changes nothing: the answer is recorded and replayed',
  'the claim is a read and then a write':
    '50 parallel requests with one key: one effect, the others are told that it is running',
  'the answer goes out before the record': 'an answer is sent only after it was recorded',
  'a store that is down lets everything pass': 'a store that is down refuses with 503, and nothing runs',
  'a failed record is the client’s 500':
    'a store that dies between effect and record: the client gets the real answer, marked as unrecorded',
  'a 429 is kept': 'a 429 says that nothing was done: the retry runs',
  'a 502 is kept': 'X2: a 502 leaves the outcome unknown: the retry is told so and does not run',
  'an error leaves the key locked': 'a handler that rejects runs once',
  'quotes are part of the key': 'a quoted key and a bare one are the same key',
  'every method is covered': 'methods that the contract does not name pass untouched, and the store is never asked',
} as const

export type Bug = keyof typeof BUGS

/** As small as an adapter can be, and right in the cases above, unless it is given a bug. */
export function naiveSubject(bug?: Bug): FetchAdapterUnderTest {
  return {
    name: bug ?? 'no bug',
    flavour: 'fetch',
    thrown: 'kept',
    serve: async ({ options, handle }) => listening(createServer(bridge(naive(options, handle, bug)))),
  }
}

const verdictOf = verdicts(ietf)
const keeps = headerFilter(ietf)

function naive(
  { store, principal }: AdapterSuiteOptions,
  handle: FetchHandle,
  bug: Bug | undefined,
): (request: Request) => Promise<Response> {
  return async (request) => {
    if (bug !== 'every method is covered' && !ietf.methods.includes(request.method)) return handle(request, undefined)
    const body = new Uint8Array(await request.arrayBuffer())
    const rebuilt = () => new Request(request.url, { ...pick(request), ...(body.length > 0 && { body }) })
    const who = principal === 'public' ? principal : ((await principal(request)) ?? '')
    const operation = identify(request, body, who, bug)
    if (operation instanceof Response) return operation
    let claim: Claim
    try {
      claim = await claimed(store, operation, bug)
    } catch {
      if (bug === 'a store that is down lets everything pass') return handle(rebuilt(), undefined)
      return refuse('store-unavailable', 1_000)
    }
    if (claim.state !== 'acquired') return duplicate(store, operation, claim, bug)
    const { id, key, token } = operation
    if (bug === 'a client that left frees the key') {
      request.signal.addEventListener('abort', () => void store.release(id, token))
    }
    const { signal } = new AbortController()
    const run: Run = { id, key, keySource: 'client', attempt: 1, signal, derive: (name) => deriveKey(id, name) }
    const { answer, first } = await execute(() => handle(rebuilt(), run), bug)
    if (bug === 'the claim is a read and then a write') await store.claim(operation)
    const recorded = conclude(store, operation, answer, bug)
    if (bug === 'the answer goes out before the record') return first
    try {
      await recorded
    } catch (error) {
      if (bug === 'a failed record is the client’s 500') throw error
      first.headers.set('Idempotent-Recorded', 'false')
      retryUntilKept(() => conclude(store, operation, answer, bug))
    }
    return first
  }
}

type Claimed = ClaimRequest & { readonly key: string }

function identify(request: Request, body: Uint8Array, who: string, bug: Bug | undefined): Claimed | Response {
  const header = request.headers.get('idempotency-key') ?? ''
  const parsed = parseKey(header, 255)
  if (parsed.state !== 'present') return refuse(parsed.state === 'absent' ? 'key-missing' : 'key-invalid')
  const key = bug === 'quotes are part of the key' ? header : parsed.key
  const { pathname, search } = new URL(request.url)
  const scope = [bug === 'the principal is not in the scope' ? '' : who]
  if (bug !== 'the route is not in the scope') scope.push(request.method, pathname)
  const target = bug === 'the query is ignored' ? pathname : pathname + search
  const bytes = bug === 'only 64 KB of the body are compared' ? body.subarray(0, 65_536) : body
  const type = bug === 'the body is compared as text' ? 'text/plain' : request.headers.get('content-type')
  const payload = { kind: 'bytes', bytes, contentType: type ?? '' } as const
  const print = fingerprint({ method: request.method, target, payload })
  const lease = { leaseMs: 30_000, unknownTtlMs: 30_000, takeover: false }
  return { key, id: operationId(scope, key), token: crypto.randomUUID(), fingerprint: print, ...lease }
}

async function claimed(store: Store, operation: Claimed, bug: Bug | undefined): Promise<Claim> {
  if (bug !== 'the claim is a read and then a write') return store.claim(operation)
  return (await store.read(operation.id)) ?? { state: 'acquired', attempt: 1 }
}

async function duplicate(
  store: Store,
  operation: Claimed,
  record: RecordState,
  bug: Bug | undefined,
): Promise<Response> {
  const { id, token } = operation
  if (record.fingerprint !== operation.fingerprint) {
    if (bug === 'a refusal is stored') {
      await store.forget(id)
      await store.claim({ ...operation, fingerprint: record.fingerprint })
      await store.settle(id, token, settlement(await toAnswer(refuse('key-conflict'), bug)))
    }
    return refuse('key-conflict')
  }
  if (record.state === 'settled') return replay(record.answer)
  return record.state === 'running' ? refuse('in-flight', record.leaseLeftMs) : refuse('outcome-unknown')
}

async function execute(
  run: () => Response | Promise<Response>,
  bug: Bug | undefined,
): Promise<{ answer: Answer; first: Response }> {
  try {
    const response = await run()
    const answer = await toAnswer(response.clone(), bug)
    const headers = bug === 'headers are an object' ? Object.fromEntries(response.headers) : response.headers
    return { answer, first: new Response(response.body, { status: response.status, headers }) }
  } catch (error) {
    if (bug === 'an error leaves the key locked') throw error
    const first = new Response('failed', { status: 500 })
    return { answer: await toAnswer(first.clone(), bug), first }
  }
}

async function conclude(store: Store, { id, token }: Claimed, answer: Answer, bug: Bug | undefined): Promise<void> {
  const { status, body } = answer
  let verdict = verdictOf(status)
  if (bug === 'an empty body counts as no answer' && body?.length === 0) verdict = 'release'
  if (bug === 'a redirect counts as a failure' && status >= 300 && status < 400) verdict = 'release'
  if (bug === 'a 429 is kept' && status === 429) verdict = 'keep'
  if (bug === 'a 502 is kept' && status === 502) verdict = 'keep'
  if (verdict === 'keep') await store.settle(id, token, settlement(answer))
  else if (verdict === 'release') await store.release(id, token)
  else await store.renew(id, token, 0)
}

function retryUntilKept(conclude: () => Promise<void>): void {
  const retry = (left: number): void => {
    if (left > 0) conclude().catch(() => setTimeout(retry, 20, left - 1))
  }
  retry(100)
}

function settlement(answer: Answer): Settlement {
  return { outcome: 'committed', answer, ttlMs: 60_000, expiredTtlMs: 0 }
}

async function toAnswer(response: Response, bug: Bug | undefined): Promise<Answer> {
  const headers = [...response.headers].filter(
    ([name]) => keeps(name) || (bug === 'Set-Cookie is kept' && name === 'set-cookie'),
  )
  const body =
    bug === 'bodies go through .text()'
      ? new TextEncoder().encode(await response.text())
      : new Uint8Array(await response.arrayBuffer())
  return { status: response.status, headers, body }
}

function pick({ method, headers }: Request): Pick<Request, 'method' | 'headers'> {
  return { method, headers }
}

function replay({ status, headers, body }: Answer): Response {
  const list = new Headers(headers.map(([name, value]) => [name, value]))
  list.set('Idempotent-Replayed', 'true')
  return new Response(body?.length ? (body as Uint8Array<ArrayBuffer>) : null, { status, headers: list })
}

function refuse(code: RefusalCode, retryAfterMs?: number): Response {
  const { status, headers, body } = renderRefusal(
    ietf,
    refusal(code, retryAfterMs === undefined ? {} : { retryAfterMs }),
  )
  return new Response(body, { status, headers: headers.map(([name, value]) => [name, value]) })
}
