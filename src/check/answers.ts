import { decoded, type Received, values } from './client.ts'
import { parsed } from './payload.ts'

/** Headers that services mark a replay with. */
const REPLAY_HEADERS = [
  'idempotent-replayed',
  'idempotency-replayed',
  'idempotent-replay',
  'idempotency-replay',
  'x-idempotent-replayed',
  'x-idempotency-replayed',
  'x-idempotent-replay',
  'x-idempotency-replay',
]

/** The header that says so, as it came; `undefined` when there is none, or when it says no. */
export function replayMark(answer: Received): string | undefined {
  const found = answer.headers.find(([name]) => REPLAY_HEADERS.includes(name.toLowerCase()))
  return found && !/^(?:false|0|no)$/i.test(found[1].trim()) ? `${found[0]}: ${visible(found[1])}` : undefined
}

/** What tells one operation's answer from another's. Dates and request ids do not. */
export function sameContent(one: Received, other: Received): boolean {
  return one.status === other.status && sameBytes(one, other) && LOCATORS.every((name) => sameHeader(one, other, name))
}

const LOCATORS = ['location', 'etag']

export function sameBytes(one: Received, other: Received): boolean {
  return (decoded(one) ?? one.body).equals(decoded(other) ?? other.body)
}

/** Equal values in other bytes: what is left of an answer that was parsed and written anew. */
export function sameJson(one: Received, other: Received): boolean {
  const [first, second] = [parsed(decoded(one)), parsed(decoded(other))]
  return first !== undefined && canonical(first) === canonical(second)
}

export function sameHeader(one: Received, other: Received, name: string): boolean {
  const [first, second] = [values(one, name), values(other, name)]
  return first.length === second.length && first.every((value, at) => value === second[at])
}

export function isSuccess({ status }: Received): boolean {
  return status >= 200 && status < 400
}

/** "Not now": the statuses with which a duplicate may be sent away while the first request runs. */
export function isNotNow({ status }: Received): boolean {
  return status === 409 || status === 425 || status === 429 || status === 503
}

export function isRefusal({ status }: Received): boolean {
  return status >= 400 && status < 500
}

/** One line for people. The service chose its content, so nothing in it may reach a terminal as it is. */
export function shown(answer: Received): string {
  const type = values(answer, 'content-type')[0]?.split(';', 1)[0]
  const bytes = decoded(answer) ?? answer.body
  const size = `${answer.body.length} ${answer.body.length === 1 ? 'byte' : 'bytes'}`
  if (bytes.length === 0) return `${answer.status} without a body`
  const text = bytes.subarray(0, 4 * EXCERPT_LENGTH_MAX).toString()
  if (text.includes('\ufffd')) return `${answer.status} ${visible(type ?? 'of no type')} (${size})`
  return `${answer.status} ${excerpt(text)} (${size})`
}

const EXCERPT_LENGTH_MAX = 100

export function excerpt(text: string): string {
  const line = visible(text.replaceAll(/\s+/g, ' ').trim())
  return line.length > EXCERPT_LENGTH_MAX ? `${line.slice(0, EXCERPT_LENGTH_MAX)}…` : line
}

/** Control characters by their number, those that change the direction of the text too. */
export function visible(text: string): string {
  return text.replaceAll(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (character) => {
    return `\\u${(character.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`
  })
}

function canonical(value: unknown): string {
  return JSON.stringify(value, (_name, member: unknown) => {
    if (typeof member !== 'object' || member === null || Array.isArray(member)) return member
    return Object.fromEntries(Object.entries(member).sort(([a], [b]) => (a < b ? -1 : 1)))
  })
}
