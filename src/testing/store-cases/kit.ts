import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { OncekeyError } from '../../error.ts'
import type {
  Answer,
  Awaitable,
  Claim,
  ClaimRequest,
  RecordState,
  Settlement,
  Store,
  StoredRecord,
} from '../../store.ts'

/** One guarantee, shown on a store of its own. Rejects when the store does not keep it. */
export interface StoreCase {
  readonly group: string
  readonly name: string
  /** Skipped, with a reason, where the store or its harness cannot show it. */
  readonly needs?: Capability
  run(bench: Bench): Promise<void>
}

/**
 * `exact-clock`: time stands still but for `elapse`. `push`: the store has `waitFor`. `sweep`: rows are freed by
 * `sweep`, and not by the server on its own.
 */
export type Capability = 'exact-clock' | 'push' | 'sweep'

/** The cases of one chapter, as a table of name and body; a body that needs a capability stands behind it. */
export function chapter(group: string, bodies: Record<string, Body | readonly [Capability, Body]>): StoreCase[] {
  return Object.entries(bodies).map(([name, entry]) => {
    if (typeof entry === 'function') return { group, name, run: entry }
    const [needs, run] = entry
    return { group, name, needs, run }
  })
}

type Body = (bench: Bench) => Promise<void>

interface BenchParts {
  readonly store: Store
  readonly another: () => Promise<Store>
  readonly elapse: (ms: number) => Promise<void>
  readonly tickMs: number
  readonly patienceMs: number
}

/** A store on the workbench: verbs with sensible defaults, and checks that read like the guarantee. */
export class Bench {
  readonly store: Store
  readonly tickMs: number
  readonly #another: () => Promise<Store>
  #other: Promise<Store> | undefined
  readonly #elapse: (ms: number) => Promise<void>
  readonly #patienceMs: number

  constructor(parts: BenchParts) {
    this.store = parts.store
    this.#another = parts.another
    this.tickMs = parts.tickMs
    this.#elapse = parts.elapse
    this.#patienceMs = parts.patienceMs
  }

  /** A lease of 2 ticks, remembered as unknown for 4 more; record `a`, token `owner`, fingerprint `print`. */
  request(over: Partial<ClaimRequest> = {}): ClaimRequest {
    return {
      id: ID,
      token: 'owner',
      fingerprint: 'print',
      leaseMs: 2 * this.tickMs,
      unknownTtlMs: 4 * this.tickMs,
      takeover: false,
      ...over,
    }
  }

  /** Kept for 2 ticks, and the key remembered for 2 more. */
  settlement(over: Partial<Settlement> = {}): Settlement {
    return {
      outcome: 'committed',
      answer: answerOf('first'),
      ttlMs: 2 * this.tickMs,
      expiredTtlMs: 2 * this.tickMs,
      ...over,
    }
  }

  async claim(over: Partial<ClaimRequest> = {}, store: Store = this.store): Promise<Claim> {
    return store.claim(this.request(over))
  }

  async claimed(over: Partial<ClaimRequest> = {}, attempt = 1): Promise<void> {
    assert.deepEqual(await this.claim(over), { state: 'acquired', attempt })
  }

  async settle(token = 'owner', over: Partial<Settlement> = {}, store: Store = this.store): Promise<boolean> {
    return store.settle(ID, token, this.settlement(over))
  }

  async settled(over: Partial<Settlement> = {}): Promise<void> {
    assert.equal(await this.settle('owner', over), true)
  }

  /** Brings record `a` into the state, with fingerprint `print` and token `owner`. */
  async given(state: RecordState['state']): Promise<void> {
    await this.claimed()
    if (state === 'unknown') await this.elapse(2)
    if (state === 'settled' || state === 'expired') await this.settled()
    if (state === 'expired') await this.elapse(2)
    await this.isIn(state)
  }

  /** The record as it is read, which must be in this state. */
  async isIn<S extends RecordState['state']>(
    state: S,
    id: string = ID,
  ): Promise<StoredRecord & Extract<RecordState, { state: S }>> {
    const record = await this.store.read(id)
    assert.equal(record?.state ?? 'absent', state)
    return record as StoredRecord & Extract<RecordState, { state: S }>
  }

  async isAbsent(id: string = ID): Promise<void> {
    assert.equal((await this.store.read(id))?.state ?? 'absent', 'absent')
  }

  /** What must not change: everything in the record but the time that is left. */
  async lasting(id: string = ID): Promise<unknown> {
    const record = await this.store.read(id)
    assert.ok(record, 'the record is absent')
    const { fingerprint, state, attempt, createdAt, goneAt, labels } = record
    const answer = record.state === 'settled' ? plain(record.answer) : undefined
    return { id: record.id, fingerprint, state, attempt, createdAt, goneAt, labels: { ...labels }, answer }
  }

  /** Another handle on the same records, or the same store where there can be no other. Opened when first asked for. */
  another(): Promise<Store> {
    this.#other ??= this.#another()
    return this.#other
  }

  async elapse(ticks: number): Promise<void> {
    await this.#elapse(ticks * this.tickMs)
  }

  async elapseMs(ms: number): Promise<void> {
    await this.#elapse(ms)
  }

  /** Fails rather than hangs. */
  async soon<T>(promise: Promise<T>, what: string): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`still not so: ${what}`)), this.#patienceMs)
    })
    return Promise.race([promise, late]).finally(() => clearTimeout(timer))
  }
}

/** As the engine makes them: 64 hex characters. */
export function idOf(name: string | number): string {
  return createHash('sha256').update(String(name)).digest('hex')
}

export const ID: string = idOf('a')

export function answerOf(text: string, status = 201): Answer {
  return { status, headers: [['content-type', 'text/plain']], body: new TextEncoder().encode(text) }
}

/** An answer in a form that compares by value, whatever kind of byte array or header list a store gives back. */
export function plain(answer: Answer): unknown {
  const headers = answer.headers.map(([name, value]) => [name, value])
  const body = answer.body === null ? null : Buffer.from(answer.body).toString('hex')
  return { status: answer.status, headers, body }
}

/** The answer that a claim or a read gave, which must be a settled one. */
export function answerIn(state: Claim | StoredRecord | undefined): Answer {
  assert.equal(state?.state, 'settled')
  return (state as Extract<RecordState, { state: 'settled' }>).answer
}

/** Starts all of them in one turn, and waits for all. */
export function together<T>(count: number, start: (index: number) => Awaitable<T>): Promise<T[]> {
  return Promise.all(Array.from({ length: count }, async (_, index) => start(index)))
}

export function countOf(claims: readonly Claim[], state: Claim['state']): number {
  return claims.filter((claim) => claim.state === state).length
}

/** The verb throws, or rejects with, an `OncekeyError` of this code. */
export async function refuses(code: OncekeyError['code'], verb: () => unknown): Promise<void> {
  await assert.rejects(
    async () => verb(),
    (error: unknown) => {
      assert.ok(error instanceof OncekeyError, `an OncekeyError was expected, not ${String(error)}`)
      assert.equal(error.code, code)
      return true
    },
  )
}

export const STATES: readonly RecordState['state'][] = ['running', 'unknown', 'settled', 'expired']

/** Changes something that a store gave out. It may be frozen: a refusal, too, keeps the store's own copy whole. */
export function tryTo(change: () => unknown): void {
  try {
    change()
  } catch (error) {
    assert.ok(error instanceof TypeError, `a TypeError was expected, not ${String(error)}`)
  }
}
