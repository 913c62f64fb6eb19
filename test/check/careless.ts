import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { gzipSync } from 'node:zlib'
import type { AdapterServer } from '../../src/testing/adapter-suite.ts'
import { listening } from '../adapters/subjects.ts'
import { VERY_SLOW_MS } from './service.ts'

/** What goes wrong with idempotency in real services, each with the case of the check that must name it. */
export const DEFECTS = {
  'no idempotency at all': 'replay.success',
  'the key stays locked': 'replay.success',
  'the answer is written anew on a replay': 'replay.success',
  'a replay is always a 200': 'replay.success',
  'the type is lost on a replay': 'replay.success',
  'the second replay runs again': 'replay.success',
  'a rejected request is an empty success on its retry': 'replay.rejection',
  'another body gets the old answer': 'conflict.body',
  'another body runs': 'conflict.body',
  'a conflict frees the key': 'conflict.body',
  'the key is part of the body': 'conflict.order',
  'the claim comes after the work': 'race.same-key',
  'duplicates in a race fail with 500': 'race.same-key',
  'duplicates block everybody': 'race.same-key',
  'a running request is not known': 'in-flight.duplicate',
  'an odd key is a 500': 'keys.non-ascii',
  'a quoted key is a 500': 'keys.quoted',
  'a second key header is a 500': 'keys.twice',
  'a tab switches it off': 'keys.control',
  'records are kept in an object': 'keys.hostile',
  'a long key is cut off': 'keys.long',
  'a long key switches it off': 'keys.long',
  'no key is a key, too': 'keys.missing',
  'an empty key is a key, too': 'keys.empty',
  'cookies are replayed': 'headers.cookies',
  'headers of the connection are replayed': 'headers.framing',
  'a replay has two lengths': 'headers.framing',
  'an encoded answer loses its header': 'headers.encoding',
  'reads are answered from the record': 'reads.untouched',
  'a failure leaves the key locked': 'failures.retry',
  'a failure is replayed now and then': 'failures.retry',
  'a retry that succeeds is not recorded': 'failures.retry',
  'tenants share keys': 'tenants.isolation',
  'tenants take keys from one another': 'tenants.isolation',
} as const

export type Defect = keyof typeof DEFECTS

interface Kept {
  readonly print: string
  readonly owner: string
  uses: number
  answer?: { status: number; headers: Record<string, string | string[]>; body: Buffer } | undefined
}

const SLOW_MS = 400
/** Long enough for requests that were sent together to meet. */
const WORK_MS = 15
const KEY_LENGTH_MAX = 255

/** A small order service with idempotency by hand: right as far as it goes, unless it is given a defect. */
export function careless(defect?: Defect): Promise<AdapterServer> {
  const kept = new Map<string, Kept>()
  let effects = 0
  let failures = 0
  const slowMs = defect === 'a running request is not known' ? VERY_SLOW_MS : SLOW_MS

  const run = async (request: IncomingMessage, body: string): Promise<NonNullable<Kept['answer']>> => {
    const type = { 'Content-Type': 'application/json' }
    let order: { fail?: boolean; slow?: boolean }
    try {
      order = JSON.parse(body)
    } catch {
      return { status: 422, headers: type, body: Buffer.from('{"error":"not JSON"}') }
    }
    if (order.fail) {
      failures++
      const recovers = defect === 'a retry that succeeds is not recorded' && failures > 1
      if (!recovers) return { status: 500, headers: type, body: Buffer.from(`{"failure":${failures}}`) }
    }
    const id = ++effects
    await new Promise((resolve) => setTimeout(resolve, order.slow ? slowMs : WORK_MS))
    const headers = {
      ...type,
      Location: `/orders/${id}`,
      'Set-Cookie': [`session=${id}`],
      ...(defect === 'headers of the connection are replayed' && {
        Connection: request.headers.connection ?? 'close',
      }),
      ...(request.headers['accept-encoding'] === 'gzip' && { 'Content-Encoding': 'x-gzip' }),
    }
    const text = Buffer.from(`{ "id": ${id} }`)
    return { status: 201, headers, body: request.headers['accept-encoding'] === 'gzip' ? gzipSync(text) : text }
  }

  const answer = (response: ServerResponse, { status, headers, body }: NonNullable<Kept['answer']>): void => {
    response.writeHead(status, headers).end(body)
  }
  const refuse = (response: ServerResponse, status: number, error: string): void => {
    response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify({ error }))
  }

  const serve = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    if (request.url === '/count') return void response.end(String(effects))
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = Buffer.concat(chunks).toString()
    const name = keyOf(request, defect)
    if (request.method !== 'POST') {
      const record = name.key === undefined ? undefined : kept.get(name.key)
      if (defect === 'reads are answered from the record' && record?.answer) return answer(response, record.answer)
      return refuse(response, 405, 'only POST')
    }
    if (name.status !== undefined) return refuse(response, name.status, 'bad key')
    const { key } = name
    if (key === undefined || defect === 'no idempotency at all') return answer(response, await run(request, body))
    if (defect === 'records are kept in an object' && key.endsWith('__proto__'))
      return refuse(response, 500, 'no answer')
    const print = `${request.url} ${canonical(body)}`
    const owner = request.headers.authorization ?? ''
    const id = defect === 'the key is part of the body' ? key + body : key
    const record = kept.get(id)
    if (record === undefined) return begin(id, { print, owner, uses: 0 }, request, response, body)
    return repeat(id, record, { print, owner }, request, response, body)
  }

  const begin = async (
    key: string,
    record: Kept,
    request: IncomingMessage,
    response: ServerResponse,
    body: string,
  ): Promise<void> => {
    const isLate =
      defect === 'the claim comes after the work' ||
      (defect === 'a running request is not known' && body.includes('slow'))
    if (!isLate) kept.set(key, record)
    const made = await run(request, body)
    if (isLate) kept.set(key, record)
    if (made.status >= 500 && defect !== 'a failure leaves the key locked') {
      if (defect !== 'a failure is replayed now and then') kept.delete(key)
      else record.answer = made
    } else if (defect !== 'the key stays locked' && made.status < 500) {
      record.answer = made
    }
    if (defect === 'duplicates block everybody' && record.uses > 0) {
      record.answer = undefined
      return refuse(response, 409, 'somebody else runs')
    }
    if (defect === 'a retry that succeeds is not recorded' && body.includes('fail')) kept.delete(key)
    answer(response, made)
  }

  const repeat = async (
    key: string,
    record: Kept,
    { print, owner }: Pick<Kept, 'print' | 'owner'>,
    request: IncomingMessage,
    response: ServerResponse,
    body: string,
  ): Promise<void> => {
    record.uses++
    if (defect === 'tenants take keys from one another' && record.owner !== owner) return refuse(response, 422, 'used')
    if (record.print !== print && defect !== 'another body gets the old answer') {
      if (defect === 'a conflict frees the key') kept.delete(key)
      if (defect === 'another body runs') return answer(response, await run(request, body))
      return refuse(response, 422, 'used for another request')
    }
    const first = record.answer
    if (first === undefined) {
      if (defect === 'duplicates in a race fail with 500') return refuse(response, 500, 'duplicate key value')
      response.setHeader('Retry-After', '1')
      return refuse(response, 409, 'still running')
    }
    if (first.status >= 500 && record.uses % 2 === 0) return answer(response, await run(request, body))
    if (defect === 'the second replay runs again' && record.uses > 1) return answer(response, await run(request, body))
    if (defect === 'a replay has two lengths') return twoLengths(response, first.body)
    answer(response, replayed(first, defect))
  }

  return listening(createServer((request, response) => void serve(request, response)))
}

type Named = { readonly key?: string | undefined; readonly status?: number }

function keyOf(request: IncomingMessage, defect: Defect | undefined): Named {
  const lines = request.headersDistinct['idempotency-key'] ?? []
  if (lines.length === 0) return defect === 'no key is a key, too' ? { key: 'undefined' } : { status: 400 }
  if (lines.length > 1) return { status: defect === 'a second key header is a 500' ? 500 : 400 }
  let raw = lines[0] ?? ''
  if (raw === '') return defect === 'an empty key is a key, too' ? { key: '' } : { status: 400 }
  if (raw.includes('\t') && defect === 'a tab switches it off') return {}
  if (/[^\x20-\x7e]/.test(raw)) return { status: defect === 'an odd key is a 500' ? 500 : 400 }
  if (raw.startsWith('"') && defect === 'a quoted key is a 500') return { status: 500 }
  if (raw.length > KEY_LENGTH_MAX) {
    if (defect === 'a long key switches it off') return {}
    if (defect !== 'a long key is cut off') return { status: 400 }
    raw = raw.slice(0, KEY_LENGTH_MAX)
  }
  const isShared = defect === 'tenants share keys' || defect === 'tenants take keys from one another'
  const key = raw.replaceAll('"', '')
  return { key: isShared ? key : `${request.headers.authorization} ${key}` }
}

function replayed(first: NonNullable<Kept['answer']>, defect: Defect | undefined): NonNullable<Kept['answer']> {
  const { 'Set-Cookie': cookies, ...headers } = first.headers
  if (cookies && defect === 'cookies are replayed') headers['Set-Cookie'] = cookies
  if (defect === 'a replay is always a 200') return { ...first, headers, status: 200 }
  if (defect === 'the answer is written anew on a replay') {
    return { ...first, headers, body: Buffer.from(JSON.stringify(JSON.parse(first.body.toString()))) }
  }
  if (defect === 'the type is lost on a replay') delete headers['Content-Type']
  if (defect === 'an encoded answer loses its header') delete headers['Content-Encoding']
  if (defect === 'a rejected request is an empty success on its retry' && first.status >= 400) {
    return { status: 200, headers: {}, body: Buffer.alloc(0) }
  }
  return { ...first, headers }
}

/** Node would not write this: it is what a kept Content-Length does behind a proxy that streams. */
function twoLengths(response: ServerResponse, body: Buffer): void {
  const head = `HTTP/1.1 201 Created\r\nContent-Length: ${body.length}\r\nContent-Length: ${body.length}\r\n\r\n`
  response.socket?.end(Buffer.concat([Buffer.from(head), body]))
}

function canonical(body: string): string {
  try {
    return JSON.stringify(Object.entries(JSON.parse(body)).sort())
  } catch {
    return body
  }
}
