import type { Awaitable, Claim, ClaimRequest, Settlement, Store, StoredRecord } from '../../store.ts'
import type { Sight } from './history.ts'
import { HOP_MS_MAX, LATE_MS_MAX, type Plan } from './plan.ts'
import type { SimProcess } from './process.ts'
import type { Random } from './random.ts'
import type { Scheduler } from './scheduler.ts'

/** The world that the messages between processes and store travel through. */
export interface Network {
  readonly scheduler: Scheduler
  readonly random: Random
  readonly plan: Plan
  readonly store: Store
  /** Whether messages are still lost and delayed. */
  isFaulty: boolean
  /** `errors`: the store refuses connections. `hangs`: it takes them and says nothing. */
  outage: 'none' | 'errors' | 'hangs'
  /** The process whose message the store is working on. */
  caller: SimProcess | undefined
  see(sight: Sight): void
  trace(line: () => string): void
  readStarted(process: SimProcess, id: string): void
}

/** What one process sees of the store: the same verbs, with a network in between. */
export class Link implements Store {
  readonly name = 'simulated'
  readonly #network: Network
  readonly #process: SimProcess
  readonly waitFor?: (id: string, signal: AbortSignal) => Promise<void>

  constructor(network: Network, process: SimProcess) {
    this.#network = network
    this.#process = process
    if (network.plan.push && network.store.waitFor) this.waitFor = (id, signal) => this.#waitFor(id, signal)
  }

  claim(request: ClaimRequest): Awaitable<Claim> {
    return this.#call(`claim ${request.token}`, (store) => store.claim(request))
  }

  settle(id: string, token: string, settlement: Settlement): Awaitable<boolean> {
    return this.#call(`settle ${token}`, (store) => store.settle(id, token, settlement), 'settle-refused')
  }

  release(id: string, token: string): Awaitable<boolean> {
    return this.#call(`release ${token}`, (store) => store.release(id, token), 'release-refused')
  }

  renew(id: string, token: string, leaseMs: number): Awaitable<boolean> {
    const label = leaseMs === 0 ? `give up ${token}` : `renew ${token}`
    return this.#call(label, (store) => store.renew(id, token, leaseMs), 'renew-refused')
  }

  read(id: string): Awaitable<StoredRecord | undefined> {
    this.#network.readStarted(this.#process, id)
    return this.#call(`read ${id}`, (store) => store.read(id))
  }

  list(): Awaitable<readonly StoredRecord[]> {
    return this.#call('list', (store) => store.list())
  }

  forget(id: string): Awaitable<boolean> {
    return this.#call(`forget ${id}`, (store) => store.forget(id))
  }

  redact(id: string): Awaitable<boolean> {
    return this.#call(`redact ${id}`, (store) => store.redact(id))
  }

  sweep(limit?: number): Awaitable<number> {
    return this.#call('sweep', (store) => store.sweep(limit))
  }

  close(): Promise<void> {
    return Promise.resolve()
  }

  #call<T>(label: string, run: (store: Store) => Awaitable<T>, onFalse?: Sight): Awaitable<T> {
    const network = this.#network
    if (network.plan.link === 'direct') return this.#callDirectly(label, run, onFalse)
    return new Promise<T>((resolve, reject) => {
      const fate = this.#fate()
      const who = `${this.#process.name} → store: ${label}`
      const arrive = (reply: (value: T) => void, fail: (text: string) => void) => {
        network.scheduler.at(fate.thereMs, () => this.#deliver(who, run, onFalse, reply, fail))
      }
      const fail = (text: string) => this.#process.at(this.#hopMs(), () => reject(new Error(text)))
      const reply = (value: T) => this.#process.at(fate.backMs, () => resolve(value))
      if (fate.kind !== 'ordinary')
        network.trace(() => `${who}: ${fate.kind}${fate.tellsCaller ? ', and the caller is told' : ''}`)
      if (fate.kind === 'request-lost') {
        if (fate.tellsCaller) fail('the connection was reset')
      } else if (fate.kind === 'reply-lost') {
        arrive(() => fate.tellsCaller && fail('the connection was reset'), fail)
      } else if (fate.kind === 'request-late' && fate.tellsCaller) {
        fail('the connection was reset')
        arrive(
          () => {},
          () => {},
        )
      } else {
        arrive(reply, fail)
      }
      if (fate.kind === 'request-twice') {
        const againMs = fate.thereMs + network.random.between(1, LATE_MS_MAX)
        network.scheduler.at(againMs, () =>
          this.#deliver(
            `${who} (again)`,
            run,
            onFalse,
            () => {},
            () => {},
          ),
        )
      }
    })
  }

  #callDirectly<T>(label: string, run: (store: Store) => Awaitable<T>, onFalse?: Sight): Awaitable<T> {
    const network = this.#network
    if (network.outage !== 'none') {
      network.see('store-down')
      this.#process.fault(0)
      throw new Error('the store is down')
    }
    network.caller = this.#process
    const value = run(network.store)
    network.trace(() => `${this.#process.name}: ${label} = ${JSON.stringify(value)}`)
    if (value === false && onFalse) network.see(onFalse)
    return value
  }

  #deliver<T>(
    who: string,
    run: (store: Store) => Awaitable<T>,
    onFalse: Sight | undefined,
    reply: (value: T) => void,
    fail: (text: string) => void,
  ): void {
    const network = this.#network
    if (network.outage !== 'none') {
      network.see('store-down')
      network.trace(() => `${who}: the store is down (${network.outage})`)
      this.#process.fault(network.plan.storeMsMax)
      if (network.outage === 'errors') fail('the store is down')
      return
    }
    network.caller = this.#process
    const settled = (value: T) => {
      network.trace(() => `${who} = ${brief(value)}`)
      if (value === false && onFalse) network.see(onFalse)
      reply(value)
    }
    try {
      const value = run(network.store)
      if (value instanceof Promise) value.then(settled, (error) => fail(String(error)))
      else settled(value)
    } catch (error) {
      fail(String(error))
    }
  }

  #waitFor(id: string, signal: AbortSignal): Promise<void> {
    const network = this.#network
    const { plan, store } = network
    return new Promise((resolve) => {
      signal.addEventListener('abort', () => resolve(), { once: true })
      if (plan.link === 'direct') {
        store.waitFor?.(id, signal).then(() => this.#process.at(0, resolve))
        return
      }
      const fate = this.#fate()
      if (fate.kind === 'request-lost') return
      network.scheduler.at(fate.thereMs, () => {
        if (network.outage !== 'none') return
        store.waitFor?.(id, signal).then(() => {
          if (fate.kind === 'reply-lost' || signal.aborted) return
          this.#process.at(fate.backMs, () => {
            network.see('woken-by-push')
            resolve()
          })
        })
      })
    })
  }

  /** What becomes of one message, drawn when it is sent. Whatever is not ordinary counts as a fault of this process. */
  #fate(): Fate {
    const { random, plan, isFaulty } = this.#network
    const { lostPercent, replyLostPercent, latePercent, twicePercent } = plan.faults
    const roll = random.between(0, 9_999) / 100
    const tellsCaller = random.chance(50)
    const ordinary: Fate = { kind: 'ordinary', thereMs: this.#hopMs(), backMs: this.#hopMs(), tellsCaller }
    if (this.#process.isCut) return this.#faulty({ ...ordinary, kind: 'request-lost' })
    if (!isFaulty) return ordinary
    let bar = lostPercent
    if (roll < bar) return this.#faulty({ ...ordinary, kind: 'request-lost' })
    bar += replyLostPercent
    if (roll < bar) return this.#faulty({ ...ordinary, kind: 'reply-lost' })
    bar += latePercent
    const lateMs = random.between(HOP_MS_MAX, LATE_MS_MAX)
    if (roll < bar && random.chance(50)) return this.#faulty({ ...ordinary, kind: 'request-late', thereMs: lateMs })
    if (roll < bar) return this.#faulty({ ...ordinary, kind: 'reply-late', backMs: lateMs })
    bar += twicePercent
    if (roll < bar) return this.#faulty({ ...ordinary, kind: 'request-twice' })
    return ordinary
  }

  #faulty(fate: Fate & { readonly kind: Sight }): Fate {
    this.#network.see(fate.kind)
    this.#process.fault(fate.kind === 'request-twice' ? 2 * LATE_MS_MAX : Math.max(fate.thereMs, fate.backMs))
    return fate
  }

  #hopMs(): number {
    return this.#network.random.between(1, HOP_MS_MAX)
  }
}

interface Fate {
  readonly kind: 'ordinary' | 'request-lost' | 'reply-lost' | 'request-late' | 'reply-late' | 'request-twice'
  readonly thereMs: number
  readonly backMs: number
  readonly tellsCaller: boolean
}

function brief(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value)
  const { answer, ...rest } = value as { answer?: { headers: unknown } }
  return JSON.stringify(answer ? { ...rest, headers: answer.headers } : rest)
}
