import { fileURLToPath } from 'node:url'
import type { Child, ServerUsage } from './child.ts'
import type { Contestant } from './contestants/index.ts'
import type { LoadAsk, LoadResult } from './load.ts'
import type { Options } from './options.ts'
import type { Probes } from './probe.ts'
import { Progress } from './progress.ts'
import type { Results, ScenarioName, Slice } from './results.ts'

const USAGE_MS_MAX = 5_000
const LEAD_IN_MS = 150
const REPLAY_KEYS = 1_000
const PRIME_MS_MAX = 15_000
/** Rounds that do not count: code is compiled, and stores fill, while they run. */
const WARM_UP_ROUNDS = 2

export const SCENARIOS: Results['scenarios'] = [
  { name: 'new-keys', title: 'New keys: every request is a new operation' },
  { name: 'replays', title: `Replays: ${REPLAY_KEYS.toLocaleString('en')} keys that were answered before` },
]

/** A contestant at work, or the reason why it is not. */
export interface Entry {
  readonly contestant: Contestant
  readonly server?: Child
  readonly port: number
  absent?: string
  probes?: Probes
  readonly slices: Record<ScenarioName, Slice[]>
}

/**
 * Round-robin, and each contestant right before or right after its bare framework: on a machine that is shared with
 * others the next seconds are not like the last. Every second round goes the other way, so that nobody always comes
 * after the same neighbour.
 */
export async function measure(
  entries: readonly Entry[],
  scenarios: Results['scenarios'],
  load: Child,
  options: Options,
): Promise<void> {
  const started = entries.filter(({ absent }) => absent === undefined)
  const takingPart = (scenario: ScenarioName) =>
    started.filter(({ contestant }) => scenario === 'new-keys' || contestant.kind !== 'ceiling')
  const slices = scenarios.reduce((sum, { name }) => sum + besideBare(takingPart(name)).flat().length, 0)
  const progress = new Progress(slices * (options.rounds + WARM_UP_ROUNDS))
  const measured = async (entry: Entry, scenario: ScenarioName): Promise<Slice | undefined> => {
    progress.step(entry.contestant.name)
    if (entry.absent !== undefined) return undefined
    try {
      return await measureSlice(entry, scenario, load, options)
    } catch (error) {
      entry.absent = messageOf(error)
      return undefined
    }
  }
  for (let round = -WARM_UP_ROUNDS; round < options.rounds; round++) {
    for (const { name: scenario } of scenarios) {
      const groups = besideBare(takingPart(scenario))
      for (const group of round % 2 === 0 ? groups : groups.toReversed().map((group) => group.toReversed())) {
        const results: Array<readonly [Entry, Slice]> = []
        for (const entry of group) {
          const slice = await measured(entry, scenario)
          if (slice !== undefined) results.push([entry, slice])
        }
        const bare = results.find(([{ contestant }]) => contestant.kind === 'bare')?.[1]
        if (round < 0) continue
        for (const [entry, slice] of results) {
          entry.slices[scenario].push(bare === undefined || bare === slice ? slice : { ...slice, bare: besideOf(bare) })
        }
      }
    }
  }
}

function besideOf({ requestsPerSecond, cpuUsPerRequest, fault }: Slice): NonNullable<Slice['bare']> {
  return { requestsPerSecond, cpuUsPerRequest, ...(fault !== undefined && { fault }) }
}

/** By twos, with the bare framework between them. */
function besideBare(entries: readonly Entry[]): Entry[][] {
  return entries
    .filter(({ contestant }) => contestant.kind === 'bare')
    .flatMap((bare) => {
      const others = entries.filter(
        ({ contestant }) => contestant.framework === bare.contestant.framework && contestant !== bare.contestant,
      )
      const groups: Entry[][] = others.length === 0 ? [[bare]] : []
      for (let at = 0; at < others.length; at += 2) {
        const [one, other] = others.slice(at, at + 2)
        groups.push([one, bare, other].filter((entry) => entry !== undefined))
      }
      return groups
    })
}

export async function measureSlice(
  entry: Entry,
  scenario: ScenarioName,
  load: Child,
  options: Pick<Options, 'connections' | 'seconds'>,
): Promise<Slice> {
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
  const databaseCpuUs = (after.databaseCpuUs ?? 0) - (before.databaseCpuUs ?? 0)
  const fault = faultOf(result, after.runs - before.runs, runsExpected)
  return {
    requestsPerSecond: (result.requests / result.measuredMs) * 1000,
    p50Ms: result.p50Ms,
    p95Ms: result.p95Ms,
    p99Ms: result.p99Ms,
    cpuUsPerRequest: (after.cpuUs - before.cpuUs) / result.requestsTotal,
    loadCoreShare: result.cpuUs / tookUs,
    ...(databaseCpuUs > 0 && { databaseCpuUsPerRequest: databaseCpuUs / result.requestsTotal }),
    ...(fault !== undefined && { fault }),
  }
}

function faultOf({ wrong, wrongExample, requestsTotal }: LoadResult, runs: number, expected: number) {
  if (wrong > 0) return `${wrong} of ${requestsTotal} answers were wrong: ${wrongExample}`
  if (runs !== expected) return `the handler ran ${runs} times; it should have run ${expected} times`
  return undefined
}

const ROOT = fileURLToPath(new URL('..', import.meta.url))

export function messageOf(error: unknown): string {
  // Paths relative to the project: messages end up in the results, which others read.
  return (error instanceof Error ? error.message : String(error)).replaceAll(ROOT, '')
}
