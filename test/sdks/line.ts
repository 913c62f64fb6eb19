import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { chance, drawn, type Later } from './chance.ts'

/**
 * A bad line between client and gate. It carries bytes, and now and then breaks: `before`, when the request has gone out
 * and the client hears nothing any more, or `answer`, when the answer was just about to arrive.
 */
export const LINE_FAULTS = { before: 0.08, answer: 0.12 } as const

export interface Line {
  readonly port: number
  readonly broken: Record<keyof typeof LINE_FAULTS, number>
}

export async function badLine(target: string, seed: string, later: Later): Promise<Line> {
  const broken = { before: 0, answer: 0 }
  const tries = new Map<string, number>()
  const sockets = new Set<Socket>()
  const { port, hostname } = new URL(target)

  const server = createServer((client) => {
    const gate = connect(Number(port), hostname)
    for (const socket of [client, gate]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => sockets.delete(socket))
    }
    let fault: keyof typeof LINE_FAULTS | undefined
    client.on('data', (bytes) => {
      gate.write(bytes)
      const [name] = /op-\d+/.exec(bytes.toString('latin1')) ?? []
      if (name === undefined) return
      const count = (tries.get(name) ?? 0) + 1
      tries.set(name, count)
      fault = drawn(LINE_FAULTS, chance(seed, 'line', name, count))
      if (fault !== 'before') return
      broken.before += 1
      client.resetAndDestroy()
      gate.end()
    })
    gate.on('data', (bytes) => {
      if (fault !== 'answer') return void client.write(bytes)
      broken.answer += 1
      client.resetAndDestroy()
      gate.end()
    })
    client.on('close', () => gate.end())
    gate.on('close', () => client.end())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  later(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return { port: (server.address() as AddressInfo).port, broken }
}
