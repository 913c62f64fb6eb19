import { expect, it } from 'vitest'
import { jobs as jobsContract, jobsFromEnvironment } from '../../src/contracts/index.ts'

it('J6: has the seven defaults of the document', () => {
  const { contract, cache, settings } = jobsFromEnvironment({})
  expect(settings.map(({ name, value, source }) => `${name} ${value} ${source}`)).toEqual([
    'IDEMPOTENCY_PENDING_TTL_SECONDS 60 seconds default',
    'IDEMPOTENCY_COMMITTED_TTL_SECONDS 300 seconds default',
    'IDEMPOTENCY_REJECTED_TTL_SECONDS 60 seconds default',
    'IDEMPOTENCY_MAX_ENTRIES 100000 entries default',
    'IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS 10 seconds default',
    'IDEMPOTENCY_WAIT_FOR_PENDING true default',
    'IDEMPOTENCY_PENDING_WAIT_TIMEOUT 30 seconds default',
  ])
  expect(contract).toEqual(jobsContract)
  expect(contract).toMatchObject({
    lease: { ms: 60_000, handlerMsMax: 60_000 },
    ttl: { committedMs: 300_000, rejectedMs: 60_000 },
    inFlight: 'wait',
    waitMsMax: 30_000,
  })
  expect(cache).toEqual({ recordsMax: 100_000, sweepEveryMs: 10_000 })
})

it('J6: takes each from the environment, and refuses what cannot be meant', () => {
  const { contract, cache } = jobsFromEnvironment({
    IDEMPOTENCY_PENDING_TTL_SECONDS: '2.5',
    IDEMPOTENCY_COMMITTED_TTL_SECONDS: '20',
    IDEMPOTENCY_REJECTED_TTL_SECONDS: '7',
    IDEMPOTENCY_MAX_ENTRIES: '12',
    IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS: '0.5',
    IDEMPOTENCY_WAIT_FOR_PENDING: 'false',
    IDEMPOTENCY_PENDING_WAIT_TIMEOUT: '1',
  })
  expect(contract).toMatchObject({
    lease: { ms: 2_500, handlerMsMax: 2_500 },
    ttl: { committedMs: 20_000, rejectedMs: 7_000 },
    inFlight: 'reject',
    waitMsMax: 1_000,
  })
  expect(cache).toEqual({ recordsMax: 12, sweepEveryMs: 500 })
  for (const [name, value] of [
    ['IDEMPOTENCY_PENDING_TTL_SECONDS', '0'],
    ['IDEMPOTENCY_COMMITTED_TTL_SECONDS', 'five minutes'],
    ['IDEMPOTENCY_MAX_ENTRIES', '1.5'],
    ['IDEMPOTENCY_WAIT_FOR_PENDING', 'maybe'],
  ] as const) {
    expect(() => jobsFromEnvironment({ [name]: value })).toThrow(new RegExp(`^${name} is "${value}", but must be`))
  }
})
