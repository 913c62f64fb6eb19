import { parseArgs } from 'node:util'
import { OncekeyError } from '../error.ts'

/** One command of the command line. Its file is named after it. */
export interface Command {
  readonly name: string
  /** One line for the list of commands. */
  readonly summary: string
  /** What `oncekey NAME --help` prints: usage, options, examples. */
  readonly help: string
  /** Gives the exit code: 0, or 1 when it found what it was looking for to be wrong. Throws `Misuse` for 2. */
  run(args: readonly string[]): Promise<number>
}

export const EXIT_FAILED = 1
export const EXIT_MISUSE = 2

/** What was typed cannot be meant: one line that names the field and the fix. */
export class Misuse extends Error {}

type Flags = Readonly<
  Record<string, { readonly type: 'string' | 'boolean'; readonly short?: string; readonly multiple?: boolean }>
>

/** The flags and the rest of one command's line. An unknown flag, or one without its value, is a `Misuse`. */
export function readFlags<F extends Flags>(args: readonly string[], flags: F): Parsed<F> {
  try {
    const parsed = parseArgs({ args: [...args], options: flags, allowPositionals: true, allowNegative: true })
    return parsed as unknown as Parsed<F>
  } catch (error) {
    throw new Misuse(error instanceof Error ? (error.message.split('. ')[0] ?? error.message) : String(error))
  }
}

type Parsed<F extends Flags> = {
  readonly values: {
    readonly [K in keyof F]?: F[K]['type'] extends 'boolean'
      ? boolean
      : F[K]['multiple'] extends true
        ? string[]
        : string
  }
  readonly positionals: string[]
}

/** A whole number within bounds, from a flag or a variable. */
export function wholeNumber(name: string, text: string, min: number, max: number): number {
  const value = Number(text)
  if (/^\d+$/.test(text) && value >= min && value <= max) return value
  throw new Misuse(`${name} is ${JSON.stringify(text)}, but must be a whole number from ${min} to ${max}.`)
}

/** Whether an error is the user's to mend, and is shown as one line rather than as a stack. */
export function isForPeople(error: unknown): error is Error {
  return error instanceof Misuse || error instanceof OncekeyError
}
