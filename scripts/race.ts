/** `npm run race`: many processes race for the same keys on every store, and a table shows how often each key ran. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { findService } from '../test/services/index.ts'
import { findMongod } from '../test/services/mongod.ts'
import type { StoreName } from '../test/support/open-store.ts'
import { ROOT } from './run.ts'

const { values } = parseArgs({
  options: {
    processes: { type: 'string', default: '50' },
    keys: { type: 'string', default: '20' },
    help: { type: 'boolean', short: 'h', default: false },
  },
})
if (values.help) {
  console.log('npm run race -- [--processes 50] [--keys 20]')
  process.exit(0)
}
const processes = Number(values.processes)
const keys = Number(values.keys)

const folder = mkdtempSync(join(tmpdir(), 'oncekey-race-'))
const contestants: ReadonlyArray<
  readonly [StoreName, () => Promise<{ url: string; title: string; stop(): Promise<void> } | string>]
> = [
  [
    'sqlite',
    async () => ({ url: join(folder, 'race.db'), title: `SQLite ${process.versions.sqlite}`, stop: async () => {} }),
  ],
  ['postgres', () => findService('postgres')],
  ['mysql', () => findService('mariadb')],
  ['mongodb', () => findMongod()],
  ['redis', () => findService('redis')],
  ['nats', () => findService('nats')],
]

let isRight = true
const rows: string[][] = [
  ['store', 'server', 'processes', 'keys', 'answers', 'effects', 'one effect and one answer per key'],
]
for (const [name, find] of contestants) {
  const service = await find()
  if (typeof service === 'string') {
    rows.push([name, `not run: ${service}`, '', '', '', '', ''])
    continue
  }
  try {
    const { effects, answers } = await race(name, service.url)
    const each = Array.from({ length: keys }, (_, key) => effects.filter((effect) => effect === String(key)).length)
    const agree = each.map((_, key) => new Set(answers.map((all) => all[key])).size)
    const good = each.every((count) => count === 1) && agree.every((count) => count === 1)
    isRight &&= good
    rows.push([
      name,
      service.title,
      `${processes}`,
      `${keys}`,
      `${answers.length * keys}`,
      `${effects.length}`,
      good ? 'yes' : 'NO',
    ])
  } finally {
    await service.stop()
  }
}
rmSync(folder, { recursive: true })
const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length))) ?? []
for (const row of rows) console.log(row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join('  '))
process.exitCode = isRight ? 0 : 1

async function race(name: StoreName, url: string): Promise<{ effects: string[]; answers: unknown[][] }> {
  const file = join(folder, `${name}.effects`)
  writeFileSync(file, '')
  const runners = Array.from({ length: processes }, () => startRunner(name, url, file))
  await Promise.all(runners.map(({ nextLine }) => nextLine()))
  process.stderr.write(`${name}: ${processes} processes ready, go\n`)
  for (const { child } of runners) child.stdin?.write('go\n')
  const answers = await Promise.all(runners.map(async ({ nextLine }) => JSON.parse(await nextLine())))
  await Promise.all(runners.map(({ exited }) => exited))
  return { effects: readFileSync(file, 'utf8').trim().split('\n'), answers }
}

function startRunner(name: string, url: string, file: string) {
  const fixture = join(ROOT, 'test/fixtures/race-child.ts')
  const child: ChildProcess = spawn(process.execPath, [fixture, name, url, String(keys), file], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const exited = once(child, 'exit').then(([code]) => {
    if (code !== 0) throw new Error(`a process of ${name} ended with ${code}`)
  })
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream })[Symbol.asyncIterator]()
  const nextLine = async (): Promise<string> => {
    const line = await Promise.race([lines.next(), exited.then(() => ({ value: undefined }))])
    if (line.value === undefined) throw new Error(`a process of ${name} ended early`)
    return line.value
  }
  return { child, exited, nextLine }
}
