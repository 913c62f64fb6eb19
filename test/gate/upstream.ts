import { createServer, type Server, type Socket } from 'node:net'

/** A request as it came over the wire. */
export interface Seen {
  readonly method: string
  readonly target: string
  /** Name and value pairs in order, names in lower case. */
  readonly headers: ReadonlyArray<readonly [string, string]>
  readonly body: string
  /** The number of its connection, counted from 1. */
  readonly connection: number
}

export type Behaviour = (request: Seen, socket: Socket) => void

/** A service on bare sockets that does to each request whatever the test asks for, and remembers what reached it. */
export class TestUpstream {
  readonly seen: Seen[] = []
  behave: Behaviour = answer('201 Created', '{"ok":true}')
  /** Called when a head has come, before its body: for `Expect`. */
  onHead: (head: string, socket: Socket) => void = () => {}
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  readonly #waiting: Array<() => void> = []
  #connections = 0

  constructor() {
    this.#server = createServer((socket) => this.#accept(socket))
  }

  async listen(port = 0): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(port, '127.0.0.1', resolve))
    return this
  }

  /** From now on it answers nothing; what came last gets its answer when the function that this returns is called. */
  holdBack(behaviour: Behaviour): () => void {
    let finish = (): void => {}
    this.behave = (request, socket) => {
      finish = () => behaviour(request, socket)
    }
    return () => finish()
  }

  get port(): number {
    return (this.#server.address() as { port: number }).port
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`
  }

  get openConnections(): number {
    return this.#sockets.size
  }

  /** When so many requests have arrived, in all. */
  async arrived(count: number): Promise<Seen> {
    while (this.seen.length < count) await new Promise<void>((resolve) => this.#waiting.push(resolve))
    return this.seen[count - 1] as Seen
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy()
    await new Promise((resolve) => this.#server.close(resolve))
  }

  #accept(socket: Socket): void {
    const connection = ++this.#connections
    this.#sockets.add(socket)
    let received = ''
    let headSeen = false
    socket.setEncoding('latin1')
    socket.on('close', () => this.#sockets.delete(socket))
    socket.on('error', () => {})
    socket.on('data', (text: string) => {
      received += text
      for (;;) {
        const headEnd = received.indexOf('\r\n\r\n')
        if (headEnd < 0) return
        const head = received.slice(0, headEnd)
        if (!headSeen) this.onHead(head, socket)
        headSeen = true
        const length = bodyLength(head, received.slice(headEnd + 4))
        if (length === undefined) return
        const body = received.slice(headEnd + 4, headEnd + 4 + length)
        received = received.slice(headEnd + 4 + length)
        headSeen = false
        this.#take({ ...parseHead(head), body, connection }, socket)
        // An upgraded connection carries something else from here on.
        if (/^upgrade:/im.test(head)) return
      }
    })
  }

  #take(request: Seen, socket: Socket): void {
    this.seen.push(request)
    for (const wake of this.#waiting.splice(0)) wake()
    this.behave(request, socket)
  }
}

export function headerValues({ headers }: Pick<Seen, 'headers'>, name: string): string[] {
  return headers.filter(([one]) => one === name.toLowerCase()).map(([, value]) => value)
}

/** A whole and proper answer. */
export function answer(status: string, body = '', headers: readonly string[] = []): Behaviour {
  const lines = [...headers, `Content-Length: ${Buffer.byteLength(body)}`, 'Content-Type: application/json']
  return (request, socket) => {
    socket.write(
      `HTTP/1.1 ${status}\r\n${lines.join('\r\n')}\r\n\r\n${request.method === 'HEAD' ? '' : body}`,
      'latin1',
    )
  }
}

/** Bytes as they are, and then nothing, or the end. */
export function raw(text: string, then: 'stay' | 'end' | 'reset' = 'stay'): Behaviour {
  return (_request, socket) => {
    socket.write(text, 'latin1', () => {
      if (then === 'end') socket.end()
      if (then === 'reset') socket.resetAndDestroy()
    })
  }
}

export const hang: Behaviour = () => {}
export const breakBeforeHead: Behaviour = (_request, socket) => socket.resetAndDestroy()
export const breakInHead: Behaviour = raw('HTTP/1.1 201 Crea', 'end')
export const breakInBody: Behaviour = raw('HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf of it', 'end')
export const garbage: Behaviour = raw('\u0001\u0002 this is no HTTP at all\r\n\r\n')
export const earlyHints: Behaviour = (request, socket) => {
  socket.write('HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n')
  answer('201 Created', '{"hinted":true}')(request, socket)
}

function parseHead(head: string): Omit<Seen, 'body' | 'connection'> {
  const [first = '', ...lines] = head.split('\r\n')
  const [method = '', target = ''] = first.split(' ')
  const headers = lines.map((line) => {
    const colon = line.indexOf(':')
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const
  })
  return { method, target, headers }
}

/** `undefined`: not all of it has come. A chunked body counts with its chunks and trailers, as it stands. */
function bodyLength(head: string, rest: string): number | undefined {
  if (/^transfer-encoding: *chunked/im.test(head)) {
    const end = /(?:^|\r\n)0\r\n(?:[^\r\n]+\r\n)*\r\n/.exec(rest)
    return end ? end.index + end[0].length : undefined
  }
  const length = Number(/^content-length: *(\d+)/im.exec(head)?.[1] ?? 0)
  return rest.length >= length ? length : undefined
}
