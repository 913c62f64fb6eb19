import type { ContractChanges } from '../../contract-check.ts'
import type { Engine, EngineOptions } from '../../engine.ts'
import type { Operation, Result, Work } from '../../execution.ts'
import type { Store } from '../../store.ts'
import type { Invariant } from './invariants.ts'
import type { SimProcess } from './process.ts'
import type { StoreEnv } from './stage.ts'

/** A mistake made on purpose, to see that the judge finds it. The mistakes are those that published libraries make. */
export interface Planted {
  readonly name: string
  /** Any of these is a fair verdict: one mistake shows in several ways, and the seed decides which comes first. */
  readonly caughtBy: readonly Invariant[]
  /** Narrows the contracts to those under which the mistake can show. */
  readonly contract?: ContractChanges
  /** A store with the mistake in it. */
  readonly store?: (env: StoreEnv) => Store
  /** A mistake between the engine and a store that is right. */
  readonly link?: (store: Store) => Store
  readonly work?: (work: Work) => Work
  readonly engine?: Partial<EngineOptions>
  /** A mistake round the engine. */
  readonly execute?: (call: PlantedCall) => Promise<Result>
}

export interface PlantedCall {
  readonly engine: Engine
  readonly makeEngine: () => Engine
  readonly process: SimProcess
  readonly operation: Operation
  readonly work: Work
}
