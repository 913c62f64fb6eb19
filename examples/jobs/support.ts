/** What the tests of this example share: a gate and a manager in this process, over real sockets, and a client. */
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createAdaptorServer } from '@hono/node-server'
import { systemClock } from '../../src/clock.ts'
import { jobsFromEnvironment } from '../../src/contracts/index.ts'
import type { Clock, Store } from '../../src/index.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { JobTable } from './job-table.ts'
import { createGate, createManager, type Gate, type ManagerOptions } from './service.ts'

export interface Pair {
  /** The gate's address. */
  readonly url: string
  readonly managerUrl: string
  /** The manager's SQLite file. */
  readonly path: string
  readonly gate: Gate
  readonly ledger: Store
  readonly jobs: JobTable
  /** How many submissions have reached the manager. */
  received(): number
  stop(): Promise<void>
}

export interface PairOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly admit?: NonNullable<ManagerOptions['admit']>
  readonly clock?: Clock
}

export async function startPair({ env = {}, admit, clock }: PairOptions = {}): Promise<Pair> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-jobs-'))
  const path = join(folder, 'ledger.db')
  const { contract, cache } = jobsFromEnvironment(env)
  const ledger = sqliteStore({ path, ...(clock && { clock }) })
  const rememberMs = contract.lease.ms + Math.max(contract.ttl.committedMs, contract.ttl.unknownMs)
  const jobs = new JobTable(path, rememberMs, (clock ?? systemClock).now)
  const timed = clock && { clock }
  const handler = createManager({ name: 'dc1', contract, ledger, jobs, ...(admit && { admit }), ...timed })
  let received = 0
  const manager = await listen((request) => {
    if (request.method === 'POST') received += 1
    return handler(request)
  })
  const gate = createGate({ manager: manager.url, contract, cache, ...timed })
  const front = await listen(gate.fetch)
  return {
    url: front.url,
    managerUrl: manager.url,
    path,
    gate,
    ledger,
    jobs,
    received: () => received,
    async stop() {
      await front.close()
      await gate.stop()
      await manager.close()
      await ledger.close()
      jobs.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function listen(fetch: (request: Request) => Promise<Response>) {
  const server = createAdaptorServer({ fetch })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as { port: number }).port}`,
    async close() {
      server.close()
      if ('closeAllConnections' in server) server.closeAllConnections()
      await once(server, 'close')
    },
  }
}

export interface Submitted {
  readonly status: number
  readonly jobId: string | undefined
  readonly isReplay: boolean
  readonly text: string
}

/** One POST /jobs, and never a second one. */
export async function submit(url: string, key: string, body: unknown = { task: 'render' }): Promise<Submitted> {
  const response = await fetch(new URL('/jobs', url), {
    method: 'POST',
    headers: { 'idempotency-key': key, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  const text = await response.text()
  const { job_id: jobId } = JSON.parse(text) as { job_id?: string }
  return { status: response.status, jobId, isReplay: response.headers.get('idempotent-replayed') === 'true', text }
}

let made = 0

/** A key that was never used. */
export function newKey(): string {
  made += 1
  return `test:${process.pid}:${made}:${'0'.repeat(15)}1`
}

/** Asks until it is so. */
export async function until(what: string, isSo: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`still not so: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS))
  }
}

const WAIT_MS_MAX = 30_000
const ASK_EVERY_MS = 10
