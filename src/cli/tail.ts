import type { EventType } from '../events.ts'
import type { GateEvent } from '../gate/events.ts'
import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'

interface Told {
  readonly at: number
  readonly type: string
  readonly id: string
  readonly status?: number
  readonly detail?: string
  readonly labels?: Readonly<Record<string, string>>
}

/** What a gate tells. Where a conflict's bodies differ is told with the conflict. */
type ToldType =
  | EventType
  | Exclude<GateEvent['type'], 'conflict-paths'>
  | `operator-${'released' | 'redacted' | 'failed'}`

const TYPES: Readonly<Record<ToldType, true>> = {
  claimed: true,
  takeover: true,
  kept: true,
  released: true,
  'left-unknown': true,
  unrecorded: true,
  'lease-lost': true,
  replayed: true,
  waiting: true,
  unprotected: true,
  'store-failed': true,
  refused: true,
  conflict: true,
  'in-flight': true,
  unknown: true,
  expired: true,
  'not-kept': true,
  forwarded: true,
  shed: true,
  'upstream-refused': true,
  'upstream-broken': true,
  'refused-request': true,
  'slow-client': true,
  shadow: true,
  'operator-released': true,
  'operator-redacted': true,
  'operator-failed': true,
}

export const tail: Command = {
  name: 'tail',
  summary: 'follow what a gate does, as it happens',
  help: `oncekey tail [--admin URL] [--token TOKEN] [--type TYPE] [--json]

  --admin URL    the gate's admin address (default http://127.0.0.1:8081, or ONCEKEY_ADMIN_URL)
  --token TOKEN  its token (or ONCEKEY_ADMIN_TOKEN)
  --type TYPE    only these events: claimed, kept, replayed, conflict, in-flight, unknown, released, unprotected, …
  --json         each event as one line of JSON

  oncekey tail --type conflict`,

  async run(args) {
    const { values } = readFlags(args, {
      admin: { type: 'string' },
      token: { type: 'string' },
      type: { type: 'string', multiple: true },
      json: { type: 'boolean' },
    })
    const address = values.admin ?? process.env.ONCEKEY_ADMIN_URL ?? 'http://127.0.0.1:8081'
    if (!URL.canParse(address)) throw new Misuse(`--admin is ${JSON.stringify(address)}, which is not an address.`)
    for (const type of values.type ?? []) {
      if (Object.hasOwn(TYPES, type)) continue
      throw new Misuse(
        `--type is ${JSON.stringify(type)}, which a gate never tells; give ${Object.keys(TYPES).join(', ')}.`,
      )
    }
    const token = values.token ?? process.env.ONCEKEY_ADMIN_TOKEN
    const headers: Record<string, string> = token === undefined ? {} : { Authorization: `Bearer ${token}` }
    const url = new URL('/api/events', address)
    const response = await fetch(url, { headers }).catch((error: Error) => {
      const cause = error.cause instanceof Error ? error.cause.message : error.message
      console.error(`No gate answers at ${address}: ${cause}. Start one with oncekey gate, or say --admin URL.`)
    })
    if (response === undefined) return EXIT_FAILED
    if (!response.ok || response.body === null) {
      console.error(`${address} answered ${response.status}: ${await response.text()}`)
      return EXIT_FAILED
    }
    const types = values.type === undefined ? undefined : new Set(values.type)
    let rest = ''
    for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + text).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) {
        if (!line.startsWith('data: ')) continue
        const told = JSON.parse(line.slice('data: '.length)) as Told
        if (types === undefined || types.has(told.type)) console.log(values.json ? JSON.stringify(told) : lineOf(told))
      }
    }
    return 0
  },
}

function lineOf({ at, type, id, status, detail, labels = {} }: Told): string {
  const time = new Date(at).toISOString().slice(11, 23)
  const what = [labels.method, labels.route, labels.key, status, detail].filter((part) => part !== undefined)
  return `${time}  ${type.padEnd(13)} ${id.slice(0, 12)}  ${what.join(' ')}`.trimEnd()
}
