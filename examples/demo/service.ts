/**
 * A payment service that must never charge twice. Six lines of it are oncekey; the rest is what a service has anyway.
 *
 *     node examples/demo/service.ts --port 8080 --data ./data
 */
import { appendFileSync, existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import express from 'express'
import { defineContract, ietf } from 'oncekey'
import { idempotency } from 'oncekey/express'
import { sqliteStore } from 'oncekey/sqlite'

export interface DemoOptions {
  readonly port: number
  /** Where the keys (once.db) and the charges (charges.log) are kept. */
  readonly data: string
  readonly leaseMs: number
}

export async function startService({ port, data, leaseMs }: DemoOptions): Promise<DemoService> {
  mkdirSync(data, { recursive: true })
  const ledger = join(data, 'charges.log')
  const store = sqliteStore({ path: join(data, 'once.db') })

  const app = express()
  app.use(express.json())
  app.post(
    '/charges',
    idempotency({
      store,
      principal: (request) => request.get('x-account') ?? 'demo',
      contract: defineContract(ietf, { name: 'demo', lease: { ms: leaseMs } }),
    }),
    async (request, response) => {
      const amount: unknown = request.body?.amount
      if (!Number.isInteger(amount))
        return void response.status(422).json({ error: 'amount must be a whole number of cents' })
      await pause(SLOW_BANK_MS)
      // The effect: money moves. Whoever runs this twice has charged twice.
      const charge = { id: `ch_${countLines(ledger) + 1}`, amount }
      appendFileSync(ledger, `${JSON.stringify(charge)}\n`)
      response.status(201).json(charge)
    },
  )
  app.get('/charges', (_request, response) => void response.json(readLines(ledger)))

  const server = app.listen(port, '127.0.0.1')
  await new Promise((resolve, reject) => server.once('listening', resolve).once('error', reject))
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('The server has no port.')
  return {
    url: `http://127.0.0.1:${address.port}`,
    charges: () => countLines(ledger),
    async stop() {
      await new Promise((resolve) => server.close(resolve))
      await store.close()
    },
  }
}

export interface DemoService {
  readonly url: string
  /** How often money has moved. */
  charges(): number
  stop(): Promise<void>
}

const SLOW_BANK_MS = 50

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

function readLines(file: string): unknown[] {
  if (!existsSync(file)) return []
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line))
}

function countLines(file: string): number {
  return readLines(file).length
}

export function demoOptions(args: readonly string[]): DemoOptions {
  const { values } = parseArgs({
    args: [...args],
    options: {
      port: { type: 'string', default: '8080' },
      data: { type: 'string', default: '.work/demo' },
      'lease-ms': { type: 'string', default: '30000' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help) {
    console.log('Options: --port N (8080)  --data FOLDER (.work/demo)  --lease-ms N (30000)')
    process.exit(0)
  }
  const port = Number(values.port)
  if (!Number.isInteger(port) || port < 0 || port > 65_535)
    throw new Error(`--port is ${values.port}; give a port from 0 to 65535`)
  return { port, data: values.data, leaseMs: Number(values['lease-ms']) }
}

if (import.meta.main) {
  const service = await startService(demoOptions(process.argv.slice(2)))
  console.log(service.url)
}
