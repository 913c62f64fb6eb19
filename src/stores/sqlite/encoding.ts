/**
 * How strings go into the table and come back unchanged, whatever is in them.
 *
 * The ids that the engine makes are 64 hex digits, kept as a BLOB of 32 bytes. Any other id is kept as TEXT: the hex
 * digits of its UTF-16 units, which sort as the strings do, and hold lone surrogates and NUL characters too.
 */
export function keyOfId(id: string): Uint8Array | string {
  if (id.length === HASH_HEX_CHARS && HASH_HEX.test(id)) return Buffer.from(id, 'hex')
  return textKeyOf(id)
}

export function textKeyOf(id: string): string {
  return Buffer.from(id, 'utf16le').swap16().toString('hex')
}

export function idOfKey(key: unknown): string {
  if (key instanceof Uint8Array) return Buffer.from(key.buffer, key.byteOffset, key.byteLength).toString('hex')
  return Buffer.from(String(key), 'hex').swap16().toString('utf16le')
}

/** Tokens and fingerprints: as they are, unless SQLite's UTF-8 could not hold them. */
export function toText(value: string): string {
  const isPlain = value.isWellFormed() && !value.includes('\0') && value[0] !== ESCAPED
  return isPlain ? value : ESCAPED + JSON.stringify(value)
}

export function fromText(text: string): string {
  return text[0] === ESCAPED ? String(JSON.parse(text.slice(1))) : text
}

const HASH_HEX_CHARS = 64
const HASH_HEX = /^[0-9a-f]*$/
const ESCAPED = '\u0001'
