import { type Command, readFlags } from './command.ts'
import { duration, findOne, notFound, STORE_FLAGS, STORE_HELP, whichOne, withStore } from './records.ts'

export const show: Command = {
  name: 'show',
  summary: 'show one operation and its answer: did that charge run?',
  help: `oncekey show KEY|ID

${STORE_HELP}

  oncekey show order-4711
  oncekey show 9f2c1a --reveal`,

  async run(args) {
    const { values, positionals } = readFlags(args, STORE_FLAGS)
    const said = whichOne(positionals)
    return withStore(values, async (operations) => {
      const found = await findOne(operations, said)
      const shown = found && ((await operations.show(found.id)) as Shown | undefined)
      if (shown === undefined) return notFound(said)
      if (values.json) console.log(JSON.stringify(shown, null, 2))
      else print(shown)
      return 0
    })
  },
}

type Shown = Awaited<ReturnType<typeof findOne>> & {
  readonly answer?: {
    readonly status: number
    readonly bytes: number
    readonly bodyText?: string
    readonly isHidden: boolean
  }
}

const MEANING: Readonly<Record<string, string>> = {
  running: 'It runs now; a retry is told to wait.',
  unknown: 'It began and never ended: it may have taken place or not. A retry does not run it again by itself.',
  settled: 'It ran, and this is its answer; a retry gets the same.',
  expired: 'It ran; its answer has expired, but the key counts as used.',
}

function print({ id, state, attempt, createdAt, goneAt, labels, leaseLeftMs, answer }: NonNullable<Shown>): void {
  const now = Date.now()
  console.log(`${id}\n${state}: ${MEANING[state] ?? ''}\n`)
  for (const [name, value] of Object.entries(labels)) console.log(`${name.padEnd(10)} ${value}`)
  console.log(`${'began'.padEnd(10)} ${new Date(createdAt).toISOString()} (${duration(now - createdAt)} ago)`)
  if (attempt > 1) console.log(`${'attempt'.padEnd(10)} ${attempt}: an earlier owner lost its lease`)
  if (leaseLeftMs !== undefined) console.log(`${'lease'.padEnd(10)} ends in ${duration(leaseLeftMs)}`)
  console.log(`${'gone'.padEnd(10)} in ${duration(goneAt - now)}`)
  if (answer === undefined) return
  console.log(
    `${'answer'.padEnd(10)} ${answer.status}, ${answer.bytes} bytes${answer.isHidden ? ' (--reveal shows them)' : ''}`,
  )
  if (answer.bodyText !== undefined) console.log(`\n${answer.bodyText}`)
}
