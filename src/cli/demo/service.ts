import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'

/** A payments service as they are on a bad day. It knows nothing of idempotency, but counts the charges of each order. */
export interface PaymentsService {
  readonly url: string
  readonly counts: Readonly<Counts>
  stop(): Promise<void>
}

interface Counts {
  /** Requests for a charge that reached the service. */
  requests: number
  charges: number
  /** Charges of an order that had been charged before. */
  doubles: number
  /** Answered with 503 before anything was done. */
  failures: number
  /** Charged, and then the connection broke. */
  lost: number
}

export interface Faults {
  readonly failRate: number
  readonly lostRate: number
  readonly slowRate: number
}

export const BAD_DAY: Faults = { failRate: 0.1, lostRate: 0.05, slowRate: 0.1 }

const QUICK_MS = 15
const SLOW_MS = 900
const BODY_BYTES_MAX = 64 * 1024
/** Enough to see a double of anything that the gate still remembers at the rates of a demo. */
const ORDERS_MAX = 200_000
const SHOWN_CHARGES = 20

export async function startPayments(
  { failRate, lostRate, slowRate }: Faults,
  random: () => number = Math.random,
): Promise<PaymentsService> {
  const counts: Counts = { requests: 0, charges: 0, doubles: 0, failures: 0, lost: 0 }
  const chargesOf = new Map<string, number>()
  const latest: object[] = []

  const charge = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const body = await readCharge(request)
    if (body === undefined) return send(response, 422, { error: 'amount must be a whole number of cents' })
    counts.requests += 1
    if (random() < failRate) {
      counts.failures += 1
      return send(response, 503, { error: 'The bank does not answer. Nothing was charged.' })
    }
    await pause(random() < slowRate ? SLOW_MS : QUICK_MS)
    // The effect: money moves. Whoever makes this run twice for one order has charged twice.
    const order = body.order ?? `${request.headers['x-account']} ${request.headers['idempotency-key']}`
    const before = chargesOf.get(order) ?? 0
    chargesOf.set(order, before + 1)
    for (const oldest of chargesOf.keys()) {
      if (chargesOf.size <= ORDERS_MAX) break
      chargesOf.delete(oldest)
    }
    counts.charges += 1
    if (before > 0) counts.doubles += 1
    const made = { id: `ch_${counts.charges}`, amount: body.amount, currency: body.currency ?? 'eur' }
    latest.unshift(made)
    latest.length = Math.min(latest.length, SHOWN_CHARGES)
    if (random() < lostRate) {
      counts.lost += 1
      return void request.socket.destroy()
    }
    send(response, 201, made)
  }

  const server = createServer((request, response) => {
    const { method, url } = request
    if (method === 'POST' && url === '/charges') charge(request, response).catch(() => response.destroy())
    else if (method === 'GET' && url === '/charges') send(response, 200, { ...counts, latest })
    else send(response, 404, { error: 'There is POST /charges and GET /charges.' })
  })
  // The service goes last, and what is still connected then is only idle.
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    counts,
    async stop() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

interface Charge {
  readonly order?: string
  readonly amount: number
  readonly currency?: string
}

async function readCharge(request: IncomingMessage): Promise<Charge | undefined> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) {
    text += chunk
    if (text.length > BODY_BYTES_MAX) return undefined
  }
  try {
    const { order, amount, currency } = JSON.parse(text) as Readonly<Record<string, unknown>>
    if (!Number.isSafeInteger(amount)) return undefined
    return {
      amount: Number(amount),
      ...(order !== undefined && { order: String(order) }),
      ...(currency !== undefined && { currency: String(currency) }),
    }
  } catch {
    return undefined
  }
}

function send(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'Content-Type': 'application/json' })
  response.end(`${JSON.stringify(body)}\n`)
}
