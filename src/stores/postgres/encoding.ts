/** How values go into statements and come back unchanged, whatever is in them. */

/** PostgreSQL's text holds neither a NUL character nor a lone surrogate: a string with one is kept as JSON. */
export function toText(value: string): string {
  const isPlain = !value.includes('\0') && value[0] !== ESCAPED && value.isWellFormed()
  return isPlain ? value : ESCAPED + JSON.stringify(value)
}

export function fromText(text: string): string {
  return text[0] === ESCAPED ? String(JSON.parse(text.slice(1))) : text
}

const ESCAPED = '\u0001'

/** An array parameter, as PostgreSQL writes it. One string for the whole batch costs less than a driver's own way. */
export function arrayOf(values: ReadonlyArray<string | number | boolean | null>): string {
  let text = '{'
  for (const value of values) {
    if (text.length > 1) text += ','
    if (typeof value !== 'string') text += value === null ? 'NULL' : String(value)
    else text += PLAIN.test(value) ? value : `"${value.replace(SPECIAL, '\\$&')}"`
  }
  return `${text}}`
}

/** What needs no quotes; `NULL` in any case would be taken for one. */
const PLAIN = /^(?!null$)[\w.:/+-]+$/i
const SPECIAL = /["\\]/g

/** Longer is as good as for ever, and still a time that PostgreSQL can hold. */
const DURATION_MS_MAX = 1_000 * 365 * 24 * 3_600_000

/** Times are kept in whole milliseconds; a part of one counts as one. */
export function whole(durationMs: number): number {
  return Math.min(Math.ceil(durationMs), DURATION_MS_MAX)
}
