import { describe, expect, it } from 'vitest'
import { OncekeyError } from '../error.ts'
import {
  type Configured,
  type ConfiguredJobs,
  jobs,
  jobsFromEnvironment,
  payments,
  paymentsFromEnvironment,
  resources,
  resourcesFromEnvironment,
} from './index.ts'

type Environment = Readonly<Record<string, string | undefined>>

interface Variable {
  readonly read: (env: Environment) => Configured
  readonly value: (configured: Configured) => unknown
  readonly default: readonly [value: unknown, shown: string]
  readonly given: readonly [text: string, value: unknown, shown: string]
  /** What cannot be meant, and what is said of it. */
  readonly bad: readonly string[]
  readonly expected: RegExp
}

const NO_TIME = ['0', '-5', '0.0001', 'a day', '1d', 'NaN', 'Infinity', '1,5', 'null']
const NO_COUNT = ['0', '-1', '1.5', 'many', 'Infinity', '1e400']
const NO_FLAG = ['maybe', '2', 'y', 'constructor', '__proto__', 'null']
const ofJobs = (pick: (configured: ConfiguredJobs) => unknown) => (configured: Configured) =>
  pick(configured as ConfiguredJobs)

const VARIABLES: Readonly<Record<string, Variable>> = {
  IDEMPOTENCY_TTL_SECONDS: {
    read: resourcesFromEnvironment,
    value: ({ contract }) => contract.ttl,
    default: [resources.ttl, '86400 seconds'],
    given: [
      '90.5',
      { committedMs: 90_500, rejectedMs: 90_500, unknownMs: 90_500, expiredMs: resources.ttl.expiredMs },
      '90.5 seconds',
    ],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
  IDEMPOTENCY_TTL_HOURS: {
    read: paymentsFromEnvironment,
    value: ({ contract }) => contract.ttl,
    default: [payments.ttl, '24 hours'],
    given: [
      '0.5',
      { committedMs: 1_800_000, rejectedMs: 1_800_000, unknownMs: 1_800_000, expiredMs: payments.ttl.expiredMs },
      '0.5 hours',
    ],
    bad: NO_TIME.filter((text) => text !== '0.0001'),
    expected: /but must be a number of hours/,
  },
  IDEMPOTENCY_PENDING_TTL_SECONDS: {
    read: jobsFromEnvironment,
    value: ({ contract }) => contract.lease,
    default: [jobs.lease, '60 seconds'],
    given: ['45', { ms: 45_000, handlerMsMax: 45_000 }, '45 seconds'],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
  IDEMPOTENCY_COMMITTED_TTL_SECONDS: {
    read: jobsFromEnvironment,
    value: ({ contract }) => contract.ttl.committedMs,
    default: [jobs.ttl.committedMs, '300 seconds'],
    given: ['7', 7_000, '7 seconds'],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
  IDEMPOTENCY_REJECTED_TTL_SECONDS: {
    read: jobsFromEnvironment,
    value: ({ contract }) => contract.ttl.rejectedMs,
    default: [jobs.ttl.rejectedMs, '60 seconds'],
    given: ['1e3', 1_000_000, '1000 seconds'],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
  IDEMPOTENCY_MAX_ENTRIES: {
    read: jobsFromEnvironment,
    value: ofJobs(({ cache }) => cache.recordsMax),
    default: [100_000, '100000 entries'],
    given: ['12', 12, '12 entries'],
    bad: NO_COUNT,
    expected: /but must be a (?:whole )?number of/,
  },
  IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS: {
    read: jobsFromEnvironment,
    value: ofJobs(({ cache }) => cache.sweepEveryMs),
    default: [10_000, '10 seconds'],
    given: ['0.25', 250, '0.25 seconds'],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
  IDEMPOTENCY_WAIT_FOR_PENDING: {
    read: jobsFromEnvironment,
    value: ({ contract }) => contract.inFlight,
    default: ['wait', 'true'],
    given: ['Off', 'reject', 'false'],
    bad: NO_FLAG,
    expected: /but must be true or false/,
  },
  IDEMPOTENCY_PENDING_WAIT_TIMEOUT: {
    read: jobsFromEnvironment,
    value: ({ contract }) => contract.waitMsMax,
    default: [jobs.waitMsMax, '30 seconds'],
    given: ['60', 60_000, '60 seconds'],
    bad: NO_TIME,
    expected: /but must be a number of seconds/,
  },
}

describe.each(Object.entries(VARIABLES))('%s', (name, variable) => {
  const { read, value, bad, expected } = variable
  const settingIn = (env: Environment) => read(env).settings.find((setting) => setting.name === name)

  it.each([undefined, '', '   '])('has its default when it is %j', (text) => {
    const [meant, shown] = variable.default
    expect(value(read({ [name]: text }))).toEqual(meant)
    expect(settingIn({ [name]: text })).toEqual({ name, value: shown, source: 'default' })
  })

  it('is taken as given, with room around it', () => {
    const [text, meant, shown] = variable.given
    expect(value(read({ [name]: ` ${text} ` }))).toEqual(meant)
    expect(settingIn({ [name]: text })).toEqual({ name, value: shown, source: 'environment' })
  })

  it.each(bad)('%s is refused by name', (text) => {
    const refusal = refusalOf(() => read({ [name]: text }))
    expect(refusal.code).toBe('config-invalid')
    expect(refusal.message.startsWith(`${name} is "${text}", `)).toBe(true)
    expect(refusal.message).toMatch(expected)
  })
})

describe('the environment as a whole', () => {
  it.each([
    ['resources', resourcesFromEnvironment, resources],
    ['payments', paymentsFromEnvironment, payments],
    ['jobs', jobsFromEnvironment, jobs],
  ] as const)('without a variable, it is the contract %s', (_name, read, contract) => {
    expect(read({}).contract).toEqual(contract)
  })

  it('J6: shows all seven variables, each with its source, in the order of the document', () => {
    const { settings } = jobsFromEnvironment({ IDEMPOTENCY_MAX_ENTRIES: '5', IDEMPOTENCY_WAIT_FOR_PENDING: 'no' })
    expect(settings.map(({ name, value, source }) => [name, value, source])).toEqual([
      ['IDEMPOTENCY_PENDING_TTL_SECONDS', '60 seconds', 'default'],
      ['IDEMPOTENCY_COMMITTED_TTL_SECONDS', '300 seconds', 'default'],
      ['IDEMPOTENCY_REJECTED_TTL_SECONDS', '60 seconds', 'default'],
      ['IDEMPOTENCY_MAX_ENTRIES', '5 entries', 'environment'],
      ['IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS', '10 seconds', 'default'],
      ['IDEMPOTENCY_WAIT_FOR_PENDING', 'false', 'environment'],
      ['IDEMPOTENCY_PENDING_WAIT_TIMEOUT', '30 seconds', 'default'],
    ])
  })

  it.each(['true', '1', 'YES', 'on'])('%s is true', (text) => {
    expect(jobsFromEnvironment({ IDEMPOTENCY_WAIT_FOR_PENDING: text }).contract.inFlight).toBe('wait')
  })

  it.each(['false', '0', 'No', 'off'])('%s is false', (text) => {
    expect(jobsFromEnvironment({ IDEMPOTENCY_WAIT_FOR_PENDING: text }).contract.inFlight).toBe('reject')
  })

  it('an impossible sum names the variables that were given, and the defaults beside them', () => {
    const both = { IDEMPOTENCY_PENDING_TTL_SECONDS: '20', IDEMPOTENCY_PENDING_WAIT_TIMEOUT: '21' }
    expect(refusalOf(() => jobsFromEnvironment(both)).message).toMatch(
      /waitMsMax is 21000, longer than the lease .* it comes from IDEMPOTENCY_PENDING_TTL_SECONDS \(20 seconds\), IDEMPOTENCY_PENDING_WAIT_TIMEOUT \(21 seconds\), beside/,
    )
    const one = { IDEMPOTENCY_PENDING_TTL_SECONDS: '20' }
    expect(refusalOf(() => jobsFromEnvironment(one)).message).toMatch(
      /it comes from IDEMPOTENCY_PENDING_TTL_SECONDS \(20 seconds\), beside the defaults of .*IDEMPOTENCY_PENDING_WAIT_TIMEOUT \(30 seconds\)$/,
    )
  })

  it('where nobody waits, the timeout of waiting does not matter', () => {
    const env = { IDEMPOTENCY_PENDING_TTL_SECONDS: '20', IDEMPOTENCY_WAIT_FOR_PENDING: 'false' }
    expect(jobsFromEnvironment(env).contract).toMatchObject({ inFlight: 'reject', lease: { ms: 20_000 } })
  })

  it('a time that no contract can hold names its variable', () => {
    const { message } = refusalOf(() => resourcesFromEnvironment({ IDEMPOTENCY_TTL_SECONDS: '1e300' }))
    expect(message).toMatch(/ttl\.committedMs .* it comes from IDEMPOTENCY_TTL_SECONDS \(1e\+300 seconds\)$/)
  })
})

function refusalOf(read: () => unknown): OncekeyError {
  try {
    read()
  } catch (error) {
    if (error instanceof OncekeyError) return error
    throw error
  }
  throw new Error('it was not refused')
}
