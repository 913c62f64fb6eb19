import { type ChildProcessByStdio, spawn } from 'node:child_process'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { onTestFinished } from 'vitest'

const FIXTURES = join(import.meta.dirname, '../fixtures')

/** Another process: a file of `test/fixtures` with these arguments, killed at the latest when the test is over. */
export function startChild(fixture: string, ...args: string[]): ChildProcessByStdio<Writable, Readable, null> {
  const child = spawn(process.execPath, [join(FIXTURES, fixture), ...args], { stdio: ['pipe', 'pipe', 'inherit'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  return child
}
