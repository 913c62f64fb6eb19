import { isNonce } from '../../src/guards/nonce.ts'

/** What a client asks for: one payment, under a nonce that it never uses again. */
export interface Envelope {
  readonly nonce: string
  /** In the smallest unit of the currency. */
  readonly amount: number
  /** ISO 4217. */
  readonly currency: string
  readonly payee: string
  readonly memo?: string
}

const AMOUNT_MAX = 1_000_000_000
const TEXT_CHARS_MAX = 200

const FIELDS: Readonly<Record<string, readonly [isRight: (value: unknown) => boolean, what: string]>> = {
  nonce: [isNonce, 'a string of 1 to 255 visible ASCII characters'],
  amount: [(value) => isWhole(value, AMOUNT_MAX), `a whole number from 1 to ${AMOUNT_MAX}`],
  currency: [(value) => typeof value === 'string' && /^[A-Z]{3}$/.test(value), 'three capital letters'],
  payee: [isText, `a text of 1 to ${TEXT_CHARS_MAX} characters`],
  memo: [(value) => value === undefined || isText(value), `a text of 1 to ${TEXT_CHARS_MAX} characters, or left out`],
}

/** The envelope, or what is wrong with it. A field that nobody knows is refused: it might have been meant to matter. */
export function readEnvelope(body: Buffer): Envelope | string {
  let value: unknown
  try {
    value = JSON.parse(body.toString('utf8'))
  } catch {
    return 'The body is not JSON.'
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 'The body is not a JSON object.'
  const fields = value as Record<string, unknown>
  const unknown = Object.keys(fields).find((name) => !Object.hasOwn(FIELDS, name))
  if (unknown !== undefined) return `${JSON.stringify(unknown)} is not a field of a payment request.`
  for (const [name, [isRight, what]] of Object.entries(FIELDS)) {
    if (!isRight(fields[name])) return `${name} must be ${what}.`
  }
  return value as Envelope
}

function isWhole(value: unknown, max: number): boolean {
  return Number.isInteger(value) && (value as number) >= 1 && (value as number) <= max
}

function isText(value: unknown): boolean {
  return typeof value === 'string' && value.length >= 1 && value.length <= TEXT_CHARS_MAX
}
