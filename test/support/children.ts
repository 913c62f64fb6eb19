import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { onTestFinished } from 'vitest'

const FIXTURES = join(import.meta.dirname, '../fixtures')

/** Another process: a file of `test/fixtures` with these arguments, killed at the latest when the test is over. */
export function startChild(fixture: string, ...args: string[]): ChildProcessByStdio<Writable, Readable, null> {
  const child = spawn(process.execPath, [join(FIXTURES, fixture), ...args], { stdio: ['pipe', 'pipe', 'inherit'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}

/** One that speaks by lines. */
export interface Racer {
  tell(line: string): void
  /** Its next line, which must begin with these words. */
  said(words: string): Promise<string>
}

export function startRacer(fixture: string, ...args: string[]): Racer {
  const child = startChild(fixture, ...args)
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()
  return {
    tell: (line) => void child.stdin.write(`${line}\n`),
    async said(words) {
      const { value } = await lines.next()
      if (typeof value !== 'string' || !value.startsWith(words)) throw new Error(`${words} was expected, not ${value}`)
      return value
    },
  }
}
