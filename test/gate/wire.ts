import { connect, type Socket } from 'node:net'

export interface Message {
  readonly status: number
  readonly head: string
  readonly headers: ReadonlyArray<readonly [string, string]>
  readonly body: string
}

/** A client on a bare socket: sends what it is told, and reads messages one by one. */
export class Wire {
  readonly socket: Socket
  readonly closed: Promise<void>
  received = ''
  #isClosed = false
  readonly #waiting: Array<() => void> = []

  constructor(url: string) {
    const { hostname, port } = new URL(url)
    this.socket = connect(Number(port), hostname)
    this.socket.setEncoding('latin1')
    this.socket.on('data', (text: string) => {
      this.received += text
      this.#wake()
    })
    this.socket.on('error', () => {})
    this.closed = new Promise((resolve) => {
      this.socket.on('close', () => {
        this.#isClosed = true
        this.#wake()
        resolve()
      })
    })
  }

  send(...lines: readonly string[]): this {
    this.socket.write(lines.join('\r\n'), 'latin1')
    return this
  }

  /** A POST with a key, and a body if given. */
  post(key: string, body = '{"amount":1}', headers: readonly string[] = [], target = '/payments'): this {
    return this.send(
      `POST ${target} HTTP/1.1`,
      'Host: shop.example',
      `Idempotency-Key: ${key}`,
      'Content-Type: application/json',
      `Content-Length: ${Buffer.byteLength(body)}`,
      ...headers,
      '',
      body,
    )
  }

  /** The next message, interim ones included. An answer to HEAD has no body. */
  async message(isHead = false): Promise<Message> {
    for (;;) {
      const parsed = parse(this.received, this.#isClosed, isHead)
      if (parsed) {
        this.received = this.received.slice(parsed.length)
        return parsed.message
      }
      if (this.#isClosed)
        throw new Error(`The connection was closed; received so far: ${JSON.stringify(this.received)}`)
      await this.#more()
    }
  }

  /** Until this text has come. */
  async until(text: string): Promise<string> {
    while (!this.received.includes(text)) {
      if (this.#isClosed) throw new Error(`The connection was closed; received: ${JSON.stringify(this.received)}`)
      await this.#more()
    }
    return this.received
  }

  destroy(): void {
    this.socket.destroy()
  }

  #more(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake()
  }
}

export function values({ headers }: Pick<Message, 'headers'>, name: string): string[] {
  return headers.filter(([one]) => one === name.toLowerCase()).map(([, value]) => value)
}

function parse(text: string, isClosed: boolean, isHead: boolean): { message: Message; length: number } | undefined {
  const headEnd = text.indexOf('\r\n\r\n')
  if (headEnd < 0) return undefined
  const head = text.slice(0, headEnd)
  const [first = '', ...lines] = head.split('\r\n')
  const status = Number(first.split(' ')[1])
  const headers = lines.map((line) => {
    const colon = line.indexOf(':')
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const
  })
  const length = bodyLength({ headers }, status, isHead, text.slice(headEnd + 4), isClosed)
  if (length === undefined) return undefined
  const body = text.slice(headEnd + 4, headEnd + 4 + length)
  return { message: { status, head, headers, body }, length: headEnd + 4 + length }
}

function bodyLength(
  message: Pick<Message, 'headers'>,
  status: number,
  isHead: boolean,
  rest: string,
  isClosed: boolean,
): number | undefined {
  if (isHead || status < 200 || status === 204 || status === 304) return 0
  if (values(message, 'transfer-encoding').includes('chunked')) {
    const end = /(?:^|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n/.exec(rest)
    return end ? end.index + end[0].length : undefined
  }
  const [given] = values(message, 'content-length')
  if (given === undefined) return isClosed ? rest.length : undefined
  return rest.length >= Number(given) ? Number(given) : undefined
}
