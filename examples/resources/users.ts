import type { Caller } from './records.ts'

/** In place of an identity provider: who is behind a bearer token. */
const USERS: ReadonlyMap<string, Caller> = new Map([
  ['anna-token', { userId: 'anna', tenantId: 'acme', role: 'member' }],
  ['boss-token', { userId: 'boss', tenantId: 'acme', role: 'admin' }],
  ['zoe-token', { userId: 'zoe', tenantId: 'globex', role: 'member' }],
])

export function callerWith(token: string | undefined): Caller | undefined {
  return token === undefined ? undefined : USERS.get(token)
}
