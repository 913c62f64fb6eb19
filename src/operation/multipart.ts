import { asBuffer } from './canonical.ts'
import { trimOws } from './ows.ts'

/** One part of a multipart/form-data body. */
interface Part {
  /** Lower-case names, trimmed values, sorted by name: one spelling for one header block. */
  readonly headers: ReadonlyArray<readonly [name: string, value: string]>
  /** A view into the body, not a copy. */
  readonly body: Uint8Array
}

/** A body with more parts is not taken apart. */
export const PARTS_MAX = 1000

/** Nor is one with a longer header block in a part. */
export const PART_HEADER_BYTES_MAX = 16_384

/** RFC 2046: 1 to 70 of these, the last no space. */
const BOUNDARY = /^[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]$/
const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/

/**
 * The parts of a body, in order, or `undefined` when it is not exactly what RFC 7578 describes: CRLF line ends, nothing
 * before the first delimiter or after the last one, a `content-disposition: form-data` in every part, and the boundary
 * nowhere else. Lenient readers differ on all of these, so such a body must be compared by its bytes.
 */
export function splitMultipart(bytes: Uint8Array, boundary: string): Part[] | undefined {
  if (!BOUNDARY.test(boundary)) return undefined
  const body = asBuffer(bytes)
  const delimiter = Buffer.from(`--${boundary}`, 'latin1')
  if (body.indexOf(delimiter) !== 0) return undefined
  const parts: Part[] = []
  let at = delimiter.length
  while (!isText(body, at, '--')) {
    if (!isText(body, at, '\r\n') || parts.length === PARTS_MAX) return undefined
    const next = body.indexOf(delimiter, at)
    if (next === -1 || !isText(body, next - 2, '\r\n')) return undefined
    const part = readPart(body.subarray(at + 2, next - 2))
    if (part === undefined) return undefined
    parts.push(part)
    at = next + delimiter.length
  }
  const end = at + 2
  return end === body.length || (end + 2 === body.length && isText(body, end, '\r\n')) ? parts : undefined
}

/** A stray line end would let one value pass for two headers. */
const HEADER_VALUE = /^[^\0\r\n]*$/

/** What stands between two delimiter lines: headers, an empty line, the content. */
function readPart(bytes: Buffer): Part | undefined {
  const headersEnd = bytes.subarray(0, PART_HEADER_BYTES_MAX).indexOf('\r\n\r\n')
  if (headersEnd === -1) return undefined
  const headers: [string, string][] = []
  for (const line of bytes.toString('latin1', 0, headersEnd).split('\r\n')) {
    const colon = line.indexOf(':')
    const name = line.slice(0, Math.max(colon, 0))
    const value = line.slice(colon + 1)
    if (!HEADER_NAME.test(name) || !HEADER_VALUE.test(value)) return undefined
    headers.push([name.toLowerCase(), trimOws(value)])
  }
  headers.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
  const disposition = headers.filter(([name]) => name === 'content-disposition')
  if (disposition.length !== 1 || !/^form-data[ \t]*;/i.test(disposition[0]?.[1] ?? '')) return undefined
  return { headers, body: bytes.subarray(headersEnd + 4) }
}

function isText(body: Buffer, at: number, text: string): boolean {
  return at >= 0 && at + text.length <= body.length && body.toString('latin1', at, at + text.length) === text
}
