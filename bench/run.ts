/** `npm run bench`: builds, starts every contestant in a process of its own, measures in rounds, reports. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Child, type ServerReady, type ServerUsage } from './child.ts'
import { type Contestant, contestants } from './contestants/index.ts'
import type { LoadAsk, LoadResult } from './load.ts'
import { describeMachine } from './machine.ts'
import { runMicro } from './micro.ts'
import { HELP, type Options, readOptions } from './options.ts'
import { buildLibrary, installPeers } from './prepare.ts'
import { type Probes, probe } from './probe.ts'
import { hottest } from './profile.ts'
import { Progress } from './progress.ts'
import { renderTable } from './report.ts'
import { type Results, type Row, type ScenarioName, type Slice, summarize } from './results.ts'
import { renderSvg } from './svg.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const RESULTS = fileURLToPath(new URL('results/', import.meta.url))

const START_MS_MAX = 20_000
const CLOSE_MS_MAX = 10_000
const USAGE_MS_MAX = 5_000
const LEAD_IN_MS = 150
const REPLAY_KEYS = 1_000
const PRIME_MS_MAX = 15_000
/** Rounds that do not count: code is compiled, and stores fill, while they run. */
const WARM_UP_ROUNDS = 2

const SCENARIOS: Results['scenarios'] = [
  { name: 'new-keys', title: 'New keys: every request is a new operation' },
  { name: 'replays', title: `Replays: ${REPLAY_KEYS.toLocaleString('en')} keys that were answered before` },
]

/** A contestant at work, or the reason why it is not. */
interface Entry {
  readonly contestant: Contestant
  readonly server?: Child
  readonly port: number
  absent?: string
  probes?: Probes
  readonly slices: Record<ScenarioName, Slice[]>
}

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
    const { rounds, seconds, connections } = options
    const settings = { rounds, seconds, connections }
    finish({ machine, settings, scenarios, rows: entries.map((entry) => rowOf(entry, entries)) }, options)
  } finally {
    await Promise.all(
      [load, ...entries.flatMap(({ server }) => server ?? [])].map((child) => child.close(CLOSE_MS_MAX)),
    )
    rmSync(directory, { recursive: true, force: true })
  }
  if (options.profile !== undefined) process.stdout.write(hottest(options.profile))
}

/** What the user asked for, and the bare frameworks that it is compared with. */
function selected({ only, peers }: Options): readonly Contestant[] {
  const wanted = contestants.filter(
    ({ name, kind }) => (only === undefined || only.test(name)) && (peers || kind !== 'peer'),
  )
  if (wanted.length === 0) throw new Error(`--only matches none of: ${contestants.map(({ name }) => name).join(', ')}`)
  return contestants.filter(
    (one) =>
      wanted.includes(one) || (one.kind === 'bare' && wanted.some(({ framework }) => framework === one.framework)),
  )
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
  const server = new Child('server.ts', [contestant.name, directory], profiling(contestant, options))
  try {
    const { port } = await server.ask<ServerReady>(undefined, START_MS_MAX)
    return { contestant, server, port, slices, probes: await probe(server, port) }
  } catch (error) {
    return { contestant, server, port: 0, absent: messageOf(error), slices }
  }
}

function profiling({ name }: Contestant, { profile }: Options): readonly string[] {
  if (profile === undefined) return []
  return ['--cpu-prof', `--cpu-prof-dir=${join(profile, name)}`]
}

/**
 * Round-robin, so that a machine that slows down for some seconds slows down all alike. Every second round goes the
 * other way, so that nobody always comes after the same neighbour.
 */
async function measure(
  entries: readonly Entry[],
  scenarios: Results['scenarios'],
  load: Child,
  options: Options,
): Promise<void> {
  const running = entries.filter(({ absent }) => absent === undefined)
  const progress = new Progress(scenarios.length * running.length * (options.rounds + WARM_UP_ROUNDS))
  for (let round = -WARM_UP_ROUNDS; round < options.rounds; round++) {
    for (const { name: scenario } of scenarios) {
      for (const entry of round % 2 === 0 ? running : running.toReversed()) {
        progress.step(entry.contestant.name)
        if (entry.absent !== undefined) continue
        try {
          const slice = await measureSlice(entry, scenario, load, options)
          if (round >= 0) entry.slices[scenario].push(slice)
        } catch (error) {
          entry.absent = messageOf(error)
        }
      }
    }
  }
}

async function measureSlice(entry: Entry, scenario: ScenarioName, load: Child, options: Options): Promise<Slice> {
  const { server, port, contestant } = entry
  if (server === undefined) throw new Error('it has no server')
  await server.ask({ ask: 'reset' }, USAGE_MS_MAX)
  const isReplay = scenario === 'replays'
  const ask: LoadAsk = {
    ask: 'load',
    port,
    connections: options.connections,
    keyHead: crypto.randomUUID().slice(0, 24),
    keys: isReplay ? REPLAY_KEYS : 0,
    requestsMax: 0,
    leadInMs: LEAD_IN_MS,
    measureMs: options.seconds * 1000,
  }
  if (isReplay) {
    const prime = { ...ask, requestsMax: REPLAY_KEYS, leadInMs: 0, measureMs: PRIME_MS_MAX }
    const primed = await load.ask<LoadResult>(prime, PRIME_MS_MAX * 2)
    if (primed.wrong > 0) throw new Error(`its first answers were wrong: ${primed.wrongExample}`)
  }
  const before = await server.ask<ServerUsage>({ ask: 'usage' }, USAGE_MS_MAX)
  const startedAt = performance.now()
  const result = await load.ask<LoadResult>(ask, LEAD_IN_MS + ask.measureMs + PRIME_MS_MAX)
  const tookUs = (performance.now() - startedAt) * 1000
  const after = await server.ask<ServerUsage>({ ask: 'usage' }, USAGE_MS_MAX)
  const runsExpected = isReplay && contestant.kind !== 'bare' ? 0 : result.requestsTotal
  const fault = faultOf(result, after.runs - before.runs, runsExpected)
  return {
    requestsPerSecond: (result.requests / result.measuredMs) * 1000,
    p50Ms: result.p50Ms,
    p95Ms: result.p95Ms,
    p99Ms: result.p99Ms,
    cpuUsPerRequest: (after.cpuUs - before.cpuUs) / result.requestsTotal,
    loadCoreShare: result.cpuUs / tookUs,
    ...(fault !== undefined && { fault }),
  }
}

function faultOf({ wrong, wrongExample, requestsTotal }: LoadResult, runs: number, expected: number) {
  if (wrong > 0) return `${wrong} of ${requestsTotal} answers were wrong: ${wrongExample}`
  if (runs !== expected) return `the handler ran ${runs} times; it should have run ${expected} times`
  return undefined
}

function rowOf({ contestant, absent, probes, slices }: Entry, entries: readonly Entry[]): Row {
  const { name, framework, kind, label, settings } = contestant
  const bare = entries.find((one) => one.contestant.kind === 'bare' && one.contestant.framework === framework)
  const scenarios: Row['scenarios'] = {}
  for (const { name: scenario } of SCENARIOS) {
    const own = slices[scenario]
    if (absent !== undefined || own.length === 0) continue
    scenarios[scenario] = { summary: summarize(own, bare?.slices[scenario] ?? own), slices: own }
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
    options.only === undefined && options.peers && results.rows.every(({ absent }) => absent === undefined)
  if (!isWhole) return void process.stderr.write('Not every contestant took part: bench/results is left as it was.\n')
  mkdirSync(RESULTS, { recursive: true })
  writeFileSync(join(RESULTS, 'latest.json'), json)
  writeFileSync(join(RESULTS, 'latest.svg'), renderSvg(results))
}

function messageOf(error: unknown): string {
  // Paths relative to the project: messages end up in the results, which others read.
  return (error instanceof Error ? error.message : String(error)).replaceAll(ROOT, '')
}

try {
  await main()
} catch (error) {
  process.stderr.write(`bench: ${messageOf(error)}\n`)
  process.exitCode = 1
}
