import type { OperationView } from '../admin/operations.ts'
import type { RecordState } from '../store.ts'
import { type Command, Misuse, readFlags, wholeNumber } from './command.ts'
import { duration, STORE_FLAGS, STORE_HELP, table, withStore } from './records.ts'

const STATES: readonly string[] = ['running', 'unknown', 'settled', 'expired']

export const list: Command = {
  name: 'list',
  summary: 'list operations, by state, key, route or principal',
  help: `oncekey list [--state running|unknown|settled|expired] [--key KEY] [--route PART] [--principal ID] [--limit N] [--after ID]

--key finds a whole key, or the beginning of an id; with --reveal also a part of a key.

${STORE_HELP}

  oncekey list --state unknown
  oncekey list --store redis://localhost --route /orders --json`,

  async run(args) {
    const { values } = readFlags(args, {
      ...STORE_FLAGS,
      state: { type: 'string' },
      key: { type: 'string' },
      route: { type: 'string' },
      principal: { type: 'string' },
      limit: { type: 'string' },
      after: { type: 'string' },
    })
    const { state, key: q, route, principal, after } = values
    if (state !== undefined && !STATES.includes(state)) {
      throw new Misuse(`--state is ${JSON.stringify(state)}; give one of ${STATES.join(', ')}.`)
    }
    const limit = wholeNumber('--limit', values.limit ?? '50', 1, 100_000)
    return withStore(values, async (operations) => {
      const search = { state: state as RecordState['state'] | undefined, q, route, principal, after, limit }
      const page = await operations.search(search)
      if (values.json) console.log(JSON.stringify(page, null, 2))
      else print(page.operations, page.next)
      return 0
    })
  },
}

function print(operations: readonly OperationView[], next: string | null): void {
  if (operations.length === 0) return console.log('No operation.')
  const now = Date.now()
  const rows = operations.map(({ id, state, status, attempt, createdAt, goneAt, leaseLeftMs, labels }) => [
    id.slice(0, 12),
    state,
    status === undefined ? '' : String(status),
    labels.method ?? '',
    labels.route ?? '',
    labels.key ?? '',
    labels.principal ?? '',
    `${duration(now - createdAt)} ago`,
    leaseLeftMs === undefined ? `gone in ${duration(goneAt - now)}` : `lease ${duration(leaseLeftMs)}`,
    attempt > 1 ? `attempt ${attempt}` : '',
  ])
  console.log(table([['id', 'state', 'status', '', 'route', 'key', 'principal', 'began', '', ''], ...rows]))
  if (next !== null) console.log(`\nThere may be more: --after ${next}`)
}
