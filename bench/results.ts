import type { Framework, Kind } from './contestants/index.ts'
import type { Machine } from './machine.ts'
import type { Probes } from './probe.ts'

/** The whole run as it is written to JSON. Ratios are of neighbours: contestant ÷ the bare framework right before or after it. */
export interface Results {
  readonly machine: Machine
  readonly settings: { readonly rounds: number; readonly seconds: number; readonly connections: number }
  readonly scenarios: readonly { readonly name: ScenarioName; readonly title: string }[]
  readonly rows: readonly Row[]
  /** One connection, one request at a time: what a request waits for that nobody shares a batch with. */
  readonly lone: readonly LoneRow[]
}

export type ScenarioName = 'new-keys' | 'replays'

export interface Row {
  readonly name: string
  readonly framework: Framework
  readonly kind: Kind
  readonly label: string
  readonly settings: string
  /** Why there are no numbers, when there are none. */
  readonly absent?: string
  readonly probes?: Probes
  readonly scenarios: Partial<Record<ScenarioName, Measured>>
}

export interface LoneRow {
  readonly name: string
  readonly label: string
  /** Of the medians of the rounds. */
  readonly p50Ms: Spread
  /** The row that it is compared with, and its p50 ÷ that row's, round by round. */
  readonly comparedWith?: string
  readonly ofCompared?: Spread
  readonly fault?: string
}

export interface Measured {
  readonly summary: Summary
  /** Round by round, in order. */
  readonly slices: readonly Slice[]
}

export interface Slice {
  readonly requestsPerSecond: number
  readonly p50Ms: number
  readonly p95Ms: number
  readonly p99Ms: number
  /** Of the server's whole process, its threads included. */
  readonly cpuUsPerRequest: number
  /** Of the database's processes. Absent where there is none. */
  readonly databaseCpuUsPerRequest?: number
  /** How much of one core the load generator used: near 1, it was the limit rather than the server. */
  readonly loadCoreShare: number
  /** What was wrong with the answers. A slice with a fault does not count as a measurement. */
  readonly fault?: string
  /** The bare framework in the seconds beside these. */
  readonly bare?: Pick<Slice, 'requestsPerSecond' | 'cpuUsPerRequest' | 'fault'>
}

export interface Spread {
  readonly median: number
  readonly min: number
  readonly max: number
}

export interface Summary {
  readonly requestsPerSecond: Spread
  /** Throughput ÷ that of the bare framework. */
  readonly ofBare: Spread
  readonly p50Ms: number
  readonly p95Ms: number
  readonly p99Ms: number
  readonly cpuUsPerRequest: Spread
  /** CPU ÷ that of the bare framework: far steadier than throughput on a machine that others use, too. */
  readonly cpuOfBare: Spread
  readonly databaseCpuUsPerRequest?: number
  readonly fault?: string
}

export function summarize(slices: readonly Slice[]): Summary {
  const ratios = (of: (slice: NonNullable<Slice['bare']>) => number): Spread =>
    spread(slices.map((slice) => of(slice) / of(slice.bare ?? slice)))
  const bareFault = slices.find(({ bare }) => bare?.fault !== undefined)?.bare?.fault
  const fault =
    slices.find((slice) => slice.fault !== undefined)?.fault ??
    (bareFault === undefined ? undefined : `nothing to compare with: ${bareFault}`)
  const databaseCpu = slices.flatMap((slice) => slice.databaseCpuUsPerRequest ?? [])
  return {
    requestsPerSecond: spread(slices.map((slice) => slice.requestsPerSecond)),
    ofBare: ratios((slice) => slice.requestsPerSecond),
    p50Ms: median(slices.map((slice) => slice.p50Ms)),
    p95Ms: median(slices.map((slice) => slice.p95Ms)),
    p99Ms: median(slices.map((slice) => slice.p99Ms)),
    cpuUsPerRequest: spread(slices.map((slice) => slice.cpuUsPerRequest)),
    cpuOfBare: ratios((slice) => slice.cpuUsPerRequest),
    ...(databaseCpu.length > 0 && { databaseCpuUsPerRequest: median(databaseCpu) }),
    ...(fault !== undefined && { fault }),
  }
}

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length / 2
  if (sorted.length % 2 === 1) return sorted[Math.floor(middle)] ?? 0
  return ((sorted[middle - 1] ?? 0) + (sorted[middle] ?? 0)) / 2
}

export function spread(values: readonly number[]): Spread {
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) }
}

/** The end of the name of a row that shows another build: `--against`. */
export const AGAINST = '@against'

/** Rows that nobody would run: they only show what something brings. */
export function isForComparison(name: string): boolean {
  return name.endsWith('-unbatched') || name.endsWith(AGAINST)
}
