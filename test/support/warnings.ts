import { onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'

/** What the library warns of, until the test is over. */
export function processWarnings(): string[] {
  const warnings: string[] = []
  const listener = (warning: Error): void => {
    if (warning.name === 'OncekeyWarning') warnings.push(warning.message)
  }
  process.on('warning', listener)
  onTestFinished(() => void process.removeListener('warning', listener))
  return warnings
}

/** What it warns of when the store is used for the first time, and once more. */
export async function warningsOf(store: Store): Promise<string[]> {
  const warnings = processWarnings()
  await store.read('a')
  await store.read('a')
  await new Promise((resolve) => setImmediate(resolve))
  return warnings
}
