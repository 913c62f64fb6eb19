import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onTestFinished } from 'vitest'
import { Connection, type Wire, type WireRequest } from '../../src/testing/adapter-cases/wire.ts'
import type { AdapterServer } from '../../src/testing/adapter-suite.ts'

export interface Asked {
  readonly server: Server
  send(request: WireRequest): Promise<Wire>
  twice(request: WireRequest): Promise<[first: Wire, again: Wire]>
  connect(): Promise<Connection>
}

/** A server for one test, asked over a bare socket and closed after it. */
export function ask({ server, close }: AdapterServer): Asked {
  const { port } = server.address() as AddressInfo
  const connections: Connection[] = []
  onTestFinished(async () => {
    for (const connection of connections) connection.close()
    server.closeAllConnections()
    await close()
  })
  const connect = async (): Promise<Connection> => {
    const connection = await Connection.open(port)
    connections.push(connection)
    return connection
  }
  const send = async (request: WireRequest): Promise<Wire> => {
    const connection = await connect()
    const wire = await connection.request(request)
    connection.close()
    return wire
  }
  return { server, connect, send, twice: async (request) => [await send(request), await send(request)] }
}

export const JSON_TYPE: readonly [string, string] = ['Content-Type', 'application/json']
