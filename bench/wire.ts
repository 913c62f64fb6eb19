import { REQUEST_BODY, ROUTE } from './contestants/workload.ts'

const KEY_HEAD_LENGTH = 24
const KEY_TAIL_LENGTH = 12
const DIGITS = '0123456789'

/** A request as bytes, built once for each connection; only the last 12 digits of its key change. */
export class RequestBytes {
  readonly bytes: Buffer
  readonly #tailEnd: number

  /** `keyHead`: the first 24 characters of every key, the shape of a UUID up to its last group. */
  constructor(keyHead: string) {
    if (keyHead.length !== KEY_HEAD_LENGTH) throw new Error(`A key's head has ${KEY_HEAD_LENGTH} characters.`)
    const head = `POST ${ROUTE} HTTP/1.1\r\nhost: 127.0.0.1\r\nidempotency-key: ${keyHead}`
    const rest = `\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(REQUEST_BODY)}\r\n\r\n`
    this.bytes = Buffer.from(head + '0'.repeat(KEY_TAIL_LENGTH) + rest + REQUEST_BODY)
    this.#tailEnd = Buffer.byteLength(head) + KEY_TAIL_LENGTH
  }

  setKey(number: number): void {
    let rest = number
    for (let at = this.#tailEnd - 1; rest > 0; at--) {
      this.bytes[at] = DIGITS.charCodeAt(rest % 10)
      rest = Math.floor(rest / 10)
    }
    // Digits above those of a smaller number are left over from a larger one only when keys go round: clear them.
    if (number < this.#last) this.#clearAbove(number)
    this.#last = number
  }

  #last = 0

  #clearAbove(number: number): void {
    const digits = number === 0 ? 0 : Math.floor(Math.log10(number)) + 1
    const start = this.#tailEnd - KEY_TAIL_LENGTH
    for (let at = start; at < this.#tailEnd - digits; at++) this.bytes[at] = DIGITS.charCodeAt(0)
  }
}

const HEAD_END = Buffer.from('\r\n\r\n')
const CR = 0x0d
const ZERO = 0x30
const CHUNKED = 'transfer-encoding: chunked'

/**
 * Finds where a response ends. The server's spelling of Content-Length is learnt from its first response, so that every
 * later one costs two searches in native code and no allocation.
 */
export class ResponseScanner {
  #lengthName: Buffer | undefined

  /** The length of the whole response at the start of `bytes`, or 0 when more bytes are needed. */
  scan(bytes: Buffer, size: number): number {
    const headEnd = bytes.indexOf(HEAD_END)
    if (headEnd < 0 || headEnd + 4 > size) return 0
    const bodyStart = headEnd + 4
    if (this.#lengthName !== undefined) {
      const at = bytes.indexOf(this.#lengthName)
      if (at >= 0 && at < headEnd) {
        const end = bodyStart + readNumber(bytes, at + this.#lengthName.length)
        return end <= size ? end : 0
      }
    }
    return this.#scanSlowly(bytes.subarray(0, size), headEnd, bodyStart)
  }

  #scanSlowly(bytes: Buffer, headEnd: number, bodyStart: number): number {
    const head = bytes.toString('latin1', 0, headEnd)
    const lower = head.toLowerCase()
    if (lower.includes(CHUNKED)) return scanChunks(bytes, bodyStart)
    const at = lower.indexOf('\r\ncontent-length:')
    if (at < 0) return bodyStart
    this.#lengthName = Buffer.from(/\r\ncontent-length: */i.exec(head)?.[0] ?? '', 'latin1')
    const end = bodyStart + readNumber(bytes, at + this.#lengthName.length)
    return end <= bytes.length ? end : 0
  }
}

export function statusOf(bytes: Buffer): number {
  return readNumber(bytes, 9)
}

function readNumber(bytes: Buffer, from: number): number {
  let value = 0
  for (let at = from; ; at++) {
    const digit = (bytes[at] ?? CR) - ZERO
    if (digit < 0 || digit > 9) return value
    value = value * 10 + digit
  }
}

function scanChunks(bytes: Buffer, start: number): number {
  let at = start
  for (;;) {
    const lineEnd = bytes.indexOf('\r\n', at)
    if (lineEnd < 0) return 0
    const size = Number.parseInt(bytes.toString('latin1', at, lineEnd), 16)
    at = lineEnd + 2 + size + 2
    if (at > bytes.length) return 0
    if (size === 0) return at
  }
}
