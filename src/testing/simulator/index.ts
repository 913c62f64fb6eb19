import type { Store } from '../../store.ts'
import { type Coverage, noCoverage, SIGHTS } from './history.ts'
import type { Violation } from './invariants.ts'
import { judge } from './judge.ts'
import type { Planted } from './mistake.ts'
import { ModelStore } from './model-store.ts'
import { describePlan } from './plan.ts'
import { runSteps } from './scheduler.ts'
import type { StoreEnv } from './stage.ts'
import { World } from './world.ts'

export { type Coverage, SIGHTS, type Sight } from './history.ts'
export { INVARIANTS, type Invariant, type Violation } from './invariants.ts'
export type { Planted, PlantedCall } from './mistake.ts'
export { PLANTED } from './planted.ts'
export type { StoreEnv } from './stage.ts'

/**
 * Runs the engine through many schedules in virtual time. In each of them a seed decides how a few processes and clients
 * interleave, which messages are lost, late or doubled, who crashes, pauses or has a wrong clock, and when the store is
 * away. The judge looks only at what clients were told and at a log of external effects.
 *
 *     const report = await simulate({ seed: 1, schedules: 1000, store: ({ clock }) => memoryStore({ clock }) })
 *     if (report.failure) console.error(report.failure.story)
 *
 * Schedule n has the seed `seed + n`, and one seed is always the same schedule, to the last event. To put a store of your
 * own to the test, return a new and empty one for each schedule. It must take its time from the clock that it is given
 * and do no real I/O: virtual time does not wait for a disk. (`storeSuite` is for the stores that have one.) The store
 * is treated as durable: crashes take processes, and outages take the way to it, but never what it has acknowledged.
 */
export async function simulate(options: SimulateOptions): Promise<SimulationReport> {
  const { seed, schedules, onProgress, onStory } = options
  const coverage = noCoverage()
  let steps = 0
  for (let done = 0; done < schedules; done++) {
    const outcome = await runSchedule({ ...options, seed: seed + done, isTraced: onStory !== undefined })
    onStory?.(tell(outcome))
    steps += outcome.steps
    for (const sight of SIGHTS) coverage[sight] += outcome.coverage[sight]
    if (outcome.violations.length > 0) {
      const traced = await runSchedule({ ...options, seed: seed + done, isTraced: true })
      return { schedules: done + 1, steps, coverage, failure: { ...outcome, seed: seed + done, story: tell(traced) } }
    }
    onProgress?.(done + 1, steps)
  }
  return { schedules, steps, coverage, failure: undefined }
}

export interface SimulateOptions {
  /** The seed of the first schedule; the others follow it. A whole number. */
  readonly seed: number
  readonly schedules: number
  /** Default: the reference store. */
  readonly store?: (env: StoreEnv) => Store
  /** A mistake to make on purpose. */
  readonly planted?: Planted
  readonly onProgress?: (schedules: number, steps: number) => void
  /** Gets everything that happened in each schedule, whether or not it failed. */
  readonly onStory?: (story: string) => void
}

export interface SimulationReport {
  /** How many were run, the failing one included: the first failure ends it. */
  readonly schedules: number
  readonly steps: number
  readonly coverage: Coverage
  readonly failure: SimulationFailure | undefined
}

export interface SimulationFailure {
  readonly seed: number
  readonly violations: readonly Violation[]
  /** The contract, the faults, everything that happened in order, and what was wrong with it: for people. */
  readonly story: string
}

/** One schedule. The trace is the same whenever the seed and the store are. */
export async function runSchedule(options: ScheduleOptions): Promise<ScheduleOutcome> {
  const { seed, planted, isTraced = false } = options
  const makeStore = planted?.store ?? options.store ?? (({ clock }: StoreEnv) => new ModelStore(clock))
  const world = new World({ seed, planted, isTraced, makeStore })
  await runSteps(() => world.step())
  const { history, coverage, lines, plan, scheduler } = world
  return { seed, plan: describePlan(plan), violations: judge(history), coverage, steps: scheduler.steps, lines }
}

export interface ScheduleOptions {
  readonly seed: number
  readonly store?: (env: StoreEnv) => Store
  readonly planted?: Planted
  readonly isTraced?: boolean
}

export interface ScheduleOutcome {
  readonly seed: number
  readonly plan: string
  readonly violations: readonly Violation[]
  readonly coverage: Coverage
  readonly steps: number
  /** Only when it was asked for. */
  readonly lines: readonly string[] | undefined
}

function tell({ seed, plan, violations, lines }: ScheduleOutcome): string {
  const wrong = violations.map(({ invariant, text }) => `  ${invariant}: ${text}`)
  const verdict = wrong.length > 0 ? ['VIOLATED', ...wrong] : ['nothing is wrong with it']
  return [`seed      ${seed}`, plan, ...(lines ?? []), ...verdict].join('\n')
}
