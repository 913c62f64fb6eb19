import { OncekeyError } from '../error.ts'
import { trimOws } from './ows.ts'

/** The header's value as it came, or all its values when it came more than once. */
export type KeyInput = string | readonly string[] | undefined

export type ParsedKey =
  | { readonly state: 'present'; readonly key: string }
  | { readonly state: 'absent' }
  /** `reason` is written for the client: whole sentences, and nothing of the key in them. */
  | { readonly state: 'invalid'; readonly reason: string }

/**
 * Reads an idempotency key. The bare form `abc` and the quoted form `"abc"` (an RFC 8941 string) are one key.
 *
 * A key is 1 to `lengthMax` visible ASCII characters; spaces around the value do not count, and inside there are none
 * in either form. No value or only spaces: absent. A header that came twice is invalid even when both values agree,
 * since nobody can say which one a proxy in between has compared. A quoted empty string is invalid rather than absent:
 * whoever writes the quotes means to send a key, and must not run unprotected in silence.
 */
export function parseKey(input: KeyInput, lengthMax: number): ParsedKey {
  if (typeof input === 'string') return parseValue(input, lengthMax)
  if (input === undefined || input === null) return ABSENT
  if (!Array.isArray(input)) throw notText(input)
  if (input.length === 0) return ABSENT
  if (input.length > 1) return SENT_TWICE
  return parseValue(input[0] ?? '', lengthMax)
}

const ABSENT: ParsedKey = { state: 'absent' }

const SENT_TWICE = invalid(
  'The idempotency key header was sent more than once. Send it exactly once, with one key in it.',
)
const EMPTY = invalid('The idempotency key is an empty quoted string. Send a key, or leave the header out.')
const UNTERMINATED = invalid(
  'The idempotency key begins with a double quote that is never closed. Send it as "key" or without any quotes.',
)
const AFTER_QUOTE = invalid(
  'The idempotency key goes on after its closing double quote. Send one quoted key and nothing after it; parameters are not supported.',
)
const BAD_ESCAPE = invalid(
  'The idempotency key has a backslash that escapes nothing. Inside double quotes write \\\\ for a backslash and \\" for a double quote.',
)
const BARE_QUOTE = invalid(
  'The idempotency key has a double quote in it but does not begin with one. Put the whole key in double quotes, or use none.',
)

/** Visible ASCII, with no double quote: what a bare key is made of. */
const BARE = /^[\x21\x23-\x7e]+$/

const SPACE = 0x20
const QUOTE = 0x22
const BACKSLASH = 0x5c
const VISIBLE_FIRST = 0x21
const VISIBLE_LAST = 0x7e

function parseValue(input: string, lengthMax: number): ParsedKey {
  const value = trimOws(input)
  if (value.length === 0) return ABSENT
  if (value.charCodeAt(0) === QUOTE) return parseQuoted(value, lengthMax)
  if (value.length > lengthMax) return tooLong(lengthMax)
  if (BARE.test(value)) return { state: 'present', key: value }
  return firstInvisible(value) ?? BARE_QUOTE
}

function parseQuoted(value: string, lengthMax: number): ParsedKey {
  // Every character may be escaped, and there are two quotes: more than this is too long however it is spelled.
  if (value.length > 2 * lengthMax + 2) return tooLong(lengthMax)
  const foreign = firstInvisible(value)
  if (foreign !== undefined) return foreign
  let key = ''
  for (let at = 1; at < value.length; at++) {
    const code = value.charCodeAt(at)
    if (code === QUOTE) {
      if (at !== value.length - 1) return AFTER_QUOTE
      if (key.length === 0) return EMPTY
      return key.length > lengthMax ? tooLong(lengthMax) : { state: 'present', key }
    }
    if (code === BACKSLASH) {
      at++
      const escaped = value.charCodeAt(at)
      if (escaped !== QUOTE && escaped !== BACKSLASH) return BAD_ESCAPE
    }
    key += value.charAt(at)
  }
  return UNTERMINATED
}

/** Says what is wrong with the first character that is not visible ASCII, by its number: it may be a control character. */
function firstInvisible(value: string): ParsedKey | undefined {
  for (let at = 0; at < value.length; at++) {
    const code = value.charCodeAt(at)
    if (code >= VISIBLE_FIRST && code <= VISIBLE_LAST) continue
    const name = code === SPACE ? 'a space' : `the character U+${code.toString(16).toUpperCase().padStart(4, '0')}`
    return invalid(
      `The idempotency key has ${name} at position ${at + 1}. Only visible ASCII characters, without spaces, are allowed in a key.`,
    )
  }
  return undefined
}

function tooLong(lengthMax: number): ParsedKey {
  return invalid(
    `The idempotency key is longer than ${lengthMax} characters. Send a shorter one; a UUID is 36 characters long.`,
  )
}

/** From a resolver of the user's own: to take it for no key at all would switch the protection off in silence. */
function notText(input: unknown): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    `The key must be a string, but is a ${typeof input}; convert it with String().`,
  )
}

function invalid(reason: string): ParsedKey {
  return { state: 'invalid', reason }
}
