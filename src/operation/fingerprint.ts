import { canonicalBytes, canonicalValue } from './canonical.ts'
import { digest, digestBytes, lengthPrefixed } from './digest.ts'
import { isJson, type MediaType, normalMediaType, parseMediaType } from './media-type.ts'
import { splitMultipart } from './multipart.ts'

export type Payload =
  | { readonly kind: 'none' }
  /** The body as a framework has parsed it: what the handler will see. */
  | { readonly kind: 'value'; readonly value: unknown }
  /** The body as it came. `contentType` is the header's value, or empty. */
  | { readonly kind: 'bytes'; readonly bytes: Uint8Array; readonly contentType: string }

export interface FingerprintInput {
  readonly method: string
  /** Path and query, exactly as the client sent them. */
  readonly target: string
  readonly payload: Payload
}

/**
 * What makes a request the same request: SHA-256 over method, target and body, as 64 hex characters.
 *
 * A JSON body counts by its RFC 8785 form, a form by its parts, everything else by its bytes and its type. A body whose
 * canonical form could stand for two documents counts by its bytes. So a retry that was serialised anew is still the
 * same, and two requests that differ in what they say never are. Bytes never make it throw; a value can (`canonicalValue`).
 */
export function fingerprint(input: FingerprintInput): string {
  const request = lengthPrefixed(input.method) + lengthPrefixed(input.target)
  return digest('oncekey/1 request ', request + payloadText(input.payload))
}

/** The same for plain code with no HTTP: two payloads agree when they hold the same data, in whatever order of names. */
export function fingerprintValue(value: unknown): string {
  return digest('oncekey/1 value ', canonicalValue(value))
}

/** Begins with a tag for how the body was read, so that a document and the bytes of another one can never meet. */
function payloadText(payload: Payload): string {
  switch (payload.kind) {
    case 'none':
      return 'none'
    case 'value':
      return `value ${canonicalValue(payload.value)}`
    case 'bytes':
      return bytesText(payload.bytes, parseMediaType(payload.contentType))
  }
}

function bytesText(bytes: Uint8Array, type: MediaType): string {
  if (isJson(type.essence)) {
    // A charset that is still there is not UTF-8, and the text is then not ours to read.
    const isForeign = type.parameters.some(([name]) => name === 'charset')
    const text = isForeign ? undefined : canonicalBytes(bytes)
    if (text !== undefined) return `json ${lengthPrefixed(type.normal)}${text}`
  } else if (type.essence === 'multipart/form-data') {
    const text = multipartText(bytes, type)
    if (text !== undefined) return text
  }
  return `raw ${lengthPrefixed(type.normal)}${digestBytes(bytes)}`
}

/** The parts without the boundary, which a client makes up anew for every attempt. */
function multipartText(bytes: Uint8Array, type: MediaType): string | undefined {
  const boundary = type.parameters.find(([name]) => name === 'boundary')?.[1]
  const parts = boundary === undefined ? undefined : splitMultipart(bytes, boundary)
  if (parts === undefined) return undefined
  const others = type.parameters.filter(([name]) => name !== 'boundary')
  let text = `parts ${lengthPrefixed(normalMediaType(type.essence, others))}${parts.length}|`
  for (const part of parts) {
    const headers = part.headers.map(([name, value]) => `${name}:${value}\n`).join('')
    text += lengthPrefixed(headers) + digestBytes(part.body)
  }
  return text
}
