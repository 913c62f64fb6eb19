import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { OncekeyError } from '../error.ts'
import type { EventType, OncekeyEvent } from '../events.ts'
import type { Store } from '../store.ts'
import { Chains, chainOf } from './meter/chains.ts'
import {
  type Executed,
  type MeterOptions,
  type MeterSettings,
  type MeterTrouble,
  meterSettings,
} from './meter/options.ts'

export type { Executed, MeterOptions, MeterTrouble } from './meter/options.ts'

export interface MeterStats {
  /** Operations that this process has brought to the store, whether or not another one was faster. */
  readonly booked: number
  readonly waiting: number
  /** Not counted: overflow, no tenant, left behind. */
  readonly lost: number
  readonly storeFailures: number
}

export interface Meter {
  /** How many operations of this tenant have run, as the store knows it. Does not walk over them. */
  count(tenant: string): Promise<number>
  /** Counts an operation that no event tells of, such as one that ran without a key. The same id is counted once. */
  add(id: string, tenant: string): void
  /**
   * Counts what is settled in a store of idempotency records and was not counted, because a process ended between the
   * answer and the count. Run it at start, and as often as you like. Returns how many records it has looked at.
   */
  catchUp(store: Store): Promise<number>
  stats(): MeterStats
  /** Resolves when nothing waits; while the store is away that is not before it is back. */
  idle(): Promise<void>
  /** Stops listening, and counts what waits if the store is there. The store stays open: it is the caller's. */
  close(): Promise<void>
}

/**
 * Counts executed operations for each tenant, exactly once, from the engine's events.
 *
 * The guarantee: an operation id that was reported is in the count of its tenant once, however many retries, takeovers,
 * unprotected runs and processes report it, and wherever any of them was killed. It is as durable as the store that the
 * meter was given. An operation that was not reported to the end, because its process died or its queue was full, is
 * made good by its next event (a replay is one) or by `catchUp`, as long as its record is there. How it works, and why it
 * is exact, stands in `meter/chains.ts`.
 *
 * Counting is behind the answer: no request ever waits for it.
 */
export function createMeter(options: MeterOptions): Meter {
  return new StoreMeter(meterSettings(options))
}

class StoreMeter implements Meter {
  readonly #settings: MeterSettings
  readonly #chains: Chains
  /** What waits, by chain: one chain is served by one worker, in the order of arrival. */
  readonly #queues = new Map<string, Set<string>>()
  readonly #served = new Map<string, Promise<void>>()
  /** Counted lately, and when: a storm of replays costs the store nothing. */
  readonly #recent = new Map<string, number>()
  readonly #watchers = new Set<Watcher>()
  readonly #warned = new Set<MeterTrouble['kind']>()
  readonly #stats = { booked: 0, waiting: 0, lost: 0, storeFailures: 0 }
  #retryMs = RETRY_MS_MIN
  #cancelRetry: (() => void) | undefined
  #closing: Promise<void> | undefined
  #isClosed = false

  constructor(settings: MeterSettings) {
    this.#settings = settings
    this.#chains = new Chains(settings.store, settings)
    subscribe('oncekey', this.#listener)
  }

  readonly #listener = (message: unknown): void => {
    const { type, id, status, labels = {}, contract } = message as OncekeyEvent
    if (!EXECUTED.has(type) || status === undefined) return
    if (this.#settings.contract !== undefined && this.#settings.contract !== contract) return
    this.#take({ id, status, labels })
  }

  #take(executed: Executed): void {
    const { tenant, counts } = this.#settings
    try {
      if (!counts(executed)) return
      const name = tenant(executed)
      if (typeof name === 'string' && name !== '') return this.#enqueue(executed.id, name)
      this.#lose(1, { kind: 'no-tenant', id: executed.id })
    } catch (error) {
      // A listener that throws would end the process.
      this.#lose(1, { kind: 'no-tenant', id: executed.id, error })
    }
  }

  add(id: string, tenant: string): void {
    for (const [field, value] of Object.entries({ id, tenant })) {
      if (typeof value === 'string' && value !== '') continue
      throw new OncekeyError(
        'config-invalid',
        `${field} is ${JSON.stringify(value)}; add() needs a string that is not empty`,
      )
    }
    if (this.#closing) throw closed()
    this.#enqueue(id, tenant)
  }

  #enqueue(id: string, tenant: string): void {
    const countedMs = this.#recent.get(id)
    if (countedMs !== undefined && this.#settings.clock.now() - countedMs < this.#settings.rememberMs) return
    const chain = chainOf(tenant, id)
    const queue = this.#queues.get(chain) ?? new Set<string>()
    if (queue.has(id)) return
    if (this.#stats.waiting >= this.#settings.waitingMax) return this.#lose(1, { kind: 'overflow', id, tenant })
    this.#queues.set(chain, queue.add(id))
    this.#stats.waiting++
    this.#serve()
  }

  /** Puts a worker to every chain with something in it, a few at once. */
  #serve(): void {
    if (this.#cancelRetry) return
    for (const [chain, queue] of this.#queues) {
      if (this.#served.size >= WORKERS_MAX) return
      if (this.#served.has(chain)) continue
      const work = this.#work(chain, queue).then(
        () => this.#end(chain),
        (error: unknown) => {
          this.#served.delete(chain)
          this.#pause(error)
        },
      )
      this.#served.set(chain, work)
    }
  }

  async #work(chain: string, queue: Set<string>): Promise<void> {
    for (const id of queue) {
      if (this.#cancelRetry) return
      await this.#chains.book(id, chain)
      queue.delete(id)
      this.#stats.waiting--
      this.#stats.booked++
      this.#retryMs = RETRY_MS_MIN
      this.#remember(id)
    }
  }

  #end(chain: string): void {
    this.#served.delete(chain)
    if (this.#queues.get(chain)?.size === 0) this.#queues.delete(chain)
    this.#serve()
    if (this.#stats.waiting === 0) this.#notify('done')
  }

  #remember(id: string): void {
    this.#recent.delete(id)
    this.#recent.set(id, this.#settings.clock.now())
    const [oldest] = this.#recent.keys()
    if (this.#recent.size > RECENT_MAX && oldest !== undefined) this.#recent.delete(oldest)
  }

  /** The store is away for all chains alike: nothing is asked of it until a while has passed. */
  #pause(error: unknown): void {
    this.#stats.storeFailures++
    if (!this.#cancelRetry) {
      if (this.#retryMs === RETRY_MS_MIN) this.#tell({ kind: 'store-failed', error })
      this.#cancelRetry = this.#settings.clock.schedule(this.#retryMs, () => this.#resume())
      this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX)
    }
    this.#notify('failed', error)
  }

  #resume(): void {
    this.#cancelRetry?.()
    this.#cancelRetry = undefined
    this.#serve()
  }

  async count(tenant: string): Promise<number> {
    return this.#chains.count(tenant)
  }

  async catchUp(store: Store): Promise<number> {
    const limit = Math.min(PAGE, this.#settings.waitingMax)
    let seen = 0
    let after: string | undefined
    for (;;) {
      if (this.#closing) throw closed()
      await this.#drained()
      const page = await store.list({ state: 'settled', limit, ...(after !== undefined && { after }) })
      for (const record of page) {
        if (record.state !== 'settled') continue
        this.#take({ id: record.id, status: record.answer.status, labels: record.labels })
      }
      seen += page.length
      after = page.at(-1)?.id
      if (after === undefined) return seen
    }
  }

  stats(): MeterStats {
    return { ...this.#stats }
  }

  idle(): Promise<void> {
    return this.#watch(false)
  }

  close(): Promise<void> {
    this.#closing ??= this.#finish()
    return this.#closing
  }

  async #finish(): Promise<void> {
    unsubscribe('oncekey', this.#listener)
    await this.#drained().catch(() => {})
    this.#cancelRetry?.()
    this.#cancelRetry = () => {}
    this.#isClosed = true
    // Nothing is asked of the store after this: it may be closed.
    await Promise.all(this.#served.values())
    const operations = this.#stats.waiting
    if (operations > 0) this.#lose(operations, { kind: 'left-behind', operations })
    this.#notify('closed', closed())
  }

  /** Resolves when nothing waits, rejects when the store fails now. */
  #drained(): Promise<void> {
    if (this.#cancelRetry && this.#stats.waiting > 0) queueMicrotask(() => this.#resume())
    return this.#watch(true)
  }

  #watch(endsByFailure: boolean): Promise<void> {
    if (this.#stats.waiting === 0) return Promise.resolve()
    if (this.#isClosed) return Promise.reject(closed())
    return new Promise((done, failed) => this.#watchers.add({ done, failed, endsByFailure }))
  }

  #notify(end: 'done' | 'failed' | 'closed', error?: unknown): void {
    for (const watcher of this.#watchers) {
      if (end === 'failed' && !watcher.endsByFailure) continue
      this.#watchers.delete(watcher)
      if (end === 'done') watcher.done()
      else watcher.failed(error)
    }
  }

  #lose(operations: number, trouble: MeterTrouble): void {
    this.#stats.lost += operations
    this.#tell(trouble)
  }

  #tell(trouble: MeterTrouble): void {
    try {
      if (this.#settings.onTrouble) return this.#settings.onTrouble(trouble)
    } catch (error) {
      // Counting goes on whatever the one who is told does.
      process.emitWarning(`onTrouble of the meter threw: ${error}`, { type: 'OncekeyMeter' })
    }
    if (this.#warned.has(trouble.kind)) return
    this.#warned.add(trouble.kind)
    const detail = 'error' in trouble ? String(trouble.error) : ''
    process.emitWarning(WARNINGS[trouble.kind], { type: 'OncekeyMeter', detail })
  }
}

interface Watcher {
  readonly done: () => void
  readonly failed: (error: unknown) => void
  readonly endsByFailure: boolean
}

/** `unrecorded` ran all the same; and a replay says that an earlier run, perhaps of a process that is gone, has. */
const EXECUTED: ReadonlySet<EventType> = new Set<EventType>(['kept', 'unrecorded', 'replayed'])

function closed(): OncekeyError {
  return new OncekeyError('store-closed', 'This meter was closed; what it has counted is kept. Make another.')
}

const WARNINGS: Readonly<Record<MeterTrouble['kind'], string>> = {
  'store-failed': 'The meter cannot reach its store. Counts wait in memory and are tried again.',
  overflow: 'More operations wait to be counted than waitingMax allows; some are not counted. Run catchUp() later.',
  'no-tenant': 'An operation ran, but tenant() named nobody; it is not counted. Does idempotency() have labels: true?',
  'left-behind': 'The meter was closed while its store was away; what waited is not counted. Run catchUp() at start.',
}

const RECENT_MAX = 10_000
const WORKERS_MAX = 64
const PAGE = 100
const RETRY_MS_MIN = 50
const RETRY_MS_MAX = 5_000
