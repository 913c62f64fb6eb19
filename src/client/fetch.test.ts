import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { manualClock } from '../testing/manual-clock.ts'
import { type FetchLike, type IdempotentFetchOptions, idempotentFetch, keyOf, UnansweredError } from './fetch.ts'

interface Seen {
  readonly method: string | undefined
  readonly key: string | undefined
  readonly type: string | undefined
  readonly body: string
}

const servers: Server[] = []
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  }
})

/** A real server that answers the n-th request with the n-th step, and every later one with the last. */
async function serve(...steps: ReadonlyArray<(response: ServerResponse, request: IncomingMessage) => void>) {
  const seen: Seen[] = []
  const server = createServer(async (request, response) => {
    const chunks: Uint8Array[] = []
    for await (const chunk of request) chunks.push(chunk)
    const { 'idempotency-key': key, 'content-type': type } = request.headers
    seen.push({ method: request.method, key: key?.toString(), type, body: Buffer.concat(chunks).toString('latin1') })
    steps[Math.min(seen.length, steps.length) - 1]?.(response, request)
  })
  servers.push(server)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/orders`, seen }
}

const answer =
  (status: number, body: unknown = { status }, headers: Record<string, string> = {}) =>
  (response: ServerResponse) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))
  }
const breakOff = (response: ServerResponse) => response.destroy()
const quick: IdempotentFetchOptions = { backoffMs: 1 }

describe('one key for each logical call', () => {
  it('D13: sends the given key, the same on every retry of one call', async () => {
    const { url, seen } = await serve(breakOff, answer(503), answer(201))
    const response = await idempotentFetch(quick)(url, { method: 'POST', body: '{"a":1}', idempotencyKey: 'order-1' })
    expect(response.status).toBe(201)
    expect(seen.map(({ key }) => key)).toEqual(['order-1', 'order-1', 'order-1'])
    expect(new Set(seen.map(({ body }) => body))).toEqual(new Set(['{"a":1}']))
    expect(keyOf(response)).toBe('order-1')
  })

  it('takes a blank header for none, and makes a key', async () => {
    const { url, seen } = await serve(breakOff, answer(200))
    await idempotentFetch(quick)(url, { method: 'POST', headers: { 'Idempotency-Key': '  ' } })
    const [first, second] = seen.map(({ key }) => key)
    expect(first).toMatch(/^[0-9a-f-]{36}$/)
    expect(second).toBe(first)
  })

  it('makes a key when none is given: one for all attempts of a call, another for the next call', async () => {
    const { url, seen } = await serve(breakOff, answer(200))
    const send = idempotentFetch(quick)
    await send(url, { method: 'POST' })
    await send(url, { method: 'POST' })
    const keys = seen.map(({ key }) => key)
    expect(keys).toHaveLength(3)
    expect(keys[0]).toMatch(/^[0-9a-f-]{36}$/)
    expect(keys[1]).toBe(keys[0])
    expect(keys[2]).not.toBe(keys[0])
  })

  it('takes the key of the header, and refuses two that differ', async () => {
    const { url, seen } = await serve(answer(200))
    const send = idempotentFetch(quick)
    await send(url, { method: 'DELETE', headers: { 'idempotency-key': '"quoted"' } })
    expect(seen[0]?.key).toBe('"quoted"')
    const both = { method: 'POST', headers: { 'Idempotency-Key': 'one' }, idempotencyKey: 'two' }
    await expect(send(url, both)).rejects.toMatchObject({ code: 'config-invalid' })
    await expect(send(url, { method: 'POST', idempotencyKey: 'two words' })).rejects.toThrow(/visible ASCII/)
    await expect(send(url, { method: 'POST', idempotencyKey: '' })).rejects.toThrow(/idempotencyKey is ""/)
    expect(seen).toHaveLength(1)
  })

  it.each(['POST', 'PUT', 'PATCH', 'DELETE'])('%s gets a key', async (method) => {
    const { url, seen } = await serve(answer(200))
    await idempotentFetch(quick)(url, { method })
    expect(seen[0]?.key).toBeTypeOf('string')
  })

  it('a GET gets none, not even one that is given, and is not sent again', async () => {
    const { url, seen } = await serve(answer(503))
    const response = await idempotentFetch(quick)(url, { idempotencyKey: 'never' })
    expect(response.status).toBe(503)
    expect(seen).toEqual([{ method: 'GET', key: undefined, type: undefined, body: '' }])
  })

  it('goes by another header and other keys where the service wants them', async () => {
    const { url } = await serve(answer(200))
    const sent: Array<string | null> = []
    const fetch: FetchLike = (input, init) => {
      sent.push(new Headers(init?.headers).get('x-once'))
      return globalThis.fetch(input, init)
    }
    await idempotentFetch({ fetch, keyHeader: 'X-Once', newKey: () => 'mine:1' })(url, { method: 'POST' })
    expect(sent).toEqual(['mine:1'])
  })
})

describe('what is sent again', () => {
  it.each([408, 425, 429, 502, 503, 504])('%i', async (status) => {
    const { url, seen } = await serve(answer(status), answer(200))
    expect((await idempotentFetch(quick)(url, { method: 'POST' })).status).toBe(200)
    expect(seen).toHaveLength(2)
  })

  it.each([
    ['a problem', { code: 'in-flight' }, {}],
    ['a nested error', { error: { code: 'IDEMPOTENCY_IN_PROGRESS' } }, {}],
    ['any code with Retry-After', { code: 'busy' }, { 'retry-after': '0' }],
  ])('409 that says "still running": %s', async (_name, body, headers) => {
    const { url, seen } = await serve(answer(409, body, headers), answer(200))
    expect((await idempotentFetch(quick)(url, { method: 'POST' })).status).toBe(200)
    expect(seen).toHaveLength(2)
  })

  it.each([400, 401, 404, 422, 500, 501])('not %i', async (status) => {
    const { url, seen } = await serve(answer(status))
    expect((await idempotentFetch(quick)(url, { method: 'POST' })).status).toBe(status)
    expect(seen).toHaveLength(1)
  })

  it('not a 409 that is a conflict, and its body is left for the caller', async () => {
    const { url, seen } = await serve(answer(409, { code: 'key-conflict' }))
    const response = await idempotentFetch(quick)(url, { method: 'POST' })
    expect(await response.json()).toEqual({ code: 'key-conflict' })
    expect(seen).toHaveLength(1)
  })

  it('not a replayed failure: the server would only repeat it', async () => {
    const { url, seen } = await serve(answer(503), answer(503, {}, { 'Idempotent-Replayed': 'true' }), answer(200))
    expect((await idempotentFetch(quick)(url, { method: 'POST' })).status).toBe(503)
    expect(seen).toHaveLength(2)
  })

  it('what the caller says', async () => {
    const { url, seen } = await serve(answer(500), answer(200))
    const shouldRetry = ({ response }: { response?: Response }) => response?.status === 500
    expect((await idempotentFetch({ ...quick, shouldRetry })(url, { method: 'POST' })).status).toBe(200)
    expect(seen).toHaveLength(2)
  })
})

describe('bodies', () => {
  it.each<[string, () => NonNullable<RequestInit['body']>]>([
    ['a form, with one boundary', () => form()],
    ['parameters', () => new URLSearchParams({ a: '1' })],
    ['bytes', () => new Uint8Array([0, 255, 1])],
    ['a blob', () => new Blob(['x'], { type: 'text/csv' })],
  ])('%s: the same bytes and type on every attempt', async (_name, make) => {
    const { url, seen } = await serve(answer(503), answer(200))
    await idempotentFetch(quick)(url, { method: 'POST', body: make() })
    expect(seen).toHaveLength(2)
    expect(seen[0]?.body).not.toBe('')
    expect(seen[1]).toEqual(seen[0])
  })

  it('bytes that their owner overwrites after the call began', async () => {
    const { url, seen } = await serve(answer(503), answer(200))
    const bytes = new Uint8Array([65, 66])
    const sent = idempotentFetch(quick)(url, { method: 'POST', body: bytes })
    bytes.fill(90)
    await sent
    expect(seen.map(({ body }) => body)).toEqual(['AB', 'AB'])
  })

  it('a Request, with all that it says', async () => {
    const { url, seen } = await serve(answer(503), answer(200))
    const request = new Request(url, { method: 'PUT', body: 'whole', headers: { 'content-type': 'text/x' } })
    expect((await idempotentFetch(quick)(request)).status).toBe(200)
    expect(seen).toEqual([0, 1].map(() => ({ method: 'PUT', key: seen[0]?.key, type: 'text/x', body: 'whole' })))
  })

  it('a Request above the bound is sent once, whole', async () => {
    const { url, seen } = await serve(answer(503))
    const request = new Request(url, { method: 'POST', body: 'x'.repeat(100_000) })
    expect((await idempotentFetch({ ...quick, bodyBytesMax: 10 })(request)).status).toBe(503)
    expect(seen.map(({ body }) => body.length)).toEqual([100_000])
  })

  it('a stream is sent once, and the error says so', async () => {
    const { url, seen } = await serve(breakOff)
    const body = new Blob(['streamed']).stream()
    const sent = idempotentFetch(quick)(url, { method: 'POST', body, duplex: 'half' })
    await expect(sent).rejects.toThrow(/its body is a stream, so it could be sent only once/)
    expect(seen.map(({ body }) => body)).toEqual(['streamed'])
  })
})

describe('giving up', () => {
  it('without an answer it throws what is needed to go on', async () => {
    const { url, seen } = await serve(answer(503), breakOff)
    const error = await idempotentFetch({ ...quick, retries: 2 })(url, { method: 'POST', idempotencyKey: 'k-1' }).catch(
      (thrown: unknown) => thrown,
    )
    expect(error).toBeInstanceOf(UnansweredError)
    expect(error).toMatchObject({ code: 'outcome-unknown', key: 'k-1' })
    expect((error as UnansweredError).attempts).toEqual([
      { status: 503 },
      { error: expect.any(TypeError) },
      { error: expect.any(TypeError) },
    ])
    expect((error as Error).message).toMatch(/outcome is not known.*Retry with this key, k-1/)
    expect(seen).toHaveLength(3)
  })

  it('with an answer it returns the last one, unread', async () => {
    const { url, seen } = await serve(answer(503, { n: 1 }), answer(503, { n: 2 }))
    const response = await idempotentFetch({ ...quick, retries: 1 })(url, { method: 'POST', idempotencyKey: 'k-2' })
    expect([response.status, await response.json(), keyOf(response)]).toEqual([503, { n: 2 }, 'k-2'])
    expect(seen).toHaveLength(2)
  })

  it('what can be no request at all is refused as fetch refuses it', async () => {
    await expect(idempotentFetch(quick)('no address', { method: 'POST' })).rejects.toBeInstanceOf(TypeError)
  })

  it.each([
    [{ retries: -1 }, /retries is -1/],
    [{ deadlineMs: 0 }, /deadlineMs is 0/],
    [{ keyHeader: 'two words' }, /keyHeader is two words/],
    [{ retry: 3 }, /retry is not an option/],
  ])('refuses %j', (options, reason) => {
    expect(() => idempotentFetch(options as IdempotentFetchOptions)).toThrow(reason)
  })
})

describe('time', () => {
  const START = Date.UTC(2026, 0, 1)

  /** A call on a clock that the test moves; `sentAt` are the moments of its attempts, from 0. */
  function timed(answers: ReadonlyArray<() => Response | undefined>, options: IdempotentFetchOptions = {}) {
    const clock = manualClock(START)
    const sentAt: number[] = []
    const fetch: FetchLike = (_input, init) => {
      sentAt.push(clock.now() - START)
      const response = answers[Math.min(sentAt.length, answers.length) - 1]?.()
      if (response) return Promise.resolve(response)
      return new Promise((_, reject) => {
        init?.signal?.addEventListener('abort', () => reject(init.signal?.reason))
      })
    }
    const send = idempotentFetch({ fetch, clock, random: () => 0.5, ...options })
    return { clock, sentAt, send: (init: RequestInit = {}) => send('http://x.test/', { method: 'POST', ...init }) }
  }
  const status = (code: number, headers: Record<string, string> = {}) => new Response('', { status: code, headers })

  it('backs off twice as long each time, up to a bound, with full jitter', async () => {
    const { clock, sentAt, send } = timed([() => status(503)], { backoffMs: 1_000, backoffMsMax: 3_000 })
    const sent = send()
    await clock.advance(60_000)
    expect((await sent).status).toBe(503)
    expect(sentAt).toEqual([0, 500, 1_500, 3_000, 4_500, 6_000])
  })

  it.each([
    ['seconds', { 'retry-after': '7' }],
    ['a date', { 'retry-after': new Date(START + 7_000).toUTCString() }],
    [
      "a date on the server's own clock, an hour ahead",
      { 'retry-after': new Date(START + 3_607_000).toUTCString(), date: new Date(START + 3_600_000).toUTCString() },
    ],
  ])('waits for as long as Retry-After says: %s', async (_name, headers) => {
    const { clock, sentAt, send } = timed([() => status(429, headers), () => status(200)], { random: () => 0 })
    const sent = send()
    await clock.advance(6_999)
    expect(sentAt).toEqual([0])
    await clock.advance(1)
    expect((await sent).status).toBe(200)
    expect(sentAt).toEqual([0, 7_000])
  })

  it('does not wait for longer than the caller allows: the answer is returned at once', async () => {
    const { sentAt, send } = timed([() => status(503, { 'retry-after': '61' })])
    expect((await send()).headers.get('retry-after')).toBe('61')
    expect(sentAt).toEqual([0])
  })

  it('gives an attempt up that brings no answer, and sends it again', async () => {
    const { clock, sentAt, send } = timed([() => undefined, () => status(200)], { attemptMsMax: 5_000, backoffMs: 0 })
    const sent = send()
    await clock.advance(5_000)
    expect((await sent).status).toBe(200)
    expect(sentAt).toEqual([0, 5_000])
  })

  it('ends at the deadline, in the middle of an attempt too', async () => {
    const { clock, send } = timed([() => undefined], { attemptMsMax: 5_000, deadlineMs: 12_000, backoffMs: 0 })
    const sent = send().catch((error: unknown) => error)
    await clock.advance(12_000)
    const error = (await sent) as UnansweredError
    expect(error).toBeInstanceOf(UnansweredError)
    expect(error.attempts).toHaveLength(3)
  })

  it("ends when the caller's signal aborts: in an attempt, in a wait, and before anything is sent", async () => {
    const reason = new Error('the user went away')
    for (const first of [() => undefined, () => status(503)]) {
      const { clock, sentAt, send } = timed([first])
      const controller = new AbortController()
      const sent = send({ signal: controller.signal }).catch((error: unknown) => error)
      await clock.advance(1)
      controller.abort(reason)
      expect(await sent).toBe(reason)
      expect(sentAt).toEqual([0])
    }
    const { sentAt, send } = timed([() => status(200)])
    await expect(send({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason)
    expect(sentAt).toEqual([])
  })
})

function form(): FormData {
  const made = new FormData()
  made.set('field', 'value')
  made.set('file', new Blob(['content']), 'a.txt')
  return made
}
