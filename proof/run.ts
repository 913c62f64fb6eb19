import { parseArgs } from 'node:util'
import type { Store } from '../src/store.ts'
import { memoryStore } from '../src/stores/memory.ts'
import type { StoreEnv } from '../src/testing/simulator/index.ts'
import { INVARIANTS, PLANTED, SIGHTS, simulate } from '../src/testing/simulator/index.ts'

const SCHEDULES_DEFAULT = 10_000

const HELP = `Proves the engine right, schedule by schedule, in virtual time.

  npm run proof -- [--schedules N] [--seed S] [--store model|memory] [--trace] [--planted]

  --schedules N   how many schedules to run (default ${SCHEDULES_DEFAULT})
  --seed S        the seed of the first one; the others follow it (default 1)
  --store NAME    model: the reference store, behind a network that loses, delays and doubles messages (default)
                  memory: the real memory store, behind the same network
  --trace         print everything that happens in the schedule with seed S, in order
  --planted       make each known mistake on purpose, and show how soon it is found
  --help          this text

Exit code 0: every schedule held. 1: one did not; its seed and its whole story are printed, and the same seed gives the
same story again. 2: the arguments make no sense.`

const PLANTED_SCHEDULES_MAX = 2_000
const BAR_WIDTH = 30
const PROGRESS_EVERY_MS = 100

const STORES: Readonly<Record<string, ((env: StoreEnv) => Store) | undefined>> = {
  model: undefined,
  memory: ({ clock }) => memoryStore({ clock }),
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      schedules: { type: 'string', default: String(SCHEDULES_DEFAULT) },
      seed: { type: 'string', default: '1' },
      store: { type: 'string', default: 'model' },
      trace: { type: 'boolean', default: false },
      planted: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  })
  if (values.help) {
    console.log(HELP)
    return 0
  }
  const schedules = wholeNumber('--schedules', values.schedules, 1)
  const seed = wholeNumber('--seed', values.seed, 0)
  if (!Object.hasOwn(STORES, values.store)) {
    throw new RangeError(`--store is "${values.store}"; the stores here are ${Object.keys(STORES).join(' and ')}`)
  }
  if (values.planted) return provePlanted(seed)
  return prove(schedules, seed, values.store, values.trace)
}

async function prove(schedules: number, seed: number, storeName: string, isTraced: boolean): Promise<number> {
  const startedMs = performance.now()
  const store = STORES[storeName]
  const progress = progressBar(schedules)
  const report = await simulate({
    seed,
    schedules: isTraced ? 1 : schedules,
    ...(store && { store }),
    ...(!isTraced && { onProgress: progress.show }),
    ...(isTraced && { onStory: (story: string) => console.log(story) }),
  })
  progress.clear()
  const seconds = (performance.now() - startedMs) / 1_000
  const { failure } = report
  if (failure) {
    if (!isTraced) console.log(failure.story)
    for (const invariant of new Set(failure.violations.map((violation) => violation.invariant))) {
      console.error(`\n${invariant}: ${INVARIANTS[invariant]}.`)
    }
    const option = storeName === 'model' ? '' : ` --store ${storeName}`
    console.error(`\nFAILED at seed ${failure.seed}, schedule ${report.schedules} of ${schedules}. To see it again:`)
    console.error(`  npm run proof -- --schedules 1 --seed ${failure.seed}${option}`)
    return 1
  }
  if (isTraced) return 0
  const rate = Math.round(report.schedules / seconds)
  console.log(
    `${report.schedules} schedules held on the ${storeName} store: ${report.steps} events, ${rate} schedules/s`,
  )
  console.log(`seeds ${seed} to ${seed + report.schedules - 1}; ${Object.keys(INVARIANTS).length} invariants\n`)
  for (const sight of SIGHTS) console.log(`  ${sight.padEnd(20)} ${String(report.coverage[sight]).padStart(10)}`)
  return 0
}

async function provePlanted(seed: number): Promise<number> {
  let missed = 0
  console.log(`${'planted bug'.padEnd(56)} schedules  caught by`)
  for (const planted of PLANTED) {
    const { failure, schedules } = await simulate({ seed, schedules: PLANTED_SCHEDULES_MAX, planted })
    const names = [...new Set(failure?.violations.map(({ invariant }) => invariant))]
    if (!failure) missed++
    const count = failure ? String(schedules) : 'none'
    console.log(`${planted.name.padEnd(56)} ${count.padStart(9)}  ${names.join(', ') || 'NOT CAUGHT'}`)
  }
  return missed === 0 ? 0 : 1
}

function progressBar(total: number): { show: (done: number) => void; clear: () => void } {
  let shownMs = 0
  const isTerminal = process.stderr.isTTY
  return {
    show: (done) => {
      const nowMs = performance.now()
      if (!isTerminal || (nowMs - shownMs < PROGRESS_EVERY_MS && done < total)) return
      shownMs = nowMs
      const filled = Math.round((done / total) * BAR_WIDTH)
      process.stderr.write(`\r[${'#'.repeat(filled)}${'.'.repeat(BAR_WIDTH - filled)}] ${done}/${total} schedules`)
    },
    clear: () => {
      if (isTerminal) process.stderr.write('\r\x1b[K')
    },
  }
}

function wholeNumber(option: string, text: string, least: number): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < least) {
    throw new RangeError(`${option} is "${text}", but must be a whole number of at least ${least}`)
  }
  return value
}

try {
  process.exitCode = await main()
} catch (error) {
  const isUsage = error instanceof RangeError || (error instanceof TypeError && 'code' in error)
  if (!isUsage) throw error
  console.error(`${error.message}\n\n${HELP}`)
  process.exitCode = 2
}
