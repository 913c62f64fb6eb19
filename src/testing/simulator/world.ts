import { Engine, type EngineOptions } from '../../engine.ts'
import type { Result, Run, Work } from '../../execution.ts'
import type { Store } from '../../store.ts'
import { planFaults } from './chaos.ts'
import { PROBE_MS_MAX, REST_MS, startClient, startProbe } from './clients.ts'
import { type Call, type Coverage, type History, noCoverage, type Sight } from './history.ts'
import type { Planted } from './mistake.ts'
import { Link } from './network.ts'
import { ACTIVE_MS, HOP_MS_MAX, makePlan, type Plan } from './plan.ts'
import { SimProcess } from './process.ts'
import { Random } from './random.ts'
import { Scheduler, StoreClock } from './scheduler.ts'
import type { Slot, Stage, StoreEnv } from './stage.ts'
import { HANDLER_MS_MAX, lookUp, makeWork } from './workload.ts'

/** One schedule: a few processes, their clients, one store, and all that goes wrong between them. */
export class World implements Stage {
  readonly seed: number
  readonly plan: Plan
  readonly scheduler: Scheduler
  readonly random: Random
  readonly handlers: Random
  readonly history: History
  readonly coverage: Coverage = noCoverage()
  readonly store: Store
  readonly lookups: WeakMap<Run, number> = new WeakMap()
  readonly lines: string[] | undefined
  isFaulty = true
  outage: Stage['outage'] = 'none'
  caller: SimProcess | undefined
  readonly clients: Random
  readonly chaos: Random
  readonly storeClock: StoreClock
  readonly #planted: Planted | undefined
  readonly slots: Slot[] = []
  readonly #reads = new Map<string, number[]>()
  readonly #idle = new Set<SimProcess>()
  #isAsking = false
  #tokens = 0

  constructor(options: WorldOptions) {
    const root = new Random(options.seed)
    this.seed = options.seed
    this.#planted = options.planted
    this.plan = makePlan(root.fork(1), options.planted?.contract)
    this.scheduler = new Scheduler(root.fork(2))
    this.random = root.fork(3)
    this.handlers = root.fork(4)
    this.clients = root.fork(5)
    this.chaos = root.fork(6)
    this.lines = options.isTraced ? [] : undefined
    this.storeClock = new StoreClock(this.scheduler)
    const callerNow = () => (this.caller?.clock ?? this.storeClock).now()
    this.store = options.makeStore({ clock: this.storeClock, callerNow })
    this.history = {
      contract: this.plan.contract,
      storeMsMax: this.plan.storeMsMax,
      calls: [],
      runs: [],
      effects: [],
      answers: [],
      lookups: [],
      storeJumps: [],
      hasStragglers: this.plan.faults.latePercent > 0 || this.plan.faults.twicePercent > 0,
      readsAtOnceMax: 0,
      neverIdle: [],
      endMs: 0,
      isEndless: false,
    }
    this.#begin()
  }

  /** `false`: the schedule is over. */
  step(): boolean {
    if (this.scheduler.steps >= STEPS_MAX) {
      this.history.isEndless = true
      return false
    }
    if (this.scheduler.step()) return true
    if (this.#isAsking) {
      for (const { process } of this.slots)
        if (process && !this.#idle.has(process)) this.history.neverIdle.push(process.name)
      return false
    }
    // Nothing will happen any more: whatever an engine still has to do, it will never do.
    this.#isAsking = true
    this.history.endMs = this.scheduler.nowMs
    for (const { process, engine } of this.slots) if (process) engine?.idle().then(() => this.#idle.add(process))
    return true
  }

  see(sight: Sight): void {
    this.coverage[sight]++
  }

  trace(line: () => string): void {
    this.lines?.push(`${String(this.scheduler.nowMs).padStart(7)}  ${line()}`)
  }

  readStarted(process: SimProcess, id: string): void {
    this.see('waited')
    const place = `${process.name} ${id}`
    const recent = (this.#reads.get(place) ?? []).filter((ms) => ms > this.scheduler.nowMs - ROUND_TRIP_MS_MAX)
    recent.push(this.scheduler.nowMs)
    this.#reads.set(place, recent)
    this.history.readsAtOnceMax = Math.max(this.history.readsAtOnceMax, recent.length)
  }

  #begin(): void {
    const { plan } = this
    if (plan.link === 'direct') this.see('direct-store')
    for (let index = 0; index < plan.processes; index++) {
      this.slots.push({ name: `p${index + 1}`, lives: 0, process: undefined, engine: undefined, execute: undefined })
    }
    for (const slot of this.slots) this.start(slot)
    for (let index = 0; index < plan.clients; index++) {
      const startMs = this.clients.between(0, index === 0 ? 50 : ACTIVE_MS / 2)
      this.scheduler.at(startMs, () => startClient(this, `c${index + 1}`))
    }
    planFaults(this)
    for (let index = 0; index < plan.keys; index++) {
      const key = `k${index + 1}`
      this.scheduler.at(REST_MS, () => startProbe(this, key, 'soon', this.scheduler.nowMs))
      this.scheduler.at(this.#lateMs(), () => startProbe(this, key, 'late', this.scheduler.nowMs))
    }
  }

  /** When every record that any run can have left is gone. */
  #lateMs(): number {
    const { ttl, lease } = this.plan.contract
    const longestMs = Math.max(ttl.committedMs, ttl.rejectedMs, ttl.unknownMs) + ttl.expiredMs
    return REST_MS + PROBE_MS_MAX + HANDLER_MS_MAX + 4 * lease.ms + longestMs
  }

  start(slot: Slot): void {
    slot.lives++
    const name = slot.lives === 1 ? slot.name : `${slot.name}.${slot.lives}`
    const process = new SimProcess(this.scheduler, name, this.chaos.between(-MINUTE_MS, MINUTE_MS))
    slot.process = process
    const makeEngine = () => {
      const link = new Link(this, process)
      const options: EngineOptions = {
        store: this.#planted?.link?.(link) ?? link,
        contract: this.plan.contract,
        storeMsMax: this.plan.storeMsMax,
        clock: process.clock,
        newToken: () => `t${++this.#tokens}`,
        ...(this.plan.contract.crash === 'reconcile' && { reconcile: (run: Run) => lookUp(this, process, run) }),
      }
      return new Engine({ ...options, ...this.#planted?.engine })
    }
    const engine = makeEngine()
    slot.engine = engine
    const execute = this.#planted?.execute
    slot.execute = (operation, work) =>
      execute ? execute({ engine, makeEngine, process, operation, work }) : engine.execute(operation, work)
  }

  anySlot(random: Random): Slot | undefined {
    const up = this.slots.filter(({ process }) => process)
    return up[random.between(0, up.length - 1)]
  }

  /** A request reaches the process, and `told` gets its result, unless the process dies first. */
  call(
    slot: Slot,
    client: string,
    key: string,
    fingerprint: string,
    probe: Call['probe'],
    told: (result: Result | undefined) => void,
  ): void {
    const { process, execute } = slot
    if (!process || !execute) {
      told(undefined)
      return
    }
    process.at(0, () => {
      const call = this.#receive(process, client, key, fingerprint, probe)
      const done = (result: Result | { kind: 'threw' }) => {
        call.result = result
        call.endedMs = this.scheduler.nowMs
        call.disturbedAfterMs = process.disturbedMs
        this.trace(() => `${process.name} → ${client}: call ${call.number} is told: ${describeResult(result)}`)
        this.#seeResult(result)
        told(result.kind === 'threw' ? undefined : result)
      }
      const work: Work = makeWork(this, call, process)
      // The key carries the fingerprint, for the hook; what identifies the operation is its id.
      const operation = { id: key, key: `${key}/${fingerprint}`, fingerprint }
      execute(operation, this.#planted?.work?.(work) ?? work).then(done, () => done({ kind: 'threw' }))
    })
  }

  #receive(process: SimProcess, client: string, key: string, fingerprint: string, probe: Call['probe']): Call {
    const { calls } = this.history
    const call: Call = {
      number: calls.length + 1,
      client,
      key,
      fingerprint,
      process,
      sentMs: this.scheduler.nowMs,
      probe,
      disturbedBeforeMs: process.disturbedMs,
      disturbedAfterMs: 0,
      run: undefined,
      result: undefined,
      endedMs: undefined,
    }
    calls.push(call)
    this.trace(() => `${client} → ${process.name}: call ${call.number}, ${key}/${fingerprint}`)
    return call
  }

  #seeResult(result: Result | { kind: 'threw' }): void {
    if (result.kind === 'threw') return
    if (result.kind === 'refused') {
      const { code } = result.refusal
      if (code === 'key-conflict') this.see('conflict')
      else if (code in this.coverage) this.see(code as Sight)
      return
    }
    this.see(result.kind)
    if (result.kind !== 'executed') return
    this.see(result.record === 'unknown' ? 'left-unknown' : result.record)
    if (result.record === 'unrecorded' && this.plan.contract.storeFailure === 'open') this.see('unrecorded-open')
  }
}

export interface WorldOptions {
  readonly seed: number
  readonly makeStore: (env: StoreEnv) => Store
  readonly planted?: Planted | undefined
  readonly isTraced?: boolean
}

function describeResult(result: Result | { kind: 'threw' }): string {
  switch (result.kind) {
    case 'threw':
      return 'the handler threw'
    case 'executed':
      return `executed, ${result.record}`
    case 'replayed':
      return `replayed ${result.answer.status} of run ${result.answer.headers[0]?.[1]}`
    case 'refused':
      return `refused, ${result.refusal.code}`
  }
}

const MINUTE_MS = 60_000
const ROUND_TRIP_MS_MAX = 2 * HOP_MS_MAX
const STEPS_MAX = 50_000
