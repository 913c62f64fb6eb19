/**
 * Clients that nobody here wrote, with their own keys and their own automatic retries, through the gate. The service
 * fails at random, and so does the line to the gate; the seed makes the same faults in every run.
 *
 * What the retries of an SDK can get through, and what not:
 * - the service refuses (503), the line breaks, or a retry comes while the first try is still running (409): they do.
 * - the connection breaks behind the gate, after the service has acted. Nobody in front of it can know, so the gate says
 *   409 outcome-unknown to each retry, and never runs it again. The SDK ends with that error, and one effect is there.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import ModernTreasury from 'modern-treasury'
import Stripe from 'stripe'
import { describe, expect, it } from 'vitest'
import type { Contract } from '../src/contract.ts'
import { defineContract } from '../src/contract-check.ts'
import { ietf, stripe as stripeContract } from '../src/contracts/index.ts'
import { startGate } from '../src/gate/gate.ts'
import { sqliteStore } from '../src/stores/sqlite.ts'
import type { Later } from './sdks/chance.ts'
import { badLine, type Line } from './sdks/line.ts'
import { type FlakyService, flakyService } from './sdks/service.ts'

const OPERATIONS = 100
const NAMES: readonly string[] = Array.from({ length: OPERATIONS }, (_, i) => `op-${1_000 + i}`)

/** A duplicate of what runs is told to come again when the lease ends, and this SDK waits for as long as it is told. */
const SHORT_LEASE = defineContract(ietf, { lease: { ms: 5_000 } })

async function gateBefore({ url }: FlakyService, contract: Contract, later: Later): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-sdks-'))
  const store = sqliteStore({ path: join(folder, 'keys.db') })
  const gate = await startGate({ upstream: url, store, principal: 'public', contract, port: 0 })
  later(async () => {
    await gate.stop()
    await store.close()
    rmSync(folder, { recursive: true, force: true })
  })
  return gate.url
}

interface Ended {
  readonly name: string
  readonly id?: string
  readonly status?: number | undefined
}

/** All at once: most of an SDK's time is spent in pauses between its tries. */
function all(run: (name: string) => Promise<{ id: string }>, statusOf: (error: unknown) => number | undefined) {
  return Promise.all(
    NAMES.map((name) =>
      run(name).then(
        ({ id }): Ended => ({ name, id }),
        (error: unknown): Ended => ({ name, status: statusOf(error) }),
      ),
    ),
  )
}

function judge(ended: readonly Ended[], { effects, lost, seen }: FlakyService, { broken }: Line): void {
  const twice = [...effects].filter(([, count]) => count > 1)
  expect(twice).toEqual([])
  const done = ended.filter(({ id }) => id !== undefined)
  // The answer is that of the one effect.
  expect(done.filter(({ name, id }) => effects.get(name) !== 1 || id !== `${name}-1`)).toEqual([])
  const failed = ended.filter(({ id }) => id === undefined)
  expect(failed.map(({ name }) => name)).toEqual([...lost].sort())
  // The last try's answer: that nobody knows, unless the line broke once more.
  expect(new Set(failed.map(({ status }) => status ?? 409))).toEqual(new Set([409]))
  expect(done).toHaveLength(OPERATIONS - lost.size)
  // Nothing of this was shown if the faults did not happen.
  for (const count of [...Object.values(seen), ...Object.values(broken)]) expect(count).toBeGreaterThan(0)
}

describe.concurrent('X8: SDKs with their own retries, through the gate, against a service that fails at random', () => {
  it('stripe: every operation that it reports as done has one effect, none has two', async ({
    onTestFailed,
    onTestFinished: later,
  }) => {
    const seed = 'stripe 1'
    const service = await flakyService(seed, later, (name, id) => ({
      id,
      object: 'charge',
      description: name,
      amount: 4200,
    }))
    const line = await badLine(await gateBefore(service, stripeContract, later), seed, later)
    onTestFailed(() => console.log({ seed, seen: service.seen, broken: line.broken }))
    const client = new Stripe('sk_test_oncekey', {
      ...{ host: '127.0.0.1', port: line.port, protocol: 'http', telemetry: false },
      maxNetworkRetries: 6,
    })
    const ended = await all(
      (name) => client.charges.create({ amount: 4200, currency: 'eur', source: 'tok_visa', description: name }),
      (error) => (error instanceof Stripe.errors.StripeError ? error.statusCode : undefined),
    )
    judge(ended, service, line)
  })

  it('modern-treasury: the same', async ({ onTestFailed, onTestFinished: later }) => {
    const seed = 'treasury 1'
    const service = await flakyService(seed, later, (name, id) => ({ id, object: 'counterparty', name }))
    const line = await badLine(await gateBefore(service, SHORT_LEASE, later), seed, later)
    onTestFailed(() => console.log({ seed, seen: service.seen, broken: line.broken }))
    const client = new ModernTreasury({
      ...{ baseURL: `http://127.0.0.1:${line.port}`, organizationID: 'oncekey', apiKey: 'test' },
      maxRetries: 5,
      logLevel: 'off',
    })
    const ended = await all(
      (name) => client.counterparties.create({ name }),
      (error) => (error instanceof ModernTreasury.APIError ? error.status : undefined),
    )
    judge(ended, service, line)
  })

  it('stripe: a key that was used for something else is the SDK’s own idempotency error', async ({
    onTestFinished: later,
  }) => {
    const service = await flakyService('calm', later, (_, id) => ({ id, object: 'charge' }))
    const gate = await gateBefore(service, stripeContract, later)
    const client = new Stripe('sk_test_oncekey', {
      ...{ host: '127.0.0.1', port: new URL(gate).port, protocol: 'http', telemetry: false },
      maxNetworkRetries: 5,
    })
    const charge = (amount: number) =>
      client.charges.create({ amount, currency: 'eur', description: 'op-1' }, { idempotencyKey: 'order-1' })
    const first = await charge(100)
    expect(first.lastResponse.idempotencyKey).toBe('order-1')
    expect((await charge(100)).id).toBe(first.id)
    await expect(charge(200)).rejects.toBeInstanceOf(Stripe.errors.StripeIdempotencyError)
    expect(service.effects.get('op-1')).toBe(1)
  })
})
