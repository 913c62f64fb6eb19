import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { OncekeyError } from '../error.ts'
import { jobs } from './jobs.ts'
import { payments } from './payments.ts'
import { resources } from './resources.ts'

/** A contract as the environment has changed it, and where each value came from, to be shown when a service starts. */
export interface Configured {
  readonly contract: Contract
  readonly settings: readonly Setting[]
}

export interface Setting {
  readonly name: string
  readonly value: string
  readonly source: 'environment' | 'default'
}

export interface ConfiguredJobs extends Configured {
  /** For the gate's cache: `memoryStore({ recordsMax })` and how often it is swept. */
  readonly cache: { readonly recordsMax: number; readonly sweepEveryMs: number }
}

type Environment = Readonly<Record<string, string | undefined>>

/** `IDEMPOTENCY_TTL_SECONDS`: how long a success is replayed. */
export function resourcesFromEnvironment(env: Environment = process.env): Configured {
  const reader = new Reader(env)
  const ttlMs = reader.duration('IDEMPOTENCY_TTL_SECONDS', 86_400, SECOND_MS)
  return reader.configured(resources, { ttl: { committedMs: ttlMs, rejectedMs: ttlMs, unknownMs: ttlMs } })
}

/** `IDEMPOTENCY_TTL_HOURS`: how long a decision is replayed. */
export function paymentsFromEnvironment(env: Environment = process.env): Configured {
  const reader = new Reader(env)
  const ttlMs = reader.duration('IDEMPOTENCY_TTL_HOURS', 24, HOUR_MS)
  return reader.configured(payments, { ttl: { committedMs: ttlMs, rejectedMs: ttlMs, unknownMs: ttlMs } })
}

export function jobsFromEnvironment(env: Environment = process.env): ConfiguredJobs {
  const reader = new Reader(env)
  const pendingMs = reader.duration('IDEMPOTENCY_PENDING_TTL_SECONDS', 60, SECOND_MS)
  const committedMs = reader.duration('IDEMPOTENCY_COMMITTED_TTL_SECONDS', 300, SECOND_MS)
  const rejectedMs = reader.duration('IDEMPOTENCY_REJECTED_TTL_SECONDS', 60, SECOND_MS)
  const recordsMax = reader.count('IDEMPOTENCY_MAX_ENTRIES', 100_000)
  const sweepEveryMs = reader.duration('IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS', 10, SECOND_MS)
  const isWaiting = reader.flag('IDEMPOTENCY_WAIT_FOR_PENDING', true)
  const waitMsMax = reader.duration('IDEMPOTENCY_PENDING_WAIT_TIMEOUT', 30, SECOND_MS)
  const configured = reader.configured(jobs, {
    inFlight: isWaiting ? 'wait' : 'reject',
    // Where nobody waits, a timeout that is longer than pending stands in nobody's way.
    waitMsMax: isWaiting ? waitMsMax : Math.min(waitMsMax, pendingMs),
    ttl: { committedMs, rejectedMs },
    lease: { ms: pendingMs, handlerMsMax: pendingMs },
  })
  return { ...configured, cache: { recordsMax, sweepEveryMs } }
}

const SECOND_MS = 1_000
const HOUR_MS = 3_600_000

/** Reads variables one by one, refuses what cannot be meant, and remembers what it gave. */
class Reader {
  readonly #env: Environment
  readonly #settings: Setting[] = []

  constructor(env: Environment) {
    this.#env = env
  }

  /** Whole milliseconds. */
  duration(name: string, fallback: number, unitMs: number): number {
    const unit = unitMs === HOUR_MS ? 'hours' : 'seconds'
    const value = this.#number(name, fallback, unit)
    const ms = Math.round(value * unitMs)
    if (ms < 1) throw invalid(name, this.#env[name], `a number of ${unit} above 0`)
    return ms
  }

  count(name: string, fallback: number): number {
    const value = this.#number(name, fallback, 'entries')
    if (!Number.isSafeInteger(value) || value < 1) throw invalid(name, this.#env[name], 'a whole number of 1 or more')
    return value
  }

  flag(name: string, fallback: boolean): boolean {
    const given = this.#given(name)?.toLowerCase()
    if (given !== undefined && !Object.hasOwn(FLAGS, given)) throw invalid(name, given, 'true or false')
    const value = given === undefined ? fallback : FLAGS[given as keyof typeof FLAGS]
    this.#note(name, String(value))
    return value
  }

  configured(base: Contract, changes: Parameters<typeof defineContract>[1]): Configured {
    const settings = this.#settings
    try {
      return { contract: defineContract(base, changes), settings }
    } catch (error) {
      // Each value is possible by itself: it is their sum that is not, and a default may be a part of it.
      const namesOf = (wanted: Setting['source']): string =>
        settings.flatMap(({ name, value, source }) => (source === wanted ? [`${name} (${value})`] : [])).join(', ')
      const [given, defaults] = [namesOf('environment'), namesOf('default')]
      if (!(error instanceof OncekeyError) || given === '') throw error
      const beside = defaults === '' ? '' : `, beside the defaults of ${defaults}`
      throw new OncekeyError('config-invalid', `${error.message}; it comes from ${given}${beside}`, { cause: error })
    }
  }

  #number(name: string, fallback: number, unit: string): number {
    const given = this.#given(name)
    const value = given === undefined ? fallback : Number(given)
    if (!(Number.isFinite(value) && value >= 0)) throw invalid(name, given, `a number of ${unit}`)
    this.#note(name, `${value} ${unit}`)
    return value
  }

  /** An empty variable is one that was not set. */
  #given(name: string): string | undefined {
    return this.#env[name]?.trim() || undefined
  }

  #note(name: string, value: string): void {
    this.#settings.push({ name, value, source: this.#given(name) === undefined ? 'default' : 'environment' })
  }
}

const FLAGS = { true: true, '1': true, yes: true, on: true, false: false, '0': false, no: false, off: false } as const

function invalid(name: string, given: string | undefined, expected: string): OncekeyError {
  return new OncekeyError('config-invalid', `${name} is ${JSON.stringify(given)}, but must be ${expected}.`)
}
