import {
  createHash,
  createHmac,
  createPublicKey,
  createSecretKey,
  type KeyObject,
  timingSafeEqual,
  verify,
} from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { TLSSocket } from 'node:tls'
import { OncekeyError } from '../error.ts'

/**
 * Where the gate learns who is asking. It authenticates nobody by itself, except where that is written:
 *
 * - `header`: the value of a header that an authenticating proxy in front has set. Whoever can reach the gate past that
 *   proxy can write any name into it. A credential (Authorization, Cookie, X-Api-Key) is hashed first; it makes a poor
 *   principal all the same, for a token that is refreshed between two attempts is another one.
 * - `jwt-claim`: a claim of the `Authorization: Bearer` token. WITHOUT `key` THE SIGNATURE IS NOT VERIFIED, and anybody
 *   can make up a token: the gate must then stand behind authentication. With `key` (an HMAC secret for HS256/384/512,
 *   or a public key in PEM for RS256/384/512 and ES256) an invalid, expired or unsigned token is answered with 401.
 * - `mtls`: the subject of the client's certificate, which the TLS handshake has verified. Needs the `tls` option.
 */
export type PrincipalSource =
  | { readonly kind: 'header'; readonly name: string }
  | { readonly kind: 'jwt-claim'; readonly name: string; readonly key?: string | Uint8Array | KeyObject }
  | { readonly kind: 'mtls' }

/** The principal, or why there is none, in a sentence for the client. */
export type Principal = { readonly name: string } | { readonly missing: string }
export type PrincipalResolver = (incoming: IncomingMessage) => Principal

export function principalResolver(source: 'public' | PrincipalSource): PrincipalResolver | undefined {
  if (source === 'public') return undefined
  switch (source?.kind) {
    case 'header':
      return fromHeader(source.name)
    case 'jwt-claim':
      return fromClaim(source.name, source.key)
    case 'mtls':
      return fromCertificate
    default:
      throw new OncekeyError(
        'config-invalid',
        'principal is missing: say whose a key is with { kind: "header", name }, { kind: "jwt-claim", name } or { kind: "mtls" }; write "public" if all callers share one namespace',
      )
  }
}

function fromHeader(name: string): PrincipalResolver {
  if (!/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name ?? '')) {
    throw new OncekeyError('config-invalid', `principal.name is ${JSON.stringify(name)}, which is not a header name`)
  }
  const lower = name.toLowerCase()
  const isCredential = CREDENTIALS.has(lower)
  const missing = { missing: `It carries no ${name} header.` }
  const twice = { missing: `It carries the ${name} header more than once.` }
  return ({ headers, rawHeaders }) => {
    const value = headers[lower]
    if (value === undefined || value === '') return missing
    if (Array.isArray(value)) return twice
    // Node joins repeated headers, or drops all but the first: neither is a name that anybody has.
    let count = 0
    for (let i = 0; i < rawHeaders.length; i += 2) {
      if (rawHeaders[i]?.length === lower.length && rawHeaders[i]?.toLowerCase() === lower) count++
    }
    if (count > 1) return twice
    return { name: isCredential ? `sha256:${createHash('sha256').update(value).digest('hex')}` : value }
  }
}

/** What stands in these is a secret itself: kept with the record for operators to read, it would be one no longer. */
const CREDENTIALS: ReadonlySet<string> = new Set(['authorization', 'proxy-authorization', 'cookie', 'x-api-key'])

function fromClaim(name: string, given: string | Uint8Array | KeyObject | undefined): PrincipalResolver {
  if (typeof name !== 'string' || name === '') {
    throw new OncekeyError('config-invalid', 'principal.name is missing; name the claim, for example "sub"')
  }
  const key = given === undefined ? undefined : keyObject(given)
  return ({ headers }) => {
    const [, token] = /^Bearer +([\w-]+\.[\w-]+\.[\w-]*)$/i.exec(headers.authorization ?? '') ?? []
    if (token === undefined) return { missing: 'It carries no Bearer token in the Authorization header.' }
    const claims = readToken(token, key)
    if (claims === undefined)
      return { missing: 'Its Bearer token cannot be read, is not validly signed, or has expired.' }
    const value = claims[name]
    if (typeof value === 'number' && Number.isSafeInteger(value)) return { name: String(value) }
    // A control character could imitate a name that the gate itself makes up.
    if (typeof value !== 'string' || value === '' || /\p{Cc}/u.test(value)) {
      return { missing: `Its Bearer token has no usable claim ${JSON.stringify(name)}.` }
    }
    return { name: value }
  }
}

function readToken(token: string, key: KeyObject | undefined): Readonly<Record<string, unknown>> | undefined {
  const [head = '', body = '', signature = ''] = token.split('.')
  const claims = decodePart(body)
  if (claims === undefined || key === undefined) return claims
  const { alg } = decodePart(head) ?? {}
  if (!isSigned(key, String(alg), `${head}.${body}`, Buffer.from(signature, 'base64url'))) return undefined
  const nowSeconds = Date.now() / 1000
  if (typeof claims.exp === 'number' && claims.exp <= nowSeconds) return undefined
  if (typeof claims.nbf === 'number' && claims.nbf > nowSeconds) return undefined
  return claims
}

function decodePart(part: string): Readonly<Record<string, unknown>> | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(part, 'base64url').toString('utf8'))
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : undefined
  } catch {
    return undefined
  }
}

/** The key decides which algorithms are allowed, not the token: a public key is never taken for a secret. */
function isSigned(key: KeyObject, alg: string, text: string, signature: Buffer): boolean {
  const [, family, bits] = /^(HS|RS|ES)(256|384|512)$/.exec(alg) ?? []
  if (family === undefined) return false
  if (key.type === 'secret') {
    if (family !== 'HS') return false
    const expected = createHmac(`sha${bits}`, key).update(text).digest()
    return expected.length === signature.length && timingSafeEqual(expected, signature)
  }
  if (family === 'RS') {
    return key.asymmetricKeyType === 'rsa' && verify(`sha${bits}`, Buffer.from(text), key, signature)
  }
  return (
    alg === 'ES256' &&
    key.asymmetricKeyType === 'ec' &&
    verify('sha256', Buffer.from(text), { key, dsaEncoding: 'ieee-p1363' }, signature)
  )
}

function keyObject(given: string | Uint8Array | KeyObject): KeyObject {
  if (typeof given !== 'string' && !(given instanceof Uint8Array)) return given
  const text = typeof given === 'string' ? given : Buffer.from(given).toString('latin1')
  try {
    if (text.includes('-----BEGIN')) return createPublicKey(text)
    if (text.length === 0) throw new Error('it is empty')
    return createSecretKey(Buffer.from(given as string))
  } catch (cause) {
    throw new OncekeyError(
      'config-invalid',
      `principal.key cannot be used (${cause instanceof Error ? cause.message : String(cause)}); give an HMAC secret, or a public key in PEM`,
      { cause },
    )
  }
}

const SUBJECT: unique symbol = Symbol('oncekey.subject')

function fromCertificate({ socket }: IncomingMessage): Principal {
  const known = socket as TLSSocket & { [SUBJECT]?: Principal }
  known[SUBJECT] ??= subjectOf(known)
  return known[SUBJECT]
}

function subjectOf(socket: TLSSocket): Principal {
  const subject = socket.authorized ? socket.getPeerX509Certificate?.()?.subject : undefined
  if (!subject) return { missing: 'Its connection carries no client certificate that this gate trusts.' }
  return { name: subject.replaceAll('\n', ', ') }
}
