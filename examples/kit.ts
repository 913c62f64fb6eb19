import type { Setting } from '../src/contracts/index.ts'
import { type Service, Unavailable } from '../test/services/index.ts'

/** A running example: what `npm run example NAME` starts, shows and, with `--tour`, walks through. */
export interface Example {
  /** One line: what it is, and on which stores it runs. */
  readonly title: string
  readonly url: string
  /** What it has read from the environment. */
  readonly settings: readonly Setting[]
  /** Command lines to copy, each under a line that says what it shows. */
  readonly tries: ReadonlyArray<readonly [shows: string, command: string]>
  /** Ends everything that was started, servers too. */
  stop(): Promise<void>
}

export interface StartOptions {
  /** 0: any free one. */
  readonly port: number
  readonly env: Readonly<Record<string, string | undefined>>
}

/** What `examples/NAME/example.ts` exports. */
export interface ExampleModule {
  start(options: StartOptions): Promise<Example>
  tour(stage: Stage, example: Example): Promise<void>
}

export interface Answered {
  readonly status: number
  readonly headers: Headers
  readonly text: string
}

/** Where a tour plays: it shows every request with its answer, and keeps account of what did not hold. */
export class Stage {
  readonly failures: string[] = []
  readonly #base: string
  readonly #print: (line: string) => void
  readonly #colour: boolean

  constructor(base: string, print: (line: string) => void = console.log, colour = false) {
    this.#base = base
    this.#print = print
    this.#colour = colour
  }

  /** A new scene: the clauses that it shows, and what happens in it. */
  scene(clauses: string, what: string): void {
    this.#print(`\n${this.#paint(1, clauses)}  ${what}`)
  }

  say(line: string): void {
    this.#print(this.#paint(2, `  ${line}`))
  }

  /** Sends it, and shows both sides. `headers` names the answer's headers that matter here. */
  async request(path: string, init: RequestInit = {}, headers: readonly string[] = []): Promise<Answered> {
    const { method = 'GET', body } = init
    this.#print(`  → ${method} ${path}${shownHeaders(new Headers(init.headers))}`)
    if (typeof body === 'string') this.#print(`    ${shortened(body)}`)
    const response = await fetch(new URL(path, this.#base), init)
    const answered = { status: response.status, headers: response.headers, text: await response.text() }
    const shown = headers.flatMap((name) => {
      const value = response.headers.get(name)
      return value === null ? [] : [`${name}: ${value}`]
    })
    const status = this.#paint(response.ok ? 32 : 33, String(response.status))
    this.#print(`  ← ${[status, ...shown].join('  ')}`)
    if (answered.text !== '') this.#print(`    ${shortened(answered.text)}`)
    return answered
  }

  /** What the scene is there to show. */
  holds(isSo: boolean, what: string): void {
    if (!isSo) this.failures.push(what)
    this.#print(isSo ? this.#paint(32, `  ✓ ${what}`) : this.#paint(31, `  ✗ ${what}`))
  }

  #paint(code: number, text: string): string {
    return this.#colour ? `\x1b[${code}m${text}\x1b[0m` : text
  }
}

/** A server that the example cannot do without. */
export function needed<S extends Service>(found: S | string): S {
  if (typeof found !== 'string') return found
  throw new Unavailable(found)
}

const SHOWN_CHARS_MAX = 240
const LEFT_OUT: ReadonlySet<string> = new Set(['content-type', 'accept'])

function shortened(text: string): string {
  const line = text.replaceAll(/\s+/g, ' ')
  return line.length <= SHOWN_CHARS_MAX ? line : `${line.slice(0, SHOWN_CHARS_MAX)} … (${text.length} characters)`
}

function shownHeaders(headers: Headers): string {
  return [...headers]
    .filter(([name]) => !LEFT_OUT.has(name))
    .map(([name, value]) => `  ${name}: ${value}`)
    .join('')
}
