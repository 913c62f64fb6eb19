/**
 * How values go into statements and come back unchanged, whatever is in them. All of them are written as hexadecimal or
 * base64 literals: neither the connection's character set nor its sql_mode can change them, and nothing can break out.
 */

/** A lone surrogate has no bytes of its own: a string with one is kept as JSON. */
export function toText(value: string): string {
  return value[0] !== ESCAPED && value.isWellFormed() ? value : ESCAPED + JSON.stringify(value)
}

export function fromText(bytes: Buffer | null): string {
  const text = bytes?.toString() ?? ''
  return text[0] === ESCAPED ? String(JSON.parse(text.slice(1))) : text
}

const ESCAPED = '\u0001'

export function bytesOf(value: string): number {
  return Buffer.byteLength(toText(value))
}

/** For the columns that are compared byte by byte. */
export function hex(value: string): string {
  return `X'${Buffer.from(toText(value)).toString('hex')}'`
}

export function hexOf(bytes: Uint8Array): string {
  return `X'${Buffer.from(bytes).toString('hex')}'`
}

export function list(values: Iterable<string>): string {
  return [...values].map(hex).join(', ')
}

/** JSON text is well-formed whatever is in it. */
export function json(value: unknown): string {
  return value === undefined ? 'NULL' : `_utf8mb4 X'${Buffer.from(JSON.stringify(value)).toString('hex')}'`
}

/** A third longer than the bytes themselves; hexadecimal would be twice as long, and the server bounds statements. */
export function blob(body: Uint8Array | null): string {
  if (body === null) return 'NULL'
  return `FROM_BASE64('${Buffer.from(body.buffer, body.byteOffset, body.length).toString('base64')}')`
}

/** Longer is as good as for ever, and still a time that MySQL can hold. */
const DURATION_MS_MAX = 1_000 * 365 * 24 * 3_600_000

/** Times are kept in whole milliseconds; a part of one counts as one. */
export function micros(durationMs: number): string {
  return `${Math.min(Math.ceil(durationMs), DURATION_MS_MAX)}000`
}
