import { mkdirSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { systemClock } from '../../src/clock.ts'
import { type AuditLog, openAudit } from '../../src/guards/audit.ts'
import type { Clock, Contract, Store } from '../../src/index.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { Decisions, type Limits } from './decisions.ts'
import { type Caller, createPayments, type PaymentsOptions, shortestTtlMs } from './service.ts'

export interface DaemonOptions {
  /** The folder of payments.db (keys, nonces, decisions) and audit.log. */
  readonly data: string
  readonly port: number
  readonly contract: Contract
  readonly limits?: Limits
  readonly screen?: PaymentsOptions['screen']
  readonly clock?: Clock
}

export interface Daemon {
  readonly url: string
  readonly store: Store
  readonly audit: AuditLog
  readonly decisions: Decisions
  stop(): Promise<void>
}

export const TOKENS = { anna: 'demo-anna', ben: 'demo-ben', operator: 'demo-operator' } as const

const CALLERS: ReadonlyMap<string, Caller> = new Map([
  [TOKENS.anna, { name: 'anna' }],
  [TOKENS.ben, { name: 'ben' }],
  [TOKENS.operator, { name: 'operator', isOperator: true }],
])

const LIMITS: Limits = { paymentMax: 100_000, payeeDayMax: 250_000 }
const BUSY_MS_MAX = 5_000

/** Opens the files, listens, and takes it all down again. */
export async function startDaemon(options: DaemonOptions): Promise<Daemon> {
  const { data, port, contract, limits = LIMITS, screen, clock = systemClock } = options
  mkdirSync(data, { recursive: true })
  const file = join(data, 'payments.db')
  const audit = await openAudit({ file: join(data, 'audit.log'), keyTtlMs: shortestTtlMs(contract), clock })
  const store = sqliteStore({ path: file, ...(options.clock && { clock }) })
  const db = new DatabaseSync(file, { timeout: BUSY_MS_MAX })
  db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL')
  const decisions = new Decisions(db, limits)
  const listener = createPayments({
    store,
    contract,
    decisions,
    audit,
    callers: CALLERS,
    clock,
    ...(screen && { screen }),
  })
  const server = createServer(listener)
  const close = async () => {
    await store.close()
    await audit.close()
    db.close()
  }
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject).listen(port, '127.0.0.1', resolve)
    })
  } catch (error) {
    await close()
    throw error
  }
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    store,
    audit,
    decisions,
    async stop() {
      await new Promise((resolve) => {
        server.close(resolve)
        server.closeAllConnections()
      })
      await close()
    },
  }
}
