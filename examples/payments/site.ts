/** What the tests of this example share: a daemon in a folder of its own, and requests to it. */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { payments } from '../../src/contracts/index.ts'
import type { AuditEntry } from '../../src/guards/audit.ts'
import { type Daemon, type DaemonOptions, startDaemon, TOKENS } from './daemon.ts'
import type { Envelope } from './envelope.ts'
import { AUDIT_PATH, PAYMENTS_PATH } from './service.ts'

export function tempFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-payments-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** Stopped when the test is over. */
export async function openSite(options: Partial<DaemonOptions> = {}): Promise<Daemon & { readonly data: string }> {
  const data = options.data ?? tempFolder()
  const daemon = await startDaemon({ port: 0, contract: payments, ...options, data })
  onTestFinished(() => daemon.stop())
  return { ...daemon, data }
}

/** Every envelope is another payment, unless the test says what it is. */
export function envelopeOf(fields: Partial<Envelope> = {}): Envelope {
  return { nonce: randomUUID(), amount: 1999, currency: 'EUR', payee: 'acme', ...fields }
}

export interface Paid {
  readonly status: number
  readonly isReplay: boolean
  readonly text: string
  readonly body: Readonly<Record<string, unknown>>
}

export interface PayOptions {
  readonly token?: string
  readonly signal?: AbortSignal
}

/** `payload` is an envelope, or the very text to send. */
export async function pay(
  url: string,
  key: string,
  payload: Envelope | string,
  { token = TOKENS.anna, signal }: PayOptions = {},
): Promise<Paid> {
  const response = await fetch(new URL(PAYMENTS_PATH, url), {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'idempotency-key': key,
      'content-type': 'application/json',
      connection: 'close',
    },
    body: typeof payload === 'string' ? payload : JSON.stringify(payload),
    ...(signal && { signal }),
  })
  const text = await response.text()
  const isReplay = response.headers.get('idempotent-replayed') === 'true'
  return { status: response.status, isReplay, text, body: JSON.parse(text) }
}

export async function auditOf(url: string, requestHash: unknown): Promise<readonly AuditEntry[]> {
  const response = await fetch(new URL(`${AUDIT_PATH}?request_hash=${requestHash}`, url), {
    headers: { authorization: `Bearer ${TOKENS.operator}`, connection: 'close' },
  })
  return ((await response.json()) as { entries: AuditEntry[] }).entries
}
