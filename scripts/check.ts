/** `npm test`: everything that must hold before a change may land, cheapest first. */
import { mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ROOT, run } from './run.ts'

const REPORT = join(ROOT, '.work/vitest.json')

const STEPS: ReadonlyArray<readonly [title: string, program: string, ...args: string[]]> = [
  ['Format and lint', 'biome', 'check', '--error-on-warnings', '.'],
  ['Build', 'node', 'scripts/build.ts'],
  ['Types', 'tsc', '-p', 'tsconfig.json'],
  ['Types of the dashboard', 'tsc', '-p', 'dashboard/tsconfig.json'],
  ['Unused files, exports and dependencies', 'knip'],
  ['Package: publint', 'publint', '--strict'],
  ['Package: types as others will see them', 'attw', '--pack', '.', '--profile', 'esm-only'],
  ['Package: size of the core', 'node', 'scripts/size.ts'],
  ['Servers for the tests', 'node', 'scripts/install-servers.ts'],
  ['Tests', 'vitest', 'run', '--reporter=default', '--reporter=json', `--outputFile.json=${REPORT}`],
]

mkdirSync(join(ROOT, '.work'), { recursive: true })
for (const [title, program, ...args] of STEPS) {
  console.log(`\n── ${title} ${'─'.repeat(Math.max(0, 76 - title.length))}`)
  const startedMs = performance.now()
  try {
    await run(program, args)
  } catch (error) {
    console.error(`\nFailed: ${title}. ${(error as Error).message}`)
    if (title === 'Tests') printCounts()
    process.exit(1)
  }
  console.log(`ok (${((performance.now() - startedMs) / 1000).toFixed(1)} s)`)
}
printCounts()

function printCounts(): void {
  const report = JSON.parse(readFileSync(REPORT, 'utf8'))
  console.log(`\n${report.numPassedTests} passed, ${report.numFailedTests} failed, ${report.numPendingTests} skipped`)
}
