/** `npm run bench`: builds, starts every contestant in a process of its own, measures in rounds, reports. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Child, type ServerReady } from './child.ts'
import { type Contestant, contestants } from './contestants/index.ts'
import { measureLone } from './lone.ts'
import { describeMachine } from './machine.ts'
import { type Entry, measure, messageOf, SCENARIOS } from './measure.ts'
import { runMicro } from './micro.ts'
import { HELP, type Options, readOptions } from './options.ts'
import { buildLibrary, installPeers } from './prepare.ts'
import { probe } from './probe.ts'
import { hottest } from './profile.ts'
import { renderTable } from './report.ts'
import { AGAINST, type Results, type Row, summarize } from './results.ts'
import { renderSvg } from './svg.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const RESULTS = fileURLToPath(new URL('results/', import.meta.url))

const START_MS_MAX = 20_000
const CLOSE_MS_MAX = 10_000

async function main(): Promise<void> {
  const options = readOptions(process.argv.slice(2))
  if (options.help) return void process.stdout.write(HELP)
  if (options.build) buildLibrary(ROOT)
  if (options.micro) return runMicro()
  const peersMissing = options.peers ? installPeers() : 'left out by --no-peers'

  const directory = join(ROOT, '.work', `bench-${process.pid}`)
  mkdirSync(directory, { recursive: true })
  // The children end by themselves when this process does.
  process.once('SIGINT', () => {
    rmSync(directory, { recursive: true, force: true })
    process.exit(130)
  })
  const load = new Child('load.ts')
  const entries: Entry[] = []
  try {
    const machine = describeMachine(directory)
    for (const contestant of selected(options)) {
      entries.push(await start(contestant, join(directory, contestant.name), options, peersMissing))
    }
    const scenarios = SCENARIOS.filter(({ name }) => options.scenario?.test(name) ?? true)
    await measure(entries, scenarios, load, options)
    const lone = (options.scenario?.test('lone') ?? true) ? await measureLone(entries, load, options) : []
    const { rounds, seconds, connections } = options
    const settings = { rounds, seconds, connections }
    finish({ machine, settings, scenarios, rows: entries.map(rowOf), lone }, options)
  } finally {
    await Promise.all(
      [load, ...entries.flatMap(({ server }) => server ?? [])].map((child) => child.close(CLOSE_MS_MAX)),
    )
    rmSync(directory, { recursive: true, force: true })
  }
  if (options.profile !== undefined) process.stdout.write(hottest(options.profile))
}

/** What the user asked for, and the bare frameworks that it is compared with. */
function selected({ only, peers, against }: Options): readonly Contestant[] {
  const wanted = contestants.filter(
    ({ name, kind }) => (only === undefined || only.test(name)) && (peers || kind !== 'peer'),
  )
  if (wanted.length === 0) throw new Error(`--only matches none of: ${contestants.map(({ name }) => name).join(', ')}`)
  const taking = contestants.filter(
    (one) =>
      wanted.includes(one) || (one.kind === 'bare' && wanted.some(({ framework }) => framework === one.framework)),
  )
  if (against === undefined) return taking
  return taking.flatMap((one) => {
    if (one.kind !== 'oncekey') return [one]
    return [one, { ...one, name: `${one.name}${AGAINST}`, label: `${one.label}, ${against}` }]
  })
}

async function start(
  contestant: Contestant,
  directory: string,
  options: Options,
  peersMissing: string | undefined,
): Promise<Entry> {
  const slices = { 'new-keys': [], replays: [] }
  if (contestant.kind === 'peer' && peersMissing !== undefined) {
    return { contestant, port: 0, absent: `not installed: ${peersMissing}`, slices }
  }
  mkdirSync(directory, { recursive: true })
  const { name, kind } = contestant
  const isOther = options.against !== undefined && name.endsWith(AGAINST)
  const env = isOther ? { ONCEKEY_BENCH_DIST: `${pathToFileURL(resolve(options.against ?? ''))}/` } : {}
  const args = [isOther ? name.slice(0, -AGAINST.length) : name, directory]
  const server = new Child('server.ts', args, profiling(contestant, options), env)
  try {
    const { port } = await server.ask<ServerReady>(undefined, START_MS_MAX)
    // A ceiling protects nothing, and so has nothing to prove.
    if (kind === 'ceiling') return { contestant, server, port, slices }
    return { contestant, server, port, slices, probes: await probe(server, port) }
  } catch (error) {
    return { contestant, server, port: 0, absent: messageOf(error), slices }
  }
}

function profiling({ name }: Contestant, { profile }: Options): readonly string[] {
  if (profile === undefined) return []
  return ['--cpu-prof', `--cpu-prof-dir=${join(profile, name)}`]
}

function rowOf({ contestant, absent, probes, slices }: Entry): Row {
  const { name, framework, kind, label, settings } = contestant
  const scenarios: Row['scenarios'] = {}
  for (const { name: scenario } of SCENARIOS) {
    const own = slices[scenario]
    if (absent !== undefined || own.length === 0) continue
    scenarios[scenario] = { summary: summarize(own), slices: own }
  }
  return {
    name,
    framework,
    kind,
    label,
    settings,
    ...(absent !== undefined && { absent }),
    ...(probes !== undefined && { probes }),
    scenarios,
  }
}

function finish(results: Results, options: Options): void {
  process.stdout.write(renderTable(results))
  const json = `${JSON.stringify(results, undefined, 2)}\n`
  if (options.json !== undefined) writeFileSync(options.json, json)
  const isWhole =
    options.only === undefined &&
    options.scenario === undefined &&
    options.against === undefined &&
    options.peers &&
    results.rows.every(({ absent }) => absent === undefined)
  if (!isWhole) return void process.stderr.write('Not every contestant took part: bench/results is left as it was.\n')
  mkdirSync(RESULTS, { recursive: true })
  writeFileSync(join(RESULTS, 'latest.json'), json)
  writeFileSync(join(RESULTS, 'latest.svg'), renderSvg(results))
}

try {
  await main()
} catch (error) {
  process.stderr.write(`bench: ${messageOf(error)}\n`)
  process.exitCode = 1
}
