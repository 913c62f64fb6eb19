import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { onTestFinished } from 'vitest'

const MAIN = resolve(import.meta.dirname, '../../src/cli/main.ts')

export interface Ended {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
}

/** `oncekey ARGS` from its start to its end. */
export async function oncekey(args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const child = spawnCli(args, options)
  const [stdout, stderr, [status]] = await Promise.all([
    text(child.stdout as NodeJS.ReadableStream),
    text(child.stderr as NodeJS.ReadableStream),
    once(child, 'close'),
  ])
  return { status, stdout, stderr }
}

/** A command that goes on until it is told to end, or the test is over. */
export class Going {
  readonly child: ChildProcess
  readonly ended: Promise<number | null>
  readonly out: Lines
  readonly err: Lines

  constructor(args: readonly string[], options: RunOptions = {}) {
    this.child = spawnCli(args, options)
    this.out = new Lines(this.child.stdout as NodeJS.ReadableStream)
    this.err = new Lines(this.child.stderr as NodeJS.ReadableStream)
    this.ended = once(this.child, 'close').then(([code]) => code)
  }

  /** The first line of its own JSON that says `event`. */
  async event(event: string): Promise<Record<string, string>> {
    const line = await this.out.find(new RegExp(`"event":"${event}"`))
    return JSON.parse(line) as Record<string, string>
  }

  /** SIGTERM, and the code with which it ends. */
  stop(): Promise<number | null> {
    this.child.kill('SIGTERM')
    return this.ended
  }
}

/** What a process says, line by line. */
class Lines {
  readonly all: string[] = []
  readonly #waiting: Array<() => void> = []
  #isOver = false

  constructor(stream: NodeJS.ReadableStream) {
    const wake = (): void => {
      for (const one of this.#waiting.splice(0)) one()
    }
    const lines = createInterface({ input: stream })
    lines.on('line', (line) => {
      this.all.push(line)
      wake()
    })
    lines.on('close', () => {
      this.#isOver = true
      wake()
    })
  }

  async find(pattern: RegExp): Promise<string> {
    for (;;) {
      const found = this.all.find((line) => pattern.test(line))
      if (found !== undefined) return found
      if (this.#isOver) throw new Error(`It ended without ${pattern}:\n${this.all.join('\n')}`)
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
  }
}

function spawnCli(args: readonly string[], { env = {}, cwd = tmpdir() }: RunOptions): ChildProcess {
  // Nothing of whoever runs the tests gets in.
  const own = Object.entries(process.env).filter(
    ([name]) => !/^(?:ONCEKEY_|NO_COLOR|FORCE_COLOR|NODE_OPTIONS)/.test(name),
  )
  const child = spawn(process.execPath, [MAIN, ...args], {
    cwd,
    env: { ...Object.fromEntries(own), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const end = (): void => void child.kill('SIGKILL')
  process.once('exit', end)
  child.once('close', () => process.off('exit', end))
  onTestFinished(end)
  return child
}

/** A folder with these files, gone after the test. */
export function folder(files: Readonly<Record<string, string>> = {}): string {
  const path = mkdtempSync(join(tmpdir(), 'oncekey-cli-'))
  onTestFinished(() => rmSync(path, { recursive: true, force: true }))
  for (const [name, content] of Object.entries(files)) writeFileSync(join(path, name), content)
  return path
}
