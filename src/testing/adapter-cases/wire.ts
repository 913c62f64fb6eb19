import { connect, type Socket } from 'node:net'

/** One answer as it came over the wire: nothing merged, nothing decoded but the chunks. */
export interface Wire {
  readonly status: number
  readonly statusText: string
  /** Name and value, as sent and in the order sent. */
  readonly headers: ReadonlyArray<readonly [name: string, value: string]>
  readonly body: Buffer
  readonly chunked: boolean
}

export interface WireRequest {
  readonly method?: string
  readonly path?: string
  readonly key?: string
  /** Sent as they are, after Host and the key. */
  readonly headers?: ReadonlyArray<readonly [name: string, value: string]>
  readonly body?: string | Uint8Array
  /** Sends the body in these pieces with `Transfer-Encoding: chunked`. */
  readonly chunks?: ReadonlyArray<string | Uint8Array>
}

/** All values of a header, one for each line. */
export function values(wire: Pick<Wire, 'headers'>, name: string): string[] {
  return wire.headers.filter(([other]) => other.toLowerCase() === name.toLowerCase()).map(([, value]) => value)
}

export function value(wire: Pick<Wire, 'headers'>, name: string): string | undefined {
  return values(wire, name)[0]
}

/**
 * A client on a bare socket: it sends the bytes it is given, sees the bytes that come, and can leave at any moment.
 * Every wait is bounded, so that an adapter that never answers is a failure with a text and not a stuck run.
 */
export class Connection {
  readonly socket: Socket
  #buffer: Buffer = Buffer.alloc(0)
  #ended = false
  #error: Error | undefined
  #wake: (() => void) | undefined
  #head: Head | undefined

  static async open(port: number): Promise<Connection> {
    const socket = connect(port, '127.0.0.1')
    await new Promise<void>((resolve, reject) => {
      socket.once('connect', resolve)
      socket.once('error', reject)
    })
    return new Connection(socket)
  }

  constructor(socket: Socket) {
    this.socket = socket
    socket.setNoDelay(true)
    socket.on('data', (bytes) => {
      this.#buffer = Buffer.concat([this.#buffer, bytes])
      this.#wake?.()
    })
    socket.on('error', (error) => {
      this.#error = error
    })
    for (const event of ['end', 'close'] as const) {
      socket.on(event, () => {
        this.#ended = true
        this.#wake?.()
      })
    }
  }

  async request(request: WireRequest): Promise<Wire> {
    this.send(request)
    return this.answer(request.method)
  }

  send(request: WireRequest): void {
    this.socket.write(requestHead(request))
    if (request.chunks) {
      for (const chunk of request.chunks) this.sendChunk(chunk)
      this.socket.write('0\r\n\r\n')
    } else if (request.body !== undefined) {
      this.socket.write(request.body)
    }
  }

  sendChunk(chunk: string | Uint8Array): void {
    const bytes = typeof chunk === 'string' ? Buffer.from(chunk) : chunk
    this.socket.write(Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')]))
  }

  /** The whole answer to the request that was sent last. */
  async answer(method = 'POST'): Promise<Wire> {
    const head = await this.head()
    const chunked = value(head, 'transfer-encoding')?.toLowerCase() === 'chunked'
    const length = value(head, 'content-length')
    let body: Buffer
    if (method === 'HEAD' || head.status === 204 || head.status === 304) body = Buffer.alloc(0)
    else if (chunked) body = await this.#chunks()
    else if (length !== undefined) body = await this.#take(Number(length))
    else body = await this.#rest()
    this.#head = undefined
    return { ...head, body, chunked }
  }

  /** The next head, without waiting for its body. Informational answers are passed over. */
  async head(): Promise<Head> {
    while (this.#head === undefined) {
      const head = await this.anyHead()
      if (head.status >= 200) this.#head = head
    }
    return this.#head
  }

  /** The next head, informational or not. */
  async anyHead(): Promise<Head> {
    await this.#until(() => this.#buffer.includes('\r\n\r\n'), 'the head of an answer')
    const end = this.#buffer.indexOf('\r\n\r\n')
    const head = parseHead(this.#buffer.subarray(0, end).toString('latin1'))
    this.#buffer = this.#buffer.subarray(end + 4)
    return head
  }

  /** Waits until these bytes of the body have come; they are still part of the answer afterwards. */
  async seen(text: string): Promise<void> {
    await this.head()
    await this.#until(() => this.#buffer.includes(text), JSON.stringify(text))
  }

  /** Waits for the server to end the connection. Gives what came before that and belongs to no answer. */
  async closed(): Promise<Buffer> {
    await this.#until(() => this.#ended, 'the end of the connection', false)
    return this.#buffer
  }

  close(): void {
    this.socket.destroy()
  }

  async #chunks(): Promise<Buffer> {
    const parts: Buffer[] = []
    for (;;) {
      await this.#until(() => this.#buffer.includes('\r\n'), 'the size of a chunk')
      const end = this.#buffer.indexOf('\r\n')
      const size = Number.parseInt(this.#buffer.subarray(0, end).toString('latin1'), 16)
      if (Number.isNaN(size)) throw new Error('The answer is not well chunked: a size is not a number.')
      this.#buffer = this.#buffer.subarray(end + 2)
      parts.push(await this.#take(size))
      const mark = await this.#take(2)
      if (mark.toString('latin1') !== '\r\n') throw new Error('The answer is not well chunked: a chunk has no end.')
      if (size === 0) return Buffer.concat(parts)
    }
  }

  async #take(size: number): Promise<Buffer> {
    await this.#until(() => this.#buffer.length >= size, `${size} bytes`)
    const taken = this.#buffer.subarray(0, size)
    this.#buffer = this.#buffer.subarray(size)
    return taken
  }

  async #rest(): Promise<Buffer> {
    const rest = await this.closed()
    this.#buffer = Buffer.alloc(0)
    return rest
  }

  async #until(ready: () => boolean, what: string, failAtEnd = true): Promise<void> {
    let late = false
    const timer = setTimeout(() => {
      late = true
      this.#wake?.()
    }, ANSWER_MS_MAX)
    try {
      while (!ready()) {
        if (late) throw new Error(`Waited ${ANSWER_MS_MAX} ms in vain for ${what}; so far: ${this.#soFar()}`)
        if (this.#ended && failAtEnd) {
          throw new Error(`The connection ended before ${what} came (${this.#error?.message ?? 'no error'}).`)
        }
        await new Promise<void>((resolve) => {
          this.#wake = resolve
        })
      }
    } finally {
      clearTimeout(timer)
      this.#wake = undefined
    }
  }

  #soFar(): string {
    return this.#buffer.length === 0 ? 'nothing' : JSON.stringify(this.#buffer.subarray(0, 200).toString('latin1'))
  }
}

type Head = Pick<Wire, 'status' | 'statusText' | 'headers'>

const ANSWER_MS_MAX = 10_000

function requestHead({ method = 'POST', path = '/orders', key, headers = [], body, chunks }: WireRequest): Buffer {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: suite.example']
  if (key !== undefined) lines.push(`Idempotency-Key: ${key}`)
  for (const [name, content] of headers) lines.push(`${name}: ${content}`)
  if (chunks) lines.push('Transfer-Encoding: chunked')
  else if (body !== undefined) lines.push(`Content-Length: ${Buffer.byteLength(body)}`)
  return Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1')
}

function parseHead(text: string): Head {
  const [first = '', ...lines] = text.split('\r\n')
  const start = /^HTTP\/1\.1 (\d{3}) ?(.*)$/.exec(first)
  if (!start) throw new Error(`Not an HTTP answer: ${JSON.stringify(first.slice(0, 80))}`)
  const headers = lines.map((line) => {
    const colon = line.indexOf(':')
    return [line.slice(0, colon), line.slice(colon + 1).trim()] as const
  })
  return { status: Number(start[1]), statusText: start[2] ?? '', headers }
}
