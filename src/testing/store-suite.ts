import type { Store } from '../store.ts'
import { answerCases } from './store-cases/answers.ts'
import { claimCases } from './store-cases/claims.ts'
import { closeCases } from './store-cases/closing.ts'
import { expiryCases } from './store-cases/expiry.ts'
import { fencingCases } from './store-cases/fencing.ts'
import type { Capability, StoreCase } from './store-cases/kit.ts'
import { Bench } from './store-cases/kit.ts'
import { operatorCases } from './store-cases/operators.ts'
import { retryCases } from './store-cases/retries.ts'
import { takeoverCases } from './store-cases/takeover.ts'
import { waitCases } from './store-cases/waiting.ts'

export type { Capability, StoreCase } from './store-cases/kit.ts'

/**
 * The guarantees of `src/store.ts` as test cases, for any store and any test runner:
 *
 *     import { describe, it } from 'node:test'
 *     storeSuite({ describe, it }, async () => {
 *       const clock = manualClock()
 *       const store = myStore({ clock })
 *       return { store, elapse: async (ms) => clock.advance(ms), dispose: () => store.close() }
 *     })
 */
export function storeSuite(
  runner: SuiteRunner,
  factory: () => Promise<StoreHarness>,
  options: StoreSuiteOptions = {},
): void {
  for (const [group, cases] of Object.entries(Object.groupBy(storeCases, (storeCase) => storeCase.group))) {
    runner.describe(group, () => {
      for (const storeCase of cases ?? []) {
        const reason = storeCase.needs && options.without?.[storeCase.needs]
        if (reason === undefined) runner.it(storeCase.name, () => runStoreCase(storeCase, factory, options))
        else skip(runner, `${storeCase.name} (skipped: ${reason})`)
      }
    })
  }
}

/** What the suite needs of a test runner: vitest, node:test and jest all have it. */
export interface SuiteRunner {
  describe(name: string, body: () => void): void
  it(name: string, body: () => Promise<void> | void): void
  /** Reports a case that is left out; without it the case is an empty test whose name gives the reason. */
  skip?(name: string): void
}

/** One fresh, empty store, made for one case. */
export interface StoreHarness {
  readonly store: Store
  /** Another handle on the same records, as another process would have; without it, the same store serves twice. */
  another?(): Promise<Store>
  /** Lets this much time pass on the store's clock: an injected clock moves, a real server is waited for. */
  elapse(ms: number): Promise<void>
  /** Called once after the case, also when it failed; closes every handle that was given out. */
  dispose(): Promise<void>
}

export interface StoreSuiteOptions {
  /** What this store or its harness cannot show, each with the reason in words. The cases are reported as skipped. */
  readonly without?: { readonly [capability in Capability]?: string }
  /**
   * The suite's unit of time: its leases and lifetimes are a few ticks. On a real clock a dozen calls must surely fit
   * into one tick. Default 1,000.
   */
  readonly tickMs?: number
  /**
   * For real clocks, which do not stand still while a busy machine keeps a case waiting. A case that failed counts only
   * when the clock went as the case says; otherwise it runs again with ticks twice as long, up to this. Default `tickMs`.
   */
  readonly tickMsMax?: number
  /** How long a promise that must resolve may take before the case fails instead of hanging. Default 30,000. */
  readonly patienceMs?: number
}

/** Every case of the suite, in its order. */
export const storeCases: readonly StoreCase[] = [
  ...claimCases,
  ...takeoverCases,
  ...fencingCases,
  ...retryCases,
  ...expiryCases,
  ...answerCases,
  ...operatorCases,
  ...waitCases,
  ...closeCases,
]

/** Runs one case on a store of its own. Rejects with what the case found wrong. */
export async function runStoreCase(
  storeCase: StoreCase,
  factory: () => Promise<StoreHarness>,
  options: StoreSuiteOptions = {},
): Promise<void> {
  const { tickMs = TICK_MS_DEFAULT, patienceMs = PATIENCE_MS_DEFAULT } = options
  const tickMsMax = options.tickMsMax ?? tickMs
  for (let lengthMs = tickMs; ; lengthMs *= 2) {
    const verdict = await judge(storeCase, await factory(), lengthMs, patienceMs)
    if (verdict === 'kept') return
    const wasSlow = verdict.unplannedMs > lengthMs / UNPLANNED_PART_MAX
    if (!wasSlow || lengthMs * 2 > tickMsMax) throw verdict.error
  }
}

/** `unplannedMs`: the time that passed beyond what the case let elapse. */
async function judge(
  storeCase: StoreCase,
  harness: StoreHarness,
  tickMs: number,
  patienceMs: number,
): Promise<'kept' | { readonly error: unknown; readonly unplannedMs: number }> {
  const startedAt = performance.now()
  let plannedMs = 0
  const elapse = (ms: number): Promise<void> => {
    plannedMs += ms
    return harness.elapse(ms)
  }
  const another = async (): Promise<Store> => (await harness.another?.()) ?? harness.store
  try {
    await storeCase.run(new Bench({ store: harness.store, another, elapse, tickMs, patienceMs }))
    return 'kept'
  } catch (error) {
    return { error, unplannedMs: performance.now() - startedAt - plannedMs }
  } finally {
    await harness.dispose()
  }
}

const TICK_MS_DEFAULT = 1_000
const PATIENCE_MS_DEFAULT = 30_000
/** The cases leave a tick between what they do and what they expect: half of it is still theirs. */
const UNPLANNED_PART_MAX = 2

function skip(runner: SuiteRunner, name: string): void {
  if (runner.skip) runner.skip(name)
  else runner.it(name, () => {})
}
