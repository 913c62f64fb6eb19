/**
 * One process of the example.
 *
 *     node examples/jobs/process.ts manager --name dc1 --port 9001 --data ./dc1 [--nats URL --peer URL]
 *     node examples/jobs/process.ts gate --name dc1 --port 9000 --manager http://127.0.0.1:9001
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { createAdaptorServer } from '@hono/node-server'
import { jetstream } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { systemClock } from '../../src/clock.ts'
import { type ConfiguredJobs, jobsFromEnvironment } from '../../src/contracts/index.ts'
import type { Store } from '../../src/index.ts'
import { natsStore } from '../../src/stores/nats.ts'
import { replicated } from '../../src/stores/replicated.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { JobTable } from './job-table.ts'
import { admitTask, createGate, createManager, type JobSpec, type Rejection } from './service.ts'

export const BUCKET = 'jobs'
export const LEDGER_FILE = 'ledger.db'

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      name: { type: 'string', default: 'dc1' },
      port: { type: 'string', default: '0' },
      data: { type: 'string', default: '.work/jobs' },
      nats: { type: 'string' },
      peer: { type: 'string', multiple: true, default: [] },
      manager: { type: 'string', default: '' },
      'slow-ledger-ms': { type: 'string', default: '0' },
    },
  })
  const configured = jobsFromEnvironment()
  const { name, data, nats, peer: peers, manager } = values
  const slowLedgerMs = Number(values['slow-ledger-ms'])
  const fetch =
    positionals[0] === 'gate'
      ? createGate({ manager, ...configured }).fetch
      : await openManager({ name, data, nats, peers, slowLedgerMs }, configured)
  const server = createAdaptorServer({ fetch })
  server.listen(Number(values.port), '127.0.0.1', () => console.log('listening'))
  // Whoever started this has ended.
  process.stdin.resume().once('end', () => process.exit(0))
}

interface ManagerArguments {
  readonly name: string
  readonly data: string
  readonly nats: string | undefined
  readonly peers: readonly string[]
  /** For tests of crashes: how long an answer is on its way to the ledger when its job is made already. */
  readonly slowLedgerMs: number
}

async function openManager(options: ManagerArguments, configured: ConfiguredJobs) {
  const { name, data, nats, peers, slowLedgerMs } = options
  mkdirSync(data, { recursive: true })
  const path = join(data, LEDGER_FILE)
  const { contract, cache } = configured
  const local = sqliteStore({ path, sweepEveryMs: cache.sweepEveryMs })
  const ledger = nats === undefined ? local : replicated({ mode: 'strict', local, global: await openGlobal(nats) })
  if (slowLedgerMs > 0) slowDown(ledger, slowLedgerMs)
  const { lease, ttl } = contract
  const jobs = new JobTable(path, lease.ms + Math.max(ttl.committedMs, ttl.unknownMs), systemClock.now)
  return createManager({ name, contract, ledger, jobs, peers, admit: review })
}

function slowDown(ledger: Store, ms: number): void {
  const settle = ledger.settle.bind(ledger)
  ledger.settle = async (...args) => {
    await new Promise((resolve) => setTimeout(resolve, ms))
    return settle(...args)
  }
}

/** Looks at a job for as long as the job asks for, as one does who must ask others before it is taken. */
async function review(spec: JobSpec): Promise<Rejection | undefined> {
  const reviewMs = Math.min(Number(spec.review_ms ?? 0), REVIEW_MS_MAX)
  if (reviewMs > 0) await new Promise((resolve) => setTimeout(resolve, reviewMs))
  return admitTask(spec)
}

const REVIEW_MS_MAX = 10_000

async function openGlobal(servers: string): Promise<Store> {
  const connection = await connect({
    servers,
    // Only by the way that was given: it may be cut.
    ignoreClusterUpdates: true,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 100,
    waitOnFirstConnect: true,
    pingInterval: 1_000,
    maxPingOut: 2,
  })
  return natsStore(jetstream(connection), { bucket: BUCKET })
}

if (import.meta.main) await main()
