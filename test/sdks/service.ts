import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { chance, drawn, type Later } from './chance.ts'

/**
 * `refuse`: 503 before anything was done. `lose`: done, and then the connection breaks, so that nobody in front of the
 * service can know. `slow`: done, but it takes its time, so that a retry can meet it on its way.
 */
export const SERVICE_FAULTS = { refuse: 0.15, lose: 0.03, slow: 0.15 } as const

const SLOW_MS = 800

export interface FlakyService {
  readonly url: string
  /** How often each operation took effect. */
  readonly effects: ReadonlyMap<string, number>
  /** Those that were done, and whose answer was lost behind the gate. */
  readonly lost: ReadonlySet<string>
  readonly seen: Readonly<Record<keyof typeof SERVICE_FAULTS, number>>
}

/** Finds `op-N` in whatever format the body has, does it, and answers with what the SDK expects of it. */
export async function flakyService(
  seed: string,
  later: Later,
  answer: (name: string, id: string) => object,
): Promise<FlakyService> {
  const effects = new Map<string, number>()
  const arrivals = new Map<string, number>()
  const lost = new Set<string>()
  const seen = { refuse: 0, lose: 0, slow: 0 }

  const take = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    let body = ''
    for await (const chunk of request) body += chunk
    const [name] = /op-\d+/.exec(body) ?? []
    if (name === undefined) return void response.writeHead(400).end('{"error":{"message":"no operation"}}')
    const arrival = (arrivals.get(name) ?? 0) + 1
    arrivals.set(name, arrival)
    const fault = drawn(SERVICE_FAULTS, chance(seed, 'service', name, arrival))
    if (fault !== undefined) seen[fault] += 1
    response.setHeader('Content-Type', 'application/json')
    if (fault === 'refuse') return void response.writeHead(503).end('{"error":{"message":"not now"}}')
    if (fault === 'slow') await pause(SLOW_MS)
    const count = (effects.get(name) ?? 0) + 1
    effects.set(name, count)
    if (fault === 'lose') {
      lost.add(name)
      return void request.socket.destroy()
    }
    response.writeHead(200).end(JSON.stringify(answer(name, `${name}-${count}`)))
  }

  const server = createServer((request, response) => void take(request, response)).listen(0, '127.0.0.1')
  await once(server, 'listening')
  later(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, effects, lost, seen }
}
