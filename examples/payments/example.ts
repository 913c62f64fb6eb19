import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { paymentsFromEnvironment } from '../../src/contracts/index.ts'
import { defineContract, OncekeyError } from '../../src/index.ts'
import type { Example, StartOptions } from '../kit.ts'
import { type Daemon, startDaemon, TOKENS } from './daemon.ts'
import { AUDIT_PATH, PAYMENTS_PATH } from './service.ts'

export { tour } from './tour.ts'

export interface PaymentsExample extends Example {
  readonly data: string
  readonly daemon: Daemon
}

/** `PAYMENTS_DATA`: the folder of its files, kept. Without it they are somewhere else each time, and go with it. */
export async function start({ port, env }: StartOptions): Promise<PaymentsExample> {
  const { contract, settings } = paymentsFromEnvironment(env)
  const leaseSeconds = Number(env.PAYMENTS_LEASE_SECONDS || contract.lease.ms / 1_000)
  if (!(leaseSeconds > 0 && leaseSeconds <= LEASE_SECONDS_MAX)) {
    throw new OncekeyError(
      'config-invalid',
      `PAYMENTS_LEASE_SECONDS is ${JSON.stringify(env.PAYMENTS_LEASE_SECONDS)}, but must be a number of seconds up to ${LEASE_SECONDS_MAX}.`,
    )
  }
  const data = env.PAYMENTS_DATA || mkdtempSync(join(tmpdir(), 'oncekey-payments-'))
  const source = (name: string) => (env[name] ? 'environment' : 'default')
  const leaseMs = leaseSeconds * 1_000
  const daemon = await startDaemon({
    data,
    port,
    contract: defineContract(contract, { lease: { ms: leaseMs }, waitMsMax: Math.min(contract.waitMsMax, leaseMs) }),
  }).catch((error) => {
    if (!env.PAYMENTS_DATA) rmSync(data, { recursive: true, force: true })
    throw error
  })
  return {
    title: 'Payment decisions with nonce gate and audit log: node:http, SQLite',
    url: daemon.url,
    settings: [
      ...settings,
      { name: 'PAYMENTS_LEASE_SECONDS', value: `${leaseSeconds} seconds`, source: source('PAYMENTS_LEASE_SECONDS') },
      { name: 'PAYMENTS_DATA', value: data, source: source('PAYMENTS_DATA') },
    ],
    tries: triesOf(daemon.url, data),
    data,
    daemon,
    async stop() {
      await daemon.stop()
      if (!env.PAYMENTS_DATA) rmSync(data, { recursive: true, force: true })
    },
  }
}

/** A crashed daemon holds a key for this long: longer than a working day makes no sense. */
const LEASE_SECONDS_MAX = 3_600

function triesOf(url: string, data: string): Example['tries'] {
  const post = (key: string, body: string) =>
    `curl -i ${url}${PAYMENTS_PATH} -H 'Authorization: Bearer ${TOKENS.anna}' -H 'Idempotency-Key: ${key}' -H 'Content-Type: application/json' -d '${body}'`
  return [
    [
      'Ask for a payment. Send it twice: the second answer is the first one, with Idempotent-Replayed: true',
      post('order-1', '{"nonce":"n-1","amount":1999,"currency":"EUR","payee":"acme"}'),
    ],
    [
      'The same key for another amount: 409 protocol.idempotency_conflict',
      post('order-1', '{"nonce":"n-1","amount":1,"currency":"EUR","payee":"acme"}'),
    ],
    [
      'The same request under a new key: 409 protocol.nonce_replay',
      post('order-2', '{"nonce":"n-1","amount":1999,"currency":"EUR","payee":"acme"}'),
    ],
    [
      'What the audit log has under a request_hash (it is in every answer), for operators',
      `curl -s '${url}${AUDIT_PATH}?request_hash=…' -H 'Authorization: Bearer ${TOKENS.operator}'`,
    ],
    ['Nobody has changed the audit log', `npx node src/cli/main.ts audit verify ${join(data, 'audit.log')}`],
  ]
}
