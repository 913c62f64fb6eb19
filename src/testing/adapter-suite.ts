import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { answerCases } from './adapter-cases/answers.ts'
import { duplicateCases } from './adapter-cases/duplicates.ts'
import { failureCases } from './adapter-cases/failures.ts'
import { nodeAnswerCases } from './adapter-cases/node-answers.ts'
import { requestCases } from './adapter-cases/requests.ts'
import { Bench, type Case } from './adapter-cases/site.ts'
import type { AdapterUnderTest } from './adapter-cases/subject.ts'
import type { SuiteRunner } from './store-suite.ts'

export type {
  AdapterServer,
  AdapterSetup,
  AdapterSuiteOptions,
  AdapterUnderTest,
  FetchAdapterUnderTest,
  FetchHandle,
  NodeAdapterUnderTest,
  NodeHandle,
} from './adapter-cases/subject.ts'
export type { SuiteRunner } from './store-suite.ts'

/**
 * What every adapter must do, asked over real sockets by a client that sees every byte:
 *
 *     adapterSuite({ describe, it, skip: it.skip }, { name: 'my-framework', flavour: 'node', thrown: 'kept', serve })
 *
 * Each case starts a server of its own behind the adapter and counts the runs of its handler. No case sleeps: it waits
 * for what the server, the store or the client has seen. The store is `memoryStore()` unless another is given.
 */
export function adapterSuite(
  runner: SuiteRunner,
  adapter: AdapterUnderTest,
  options: {
    readonly makeStore?: () => Store
    /** Leaves out what it says no to: for a store that is slow to make, when another run asks everything. */
    readonly includes?: (name: string) => boolean
  } = {},
): void {
  const { makeStore = () => memoryStore(), includes = () => true } = options
  checkSkips(adapter)
  for (const [chapter, all] of CHAPTERS) {
    const fits = ({ flavour }: Case): boolean => flavour === undefined || flavour === adapter.flavour
    const cases = all.filter((one) => fits(one) && includes(one.name))
    if (cases.length === 0) continue
    runner.describe(chapter, () => {
      for (const one of cases) {
        const reason = adapter.skips?.[one.name]
        if (reason !== undefined) skip(runner, `${one.name} (left out: ${reason})`)
        else runner.it(one.name, () => runCase(one, adapter, makeStore))
      }
    })
  }
}

const CHAPTERS: ReadonlyArray<readonly [chapter: string, cases: readonly Case[]]> = [
  ['answers', answerCases],
  ['answers at the level of node:http', nodeAnswerCases],
  ['requests', requestCases],
  ['duplicates', duplicateCases],
  ['failures', failureCases],
]

/** A reason for a case that does not exist hides one that was renamed. */
function checkSkips({ name, skips = {} }: AdapterUnderTest): void {
  const known = new Set(CHAPTERS.flatMap(([, cases]) => cases.map((one) => one.name)))
  for (const skipped of Object.keys(skips)) {
    if (!known.has(skipped)) throw new Error(`${name}: skips names a case that the suite does not have: ${skipped}`)
  }
}

/** An adapter that never comes to an end fails its case, and does not hold up the others. */
const CASE_MS_MAX = 20_000

async function runCase(one: Case, adapter: AdapterUnderTest, makeStore: () => Store): Promise<void> {
  const bench = new Bench(adapter, makeStore)
  const late = Promise.withResolvers<never>()
  const timer = setTimeout(() => late.reject(new Error(`Not over after ${CASE_MS_MAX} ms: ${one.name}`)), CASE_MS_MAX)
  try {
    await Promise.race([one.run(bench), late.promise])
  } finally {
    clearTimeout(timer)
    await bench.close()
  }
}

function skip(runner: SuiteRunner, name: string): void {
  if (runner.skip) runner.skip(name)
  else runner.it(name, () => {})
}
