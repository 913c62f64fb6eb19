import { type OutgoingHttpHeader, type OutgoingHttpHeaders, validateHeaderName, validateHeaderValue } from 'node:http'

export type Headers = OutgoingHttpHeaders | OutgoingHttpHeader[]

/** What Node would throw in end() or writeHead(), thrown there and not when the answer goes out. */
export function checkStatus(status: number): void {
  if (status >= 100 && status <= 999) return
  throw Object.assign(new RangeError(`Invalid status code: ${status}`), { code: 'ERR_HTTP_INVALID_STATUS_CODE' })
}

export function checkHeader(name: string, value: OutgoingHttpHeader | undefined): void {
  validateHeaderName(name)
  for (const item of Array.isArray(value) ? value : [value]) validateHeaderValue(name, item as string)
}

export function checkChunk(chunk: unknown): void {
  if (chunk === undefined || chunk === null || typeof chunk === 'string' || chunk instanceof Uint8Array) return
  throw Object.assign(new TypeError('The chunk must be a string, a Buffer or a Uint8Array'), {
    code: 'ERR_INVALID_ARG_TYPE',
  })
}

/** `writeHead` takes an object, a list of pairs, or one flat list of names and values. */
export function flatHeaders(headers: Headers | undefined): Array<readonly [string, OutgoingHttpHeader | undefined]> {
  if (headers === undefined) return []
  if (!Array.isArray(headers)) return Object.entries(headers)
  if (Array.isArray(headers[0])) return headers as unknown as Array<[string, OutgoingHttpHeader]>
  const pairs: Array<readonly [string, OutgoingHttpHeader | undefined]> = []
  for (let i = 0; i < headers.length; i += 2) pairs.push([String(headers[i]), headers[i + 1]])
  return pairs
}
