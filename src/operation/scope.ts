import { digest, lengthPrefixed } from './digest.ts'

/**
 * The record id: SHA-256 over the scope parts and the key, as 64 hex characters.
 *
 * Two operations share an id only when they have the same number of parts, the same parts in the same order and the
 * same key. Nothing in a part can imitate a separator, and no string is refused: a principal may come from a token
 * that a client made.
 */
export function operationId(scope: readonly string[], key: string): string {
  let text = `${scope.length}|`
  for (const part of scope) text += lengthPrefixed(part)
  return digest('oncekey/1 id ', text + lengthPrefixed(key))
}

/**
 * A key for a call further down (X7): the same for every attempt of one operation, different for every name and every
 * operation, and telling nothing about either.
 *
 * It has the form of a UUID, version 8 (RFC 9562: custom, here 122 bits of a SHA-256), because that is what the
 * narrowest services accept as an idempotency key: 36 characters of hex and dashes.
 */
export function deriveKey(id: string, name: string): string {
  const hex = digest('oncekey/1 derive ', lengthPrefixed(id) + lengthPrefixed(name))
  const variant = UUID_VARIANTS.charAt(Number.parseInt(hex.charAt(16), 16) & 3)
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

/** The variant field of RFC 9562 is binary 10xx: two bits are fixed, two are ours. */
const UUID_VARIANTS = '89ab'
