import type { Engine } from '../../engine.ts'
import type { Result, Run } from '../../execution.ts'
import type { Call, History } from './history.ts'
import type { Network } from './network.ts'
import type { SimProcess } from './process.ts'
import type { Random } from './random.ts'
import type { StoreClock } from './scheduler.ts'

/** The world as those see it who act in it: clients, handlers, and what goes wrong. */
export interface Stage extends Network {
  readonly history: History
  readonly handlers: Random
  readonly clients: Random
  readonly chaos: Random
  readonly storeClock: StoreClock
  readonly slots: readonly Slot[]
  /** When the reconcile hook was asked on behalf of this run. */
  readonly lookups: WeakMap<Run, number>
  start(slot: Slot): void
  /** A place where a process is up. */
  anySlot(random: Random): Slot | undefined
  /** A request reaches the process, and `told` gets its result, unless the process dies first. */
  call(
    slot: Slot,
    client: string,
    key: string,
    fingerprint: string,
    probe: Call['probe'],
    told: (result: Result | undefined) => void,
  ): void
}

/** Where a process lives, and lives again after a crash. */
export interface Slot {
  readonly name: string
  lives: number
  process: SimProcess | undefined
  engine: Engine | undefined
  execute: Engine['execute'] | undefined
}

/** What a store in the simulator runs on. */
export interface StoreEnv {
  /** The store's own clock, in virtual time: expiry must be decided by it and by nothing else. */
  readonly clock: StoreClock
  /** The clock of the process that asks. Only a store with a bug would look at it. */
  readonly callerNow: () => number
}
