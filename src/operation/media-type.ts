import { trimOws } from './ows.ts'

/** A Content-Type, read so that spellings of one type agree. */
export interface MediaType {
  /** Lower-case `type/subtype`; empty when the header is not well-formed, and then nothing is known of the body. */
  readonly essence: string
  readonly parameters: readonly Parameter[]
  /** The whole header value in one spelling: different types never share it. */
  readonly normal: string
}

type Parameter = readonly [name: string, value: string]

/** A longer Content-Type is taken as it is, unread. */
const CONTENT_TYPE_CHARS_MAX = 1024

const ESSENCE = /^[!#$%&'*+.^_`|~0-9a-z-]+\/[!#$%&'*+.^_`|~0-9a-z-]+$/
const PARAMETER =
  /[ \t]*;[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)|"((?:[^"\\]|\\.)*)"))?/y

const PLAIN_JSON: MediaType = { essence: 'application/json', parameters: [], normal: 'application/json' }

/**
 * Letter case of type, names and charset, white space, the order and the quoting of parameters do not matter. All other
 * parameters count (`version=2` may well choose another handler), but for `charset=utf-8` on JSON, which is always UTF-8.
 */
export function parseMediaType(contentType: string): MediaType {
  if (contentType === 'application/json' || contentType === 'application/json; charset=utf-8') return PLAIN_JSON
  const value = trimOws(contentType)
  const unread = { essence: '', parameters: [], normal: `unread ${value}` }
  if (value.length > CONTENT_TYPE_CHARS_MAX) return unread
  const semicolon = value.indexOf(';')
  const essence = trimOws(semicolon === -1 ? value : value.slice(0, semicolon)).toLowerCase()
  if (!ESSENCE.test(essence)) return unread
  const parameters = semicolon === -1 ? [] : parseParameters(value.slice(semicolon))
  if (parameters === undefined) return unread
  const kept = isJson(essence)
    ? parameters.filter(([name, text]) => name !== 'charset' || text !== 'utf-8')
    : parameters
  return { essence, parameters: kept, normal: normalMediaType(essence, kept) }
}

/** One spelling of a type and its parameters. */
export function normalMediaType(essence: string, parameters: readonly Parameter[]): string {
  return essence + parameters.map(([name, value]) => `;${name}=${JSON.stringify(value)}`).join('')
}

/** `application/json`, `text/json`, and every `+json`. */
export function isJson(essence: string): boolean {
  return essence === 'application/json' || essence === 'text/json' || essence.endsWith('+json')
}

/** Sorted by name; `undefined` when they are malformed or one is there twice. */
function parseParameters(text: string): Parameter[] | undefined {
  const parameters: Parameter[] = []
  const seen = new Set<string>()
  let at = 0
  while (at < text.length) {
    PARAMETER.lastIndex = at
    const match = PARAMETER.exec(text)
    if (match === null) return undefined
    at = PARAMETER.lastIndex
    const name = match[1]?.toLowerCase()
    if (name === undefined) continue
    if (seen.has(name)) return undefined
    seen.add(name)
    const value = match[2] ?? (match[3] ?? '').replace(/\\(.)/gs, '$1')
    parameters.push([name, name === 'charset' ? normalCharset(value) : value])
  }
  return parameters.sort(([a], [b]) => (a < b ? -1 : 1))
}

function normalCharset(value: string): string {
  const charset = value.toLowerCase()
  return charset === 'utf8' ? 'utf-8' : charset
}
