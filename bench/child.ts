import { type ChildProcess, fork } from 'node:child_process'

/** What the bench asks a server process, and what it replies. */
export type ServerAsk = { readonly ask: 'usage' } | { readonly ask: 'reset' } | { readonly ask: 'close' }

export interface ServerUsage {
  /** Of the whole process, worker threads included, since its start. */
  readonly cpuUs: number
  readonly runs: number
  /** Of the processes that it has started: its database. Absent where there is none, or no telling. */
  readonly databaseCpuUs?: number
}

export interface ServerReady {
  readonly port: number
}

/** A failure inside a child, told as a value. */
export interface ChildFailure {
  readonly failure: string
}

/**
 * A process of the benchmark: asked one thing at a time, and never waited for without a bound. It ends when this
 * process does, because the channel between them closes.
 */
export class Child {
  readonly #process: ChildProcess
  #waiting: ((reply: unknown) => void) | undefined
  #ended: string | undefined

  constructor(script: string, args: readonly string[] = [], nodeOptions: readonly string[] = [], env: object = {}) {
    this.#process = fork(new URL(script, import.meta.url), args, {
      execArgv: [...nodeOptions],
      serialization: 'advanced',
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      env: { ...process.env, NODE_ENV: 'production', NO_COLOR: '1', ...env },
    })
    this.#process.on('message', (reply) => this.#deliver(reply))
    this.#process.on('exit', (code, signal) => {
      this.#ended = `its process ended (${signal ?? `code ${code}`})`
      this.#deliver({ failure: this.#ended })
    })
  }

  /** The reply to a question; the first call, without one, waits for the child's first word. */
  async ask<T>(question: object | undefined, withinMs: number): Promise<T> {
    if (this.#ended !== undefined) throw new Error(this.#ended)
    if (this.#waiting !== undefined) throw new Error('A child is asked one thing at a time.')
    let timer: NodeJS.Timeout | undefined
    const reply = await new Promise<unknown>((resolve) => {
      this.#waiting = resolve
      timer = setTimeout(() => this.#deliver({ failure: `no reply within ${withinMs} ms` }), withinMs)
      if (question !== undefined) this.#process.send(question)
    })
    clearTimeout(timer)
    if (isFailure(reply)) throw new Error(reply.failure)
    return reply as T
  }

  /** Asks it to close and waits for its end; one that hangs is killed. */
  async close(withinMs: number): Promise<void> {
    if (this.#ended !== undefined) return
    const ended = new Promise<void>((resolve) => this.#process.once('exit', () => resolve()))
    this.#process.send({ ask: 'close' })
    const timer = setTimeout(() => this.#process.kill('SIGKILL'), withinMs)
    await ended
    clearTimeout(timer)
  }

  #deliver(reply: unknown): void {
    const waiting = this.#waiting
    this.#waiting = undefined
    waiting?.(reply)
  }
}

function isFailure(reply: unknown): reply is ChildFailure {
  return typeof reply === 'object' && reply !== null && 'failure' in reply
}

/** The child's side: sends, and ends the process when the parent is gone. */
export function reply(message: object): void {
  process.send?.(message)
}
