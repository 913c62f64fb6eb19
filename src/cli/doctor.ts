import { existsSync } from 'node:fs'
import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'
import { type AppProbe, judgeApp, judgeUpstream } from './doctor/app.ts'
import { judgeDisk } from './doctor/disk.ts'
import { type Finding, type Level, ok } from './doctor/finding.ts'
import { judgeSettings } from './doctor/settings.ts'
import { judgeStore } from './doctor/store.ts'
import { contractOf } from './gate-options.ts'
import { readSettings, type Settings, settingFlags } from './settings.ts'
import { sqlitePath } from './store-url.ts'

export const doctor: Command = {
  name: 'doctor',
  summary: 'look for what will go wrong: settings, store, clock, disk, service',
  help: `oncekey doctor [the flags of oncekey gate] [options]

Reads the settings as oncekey gate does, looks at everything they name, and says of each thing what it means and what to
do. It uses the store as an operation would, and leaves nothing there.

  --retry-window 24h     how long your clients may retry: 500ms, 30s, 15m, 24h, 7d
  --url URL              also send one write twice to your own service or gate, and see whether it is replayed: finds a
                         body parser that stands before idempotency()
  --body JSON            of that write (default {})
  --header 'Name: value' with that write; may be repeated
  --yes                  do not insist on this machine for --url: it is a real write
  --json                 one JSON document

  oncekey doctor --store redis://localhost --principal header:X-User --upstream http://127.0.0.1:3000
  oncekey doctor --contract stripe --principal public --retry-window 3d
  oncekey doctor --principal public --url http://127.0.0.1:3000/orders --body '{"amount":1}'

Exit code: 0 nothing is wrong (there may be warnings), 1 something is, 2 the settings cannot be meant.
NO_COLOR is respected.`,

  async run(args) {
    const { values, positionals } = readFlags(args, { ...settingFlags(), ...FLAGS })
    if (positionals.length > 0)
      throw new Misuse(`${JSON.stringify(positionals[0])} is too much; everything has a flag.`)
    const flags: Readonly<Record<string, unknown>> = values
    const retryWindowMs = span('--retry-window', String(flags['retry-window'] ?? '24h'))
    const probe = probeOf(flags)
    const { settings } = await readSettings(values, process.env, process.cwd())
    const findings = [
      ...judgeSettings(settings, retryWindowMs),
      ...(await judgeStorage(settings)),
      await judgeUpstream(settings.upstream),
      ...(probe === undefined ? [] : [await judgeApp(probe, contractOf(settings.contract))]),
    ]
    const totals = { ok: 0, warn: 0, fail: 0 }
    for (const { level } of findings) totals[level] += 1
    if (settings.json) console.log(JSON.stringify({ findings, totals }, null, 2))
    else console.log(inWords(findings, totals))
    return totals.fail > 0 ? EXIT_FAILED : 0
  },
}

const FLAGS = {
  'retry-window': { type: 'string' },
  url: { type: 'string' },
  body: { type: 'string' },
  header: { type: 'string', multiple: true },
  yes: { type: 'boolean' },
} as const

/** A database file that is not there yet is not made: looking changes nothing. */
async function judgeStorage({ store }: Settings): Promise<readonly Finding[]> {
  const path = sqlitePath(store)
  if (path === undefined) return judgeStore(store)
  const disk = judgeDisk(path)
  if (existsSync(path)) return [...(await judgeStore(store)), ...disk]
  if (disk.some(({ level }) => level === 'fail')) return disk
  return [ok('store', `${path} is not there yet; it is made at the start.`), ...disk]
}

function probeOf(flags: Readonly<Record<string, unknown>>): AppProbe | undefined {
  const { url, body = '{}', header = [], yes } = flags
  if (url === undefined) return undefined
  const { hostname, protocol } = URL.parse(String(url)) ?? { hostname: '', protocol: '' }
  if (!/^https?:$/.test(protocol)) throw new Misuse(`--url is ${JSON.stringify(url)}; give http://host:port/path.`)
  if (yes !== true && !/^(?:localhost|127(?:\.\d+){3}|\[::1\])$/i.test(hostname)) {
    throw new Misuse(`--url writes to ${hostname}, which is not this machine; say --yes if it is a test system.`)
  }
  const headers = (header as readonly string[]).map((text) => {
    const [, name, value] = /^([^\s:]+):\s*(.*)$/.exec(text) ?? []
    if (name === undefined || value === undefined) throw new Misuse("--header has no colon in it; write 'Name: value'.")
    return [name, value] as const
  })
  return { url: String(url), body: String(body), headers }
}

const UNITS_MS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }

function span(flag: string, text: string): number {
  const [, number = '', unit = ''] = /^(\d+)(ms|s|m|h|d)$/.exec(text) ?? []
  if (number !== '') return Number(number) * (UNITS_MS[unit] ?? 1)
  throw new Misuse(
    `${flag} is ${JSON.stringify(text)}; give a number with its unit, such as 500ms, 30s, 15m, 24h or 7d.`,
  )
}

const COLOURS: Readonly<Record<Level, number>> = { ok: 32, warn: 33, fail: 31 }

function inWords(findings: readonly Finding[], totals: Readonly<Record<Level, number>>): string {
  const isColored = process.stdout.isTTY === true && !process.env.NO_COLOR
  const paint = (level: Level, text: string) => (isColored ? `\x1b[${COLOURS[level]}m${text}\x1b[0m` : text)
  const lines = findings.flatMap(({ id, level, found, means, next }) => [
    `${paint(level, level.padEnd(4))}  ${id.padEnd(13)} ${found}`,
    ...(means === '' ? [] : [`      means ${means}`]),
    ...(next === '' ? [] : [`      do    ${next}`]),
  ])
  return [...lines, '', `${totals.ok} ok, ${totals.warn} to know of, ${totals.fail} wrong.`].join('\n')
}
