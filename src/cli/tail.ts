import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'

interface Told {
  readonly at: number
  readonly type: string
  readonly id: string
  readonly status?: number
  readonly detail?: string
  readonly labels?: Readonly<Record<string, string>>
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
