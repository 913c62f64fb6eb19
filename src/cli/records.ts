import { createInterface } from 'node:readline/promises'
import { History } from '../admin/history.ts'
import { Operations, type OperationView } from '../admin/operations.ts'
import { OncekeyError } from '../error.ts'
import type { Store } from '../store.ts'
import { EXIT_FAILED, isForPeople, Misuse, readFlags } from './command.ts'
import { type OpenedStore, openStore, withoutPassword } from './store-url.ts'

/** What the commands that look into a store have in common. */
export const STORE_FLAGS = {
  store: { type: 'string' },
  reveal: { type: 'boolean' },
  json: { type: 'boolean' },
} as const

export const STORE_HELP = `  --store ADDRESS   sqlite:PATH (default sqlite:oncekey.db), redis://…, postgres://…, mysql://…, mongodb://…, nats://…
                    or ONCEKEY_STORE
  --reveal          show keys, principals and bodies instead of their ends
  --json            one JSON document instead of a table`

/** Opens the store, lets `work` have it, and closes it whatever happens. */
export async function withStore<T>(
  flags: { readonly store?: string; readonly reveal?: boolean },
  work: (operations: Operations, store: Store) => Promise<T>,
): Promise<T> {
  const opened = await reached(flags.store ?? process.env.ONCEKEY_STORE ?? 'sqlite:oncekey.db', true)
  const history = new History()
  try {
    return await work(new Operations(opened.store, history, flags.reveal ?? false), opened.store)
  } finally {
    history.close()
    await opened.close()
  }
}

/** A driver that cannot connect throws whatever it likes: people get one line. */
export async function reached(address: string, mustExist: boolean): Promise<OpenedStore> {
  try {
    return await openStore(address, mustExist)
  } catch (error) {
    if (isForPeople(error)) throw error
    const { message } = error as Error
    throw new OncekeyError('store-unavailable', `${withoutPassword(address)} does not answer: ${message}.`)
  }
}

/** The one operation that is meant, by its id, its whole key, or the beginning of its id. */
export async function findOne(operations: Operations, said: string): Promise<OperationView | undefined> {
  const found = await operations.find(said)
  if (found.length > 1) {
    const ids = found.map(({ id, labels }) => `  ${id}  ${[labels.method, labels.route, labels.principal].join(' ')}`)
    throw new Misuse(`${JSON.stringify(said)} is ${found.length} operations; say which by its id:\n${ids.join('\n')}`)
  }
  return found[0]
}

/** What was said, if anything was. */
export function whichOne([said = '', ...more]: readonly string[]): string {
  if (more.length > 0) throw new Misuse(`One at a time: ${JSON.stringify(more[0])} is too many.`)
  if (said.trim() === '') throw new Misuse('Say which: a key, an id, or the beginning of an id.')
  return said
}

/** A command that changes one record: finds it, asks, does it, says it. */
export async function changeOne(
  args: readonly string[],
  question: (operation: OperationView) => string,
  change: (operations: Operations, id: string, force: boolean) => Promise<string>,
): Promise<number> {
  const flags = { ...STORE_FLAGS, yes: { type: 'boolean', short: 'y' }, force: { type: 'boolean' } } as const
  const { values, positionals } = readFlags(args, flags)
  const said = whichOne(positionals)
  return withStore(values, async (operations) => {
    const operation = await findOne(operations, said)
    if (operation === undefined) return notFound(said)
    if (!values.yes && !(await confirm(question(operation)))) return EXIT_FAILED
    const end = await change(operations, operation.id, values.force ?? false)
    if (values.json) console.log(JSON.stringify({ id: operation.id, end }))
    else console.log(end === 'done' ? `${operation.id}: done.` : `${operation.id} is ${end}; nothing was changed.`)
    return end === 'done' ? 0 : EXIT_FAILED
  })
}

export function notFound(said: string): number {
  console.error(
    `No operation has the key or id ${JSON.stringify(said)}. Give a key whole, an id by its first 6 characters or more; keys are known only where labels: true was set.`,
  )
  return EXIT_FAILED
}

async function confirm(question: string): Promise<boolean> {
  if (!process.stdin.isTTY) throw new Misuse('This changes a record; nobody is there to ask, so say --yes.')
  const terminal = createInterface({ input: process.stdin, output: process.stderr })
  try {
    return /^y(?:es)?$/i.test((await terminal.question(`${question} [y/N] `)).trim())
  } finally {
    terminal.close()
  }
}

/** `3 min`, `2 h`: what people read at a glance. */
export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1_000
  if (seconds < 90) return `${Math.round(seconds)} s`
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`
  if (seconds < 36 * 3_600) return `${Math.round(seconds / 3_600)} h`
  return `${Math.round(seconds / 86_400)} d`
}

export function table(rows: ReadonlyArray<readonly string[]>): string {
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? []
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}
