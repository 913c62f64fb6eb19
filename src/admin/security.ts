import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { OncekeyError } from '../error.ts'

/** Sent with everything: the dashboard needs nothing from anywhere else, and nobody may frame it. */
const HEADERS: Readonly<Record<string, string>> = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cache-Control': 'no-store',
}

/** A page of another site can send a request, but not this header without asking first, which is refused. */
export const CSRF_HEADER = 'x-oncekey-admin'

export interface SecurityOptions {
  readonly host: string
  readonly token: string | undefined
  readonly readOnly: boolean
}

export interface Denial {
  readonly status: number
  readonly detail: string
}

const TOKEN_CHARS_MIN = 16

/** Refuses to start what would be open to everybody. */
export function checkSecurity({ host, token }: SecurityOptions): void {
  if (token === undefined && !isLoopback(host)) {
    throw new OncekeyError(
      'config-invalid',
      `The admin API would listen on ${host}, where others can reach it, and has no token; set --admin-token (or ONCEKEY_ADMIN_TOKEN), or leave it on 127.0.0.1.`,
    )
  }
  if (token !== undefined && token.length < TOKEN_CHARS_MIN) {
    throw new OncekeyError(
      'config-invalid',
      `The admin token has fewer than ${TOKEN_CHARS_MIN} characters; take a longer one.`,
    )
  }
}

export function setSecurityHeaders(response: ServerResponse): void {
  for (const [name, value] of Object.entries(HEADERS)) response.setHeader(name, value)
}

/** Why this request may not be answered; `undefined` when it may. */
export function denial(request: IncomingMessage, options: SecurityOptions, changes: boolean): Denial | undefined {
  const { headers } = request
  // A name that an attacker's DNS points at 127.0.0.1 is not ours: without this, a browser would be the way in.
  if (isLoopback(options.host) && !isLoopback(hostNameOf(headers.host ?? ''))) {
    return { status: 421, detail: 'This address is not one of the admin API; use 127.0.0.1 or localhost.' }
  }
  if (options.token !== undefined && !isToken(tokenOf(request), options.token)) {
    return { status: 401, detail: 'Send the admin token: Authorization: Bearer …' }
  }
  if (!changes) return undefined
  if (options.readOnly) return { status: 403, detail: 'The admin API was started read-only; nothing was changed.' }
  if (headers[CSRF_HEADER] === undefined) {
    return {
      status: 403,
      detail: 'Send the header X-Oncekey-Admin: 1, which shows that no other site’s page is asking.',
    }
  }
  if (headers.origin !== undefined && hostOf(headers.origin) !== headers.host) {
    return { status: 403, detail: `A page of ${headers.origin} may not change anything here.` }
  }
  return undefined
}

/** By header; an event stream of a browser cannot send one, and has it in its address. */
function tokenOf({ headers, url }: IncomingMessage): string {
  const bearer = /^Bearer (.+)$/i.exec(headers.authorization ?? '')?.[1]
  return bearer ?? new URL(url ?? '/', 'http://localhost').searchParams.get('token') ?? ''
}

function isToken(given: string, expected: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(given), digest(expected))
}

export function isLoopback(host: string): boolean {
  return /^(?:localhost|127(?:\.\d{1,3}){3}|\[?::1\]?)$/i.test(host)
}

function hostNameOf(host: string): string {
  return host.replace(/:\d+$/, '')
}

function hostOf(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host : undefined
}
