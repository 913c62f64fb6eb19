import { hash } from 'node:crypto'

/** What is being hashed. Every hashed text begins with one of these, so that no two uses can ever meet on one digest. */
type Domain = 'oncekey/1 id ' | 'oncekey/1 derive ' | 'oncekey/1 request ' | 'oncekey/1 value '

/**
 * SHA-256 over the domain and the text, as 64 hex characters; different texts have different digests.
 *
 * UTF-8 turns every lone surrogate into the same U+FFFD, so a text with one is hashed as UTF-16. The two encodings cannot
 * meet: the domain is ASCII, hence the second byte is a letter in the one and zero in the other.
 */
export function digest(domain: Domain, text: string): string {
  const whole = domain + text
  return whole.isWellFormed() ? hash('sha256', whole, 'hex') : hash('sha256', Buffer.from(whole, 'utf16le'), 'hex')
}

/** SHA-256 of bytes, without a domain: only ever a part of a text that goes through `digest`. */
export function digestBytes(bytes: Uint8Array): string {
  return hash('sha256', bytes, 'hex')
}

/** A part that says where it ends, whatever is in it. */
export function lengthPrefixed(part: string): string {
  return `${part.length}:${part}`
}
