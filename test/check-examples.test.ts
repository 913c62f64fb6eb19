/** X9: `oncekey check` against our own gate and every example. Nothing fails, and what is only warned of stands here. */
import { createServer } from 'node:http'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Example, StartOptions } from '../examples/kit.ts'
import { TOKENS } from '../examples/payments/daemon.ts'
import { PAYMENTS_PATH } from '../examples/payments/service.ts'
import { type CheckOptions, type CheckReport, checkApi } from '../src/check/index.ts'
import { startGate } from '../src/gate/gate.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { bridge, listening } from './adapters/subjects.ts'
import { baseOf, everything, orderService } from './check/service.ts'
import { Unavailable } from './services/index.ts'

const TIMEOUT_MS = 30_000

function notPassed({ cases }: CheckReport): string[] {
  return cases.filter(({ verdict }) => verdict !== 'pass').map(({ id, verdict, came }) => `${verdict} ${id}: ${came}`)
}

describe('X9: oncekey check against the gate', () => {
  it('contract ietf: every case passes', async () => {
    const upstream = baseOf(await listening(createServer(bridge(orderService().handle))))
    const store = memoryStore()
    const principal = { kind: 'header', name: 'Authorization' } as const
    const gate = await startGate({ upstream, store, principal, port: 0 })
    onTestFinished(() => gate.stop())
    expect(notPassed(await checkApi(everything(gate.url)))).toEqual([])
  })
})

interface Checked {
  readonly name: string
  readonly load: () => Promise<{ start(options: StartOptions): Promise<Example> }>
  readonly path: string
  readonly options: Omit<CheckOptions, 'url'>
  /** What the example does otherwise by intention, besides what it has nothing for. */
  readonly warnings?: readonly string[]
}

/** No example is slow, sets cookies or fails on demand: these cases have nothing to look at. */
const NOTHING_FOR: ReadonlySet<string> = new Set(['in-flight.duplicate', 'headers.cookies', 'failures.retry'])

const bearer = (token: string) => [['Authorization', `Bearer ${token}`]] as const

const EXAMPLES: readonly Checked[] = [
  {
    name: 'writes',
    load: () => import('../examples/writes/example.ts'),
    path: '/orders',
    options: {
      headers: bearer('anna'),
      secondPrincipal: bearer('bert'),
      body: '{"item":"tea","quantity":{{n}}}',
    },
  },
  {
    name: 'payments',
    load: () => import('../examples/payments/example.ts'),
    path: PAYMENTS_PATH,
    options: {
      headers: bearer(TOKENS.anna),
      secondPrincipal: bearer(TOKENS.ben),
      body: '{"nonce":"{{uuid}}","amount":{{n}},"currency":"EUR","payee":"acme"}',
    },
  },
  {
    name: 'resources',
    load: () => import('../examples/resources/example.ts'),
    path: '/api/v1/account',
    options: {
      headers: bearer('anna-token'),
      secondPrincipal: bearer('zoe-token'),
      body: '{"accountName":"{{uuid}}"}',
    },
    // Its clients need no key, and are protected when they send one.
    warnings: ['warn keys.missing', 'warn keys.empty'],
  },
  {
    name: 'traces',
    load: () => import('../examples/traces/example.ts'),
    path: '/api/v1/traces',
    options: {
      headers: [['X-API-Key', 'key-acme']],
      secondPrincipal: [['X-API-Key', 'key-globex']],
      body: '{"agentId":"{{uuid}}","decision":"approve"}',
    },
  },
  {
    name: 'jobs',
    load: () => import('../examples/jobs/example.ts'),
    path: '/jobs',
    options: { keyTemplate: 'laptop:{{n}}:{{hex}}', body: '{"task":"render","frame":{{n}}}' },
    // Whose a key is stands in the key itself.
    warnings: ['skip tenants.isolation'],
  },
]

describe('X9: oncekey check against the examples', () => {
  it.for(EXAMPLES)('$name: nothing fails', async ({ load, path, options, warnings = [] }, { skip }) => {
    const { start } = await load()
    const example = await start({ port: 0, env: {} }).catch((error) => {
      if (error instanceof Unavailable) return error.message
      throw error
    })
    if (typeof example === 'string') return skip(example)
    onTestFinished(() => example.stop())
    const report = await checkApi({ url: `${example.url}${path}`, timeoutMs: TIMEOUT_MS, ...options })
    const others = notPassed(report).filter((line) => !NOTHING_FOR.has(/^skip ([\w.-]+)/.exec(line)?.[1] ?? ''))
    expect(others.map((line) => line.split(':', 1)[0])).toEqual(warnings)
    expect(report.totals.pass).toBeGreaterThan(0)
  })
})
