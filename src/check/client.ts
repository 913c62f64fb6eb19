import { request as httpRequest } from 'node:http'
import { connect as netConnect, type Socket } from 'node:net'
import { connect as tlsConnect } from 'node:tls'
import { brotliDecompressSync, gunzipSync, inflateSync } from 'node:zlib'

export type HeaderList = ReadonlyArray<readonly [name: string, value: string]>

export interface Sent {
  readonly method: string
  readonly url: URL
  /** Sent line by line, in this order; Host and Content-Length are added. */
  readonly headers: HeaderList
  readonly body?: Uint8Array | undefined
}

/** An answer as it came: no header merged, nothing decoded but the chunks. */
export interface Received {
  readonly status: number
  readonly headers: HeaderList
  readonly body: Buffer
}

/** No answer came: the connection was refused or broken, or the time was over. */
export class NoAnswer extends Error {}

const ANSWER_BYTES_MAX = 16 * 1024 * 1024

/** One request on a connection of its own: nothing of it is shared with the next one, and no redirect is followed. */
export async function exchange(sent: Sent, timeoutMs: number): Promise<Received> {
  return answered(await connected(sent.url, timeoutMs), sent, timeoutMs)
}

/** The same request many times at once. All connections stand before the first byte is sent, so that they truly meet. */
export async function exchangeAtOnce(
  sent: Sent,
  times: number,
  timeoutMs: number,
): Promise<Array<Received | NoAnswer>> {
  const opened = await Promise.allSettled(Array.from({ length: times }, () => connected(sent.url, timeoutMs)))
  const answers = await Promise.allSettled(
    opened.map((one) =>
      one.status === 'fulfilled' ? answered(one.value, sent, timeoutMs) : Promise.reject(one.reason),
    ),
  )
  return answers.map((one) => (one.status === 'fulfilled' ? one.value : noAnswer(one.reason, timeoutMs)))
}

export function values({ headers }: Pick<Received, 'headers'>, name: string): string[] {
  return headers.filter(([other]) => other.toLowerCase() === name).map(([, value]) => value)
}

/** What the client has after its Content-Encoding is taken off. `undefined`: it is not what that header says. */
export function decoded(answer: Received): Buffer | undefined {
  let body: Buffer = answer.body
  const encodings = values(answer, 'content-encoding')
    .flatMap((value) => value.split(','))
    .map((value) => value.trim().toLowerCase())
  try {
    for (const encoding of encodings.reverse()) {
      if (encoding === '' || encoding === 'identity') continue
      const decode = DECODERS[encoding]
      if (!decode) return undefined
      // An empty body has nothing in it to decode, as in an answer to HEAD.
      if (body.length > 0) body = decode(body, { maxOutputLength: ANSWER_BYTES_MAX })
    }
    return body
  } catch {
    return undefined
  }
}

const DECODERS: Readonly<Record<string, (bytes: Buffer, options: { maxOutputLength: number }) => Buffer>> = {
  gzip: gunzipSync,
  'x-gzip': gunzipSync,
  deflate: inflateSync,
  br: brotliDecompressSync,
}

async function connected(url: URL, timeoutMs: number): Promise<Socket> {
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
  const isTls = url.protocol === 'https:'
  const port = Number(url.port) || (isTls ? 443 : 80)
  const socket = isTls
    ? tlsConnect({ host, port, servername: /^[\d.]+$|:/.test(host) ? '' : host, ALPNProtocols: ['http/1.1'] })
    : netConnect({ host, port })
  // A server may break the connection after its answer has been read; that is nobody's failure.
  socket.on('error', () => {})
  const timer = setTimeout(() => socket.destroy(new NoAnswer(tooSlow(timeoutMs))), timeoutMs)
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once(isTls ? 'secureConnect' : 'connect', resolve)
      socket.once('error', reject)
    })
    socket.setNoDelay(true)
    return socket
  } catch (error) {
    throw noAnswer(error, timeoutMs)
  } finally {
    clearTimeout(timer)
  }
}

async function answered(socket: Socket, sent: Sent, timeoutMs: number): Promise<Received> {
  const { url, method, headers, body } = sent
  const lines = ['Host', url.host, ...headers.flat()]
  if (body !== undefined || !BODILESS.has(method)) lines.push('Content-Length', String(body?.length ?? 0))
  const timer = setTimeout(() => socket.destroy(new NoAnswer(tooSlow(timeoutMs))), timeoutMs)
  try {
    return await new Promise<Received>((resolve, reject) => {
      const request = httpRequest({
        createConnection: () => socket,
        method,
        path: url.pathname + url.search,
        headers: lines,
      })
      request.on('error', reject)
      request.on('response', (response) => {
        const parts: Buffer[] = []
        let size = 0
        response.on('error', reject)
        response.on('data', (part: Buffer) => {
          size += part.length
          if (size > ANSWER_BYTES_MAX)
            socket.destroy(new NoAnswer(`The answer is over ${ANSWER_BYTES_MAX} bytes long.`))
          else parts.push(part)
        })
        response.on('end', () => {
          const pairs = response.rawHeaders
          const list = pairs.flatMap((name, at) => (at % 2 === 0 ? [[name, pairs[at + 1] ?? ''] as const] : []))
          resolve({ status: response.statusCode ?? 0, headers: list, body: Buffer.concat(parts) })
        })
      })
      request.end(body)
    })
  } catch (error) {
    throw noAnswer(error, timeoutMs)
  } finally {
    clearTimeout(timer)
    socket.destroy()
  }
}

const BODILESS: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS'])

function noAnswer(error: unknown, timeoutMs: number): NoAnswer {
  if (error instanceof NoAnswer) return error
  const { code, message } = error as NodeJS.ErrnoException
  const text =
    code === 'ETIMEDOUT' ? tooSlow(timeoutMs) : `${code ? `${code}: ` : ''}${message || 'the connection broke'}`
  return new NoAnswer(text, { cause: error })
}

function tooSlow(timeoutMs: number): string {
  return `no answer within ${timeoutMs} ms`
}
