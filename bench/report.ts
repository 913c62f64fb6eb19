import { isForComparison, type LoneRow, type Results, type Row, type ScenarioName, type Summary } from './results.ts'

/** The goals of the project, as they are checked in every run. */
const TARGETS: readonly Target[] = [
  { row: 'fastify+memory', scenario: 'new-keys', ofBareMin: 0.85 },
  { row: 'fastify+sqlite', scenario: 'new-keys', ofBareMin: 0.7 },
  { row: 'fastify+redis', scenario: 'new-keys', ofBareMin: 0.75 },
  { row: 'fastify+postgres', scenario: 'new-keys', ofBareMin: 0.5 },
  { row: 'fastify+memory', scenario: 'replays', ofBareMin: 0.9 },
  { row: 'fastify+sqlite', scenario: 'replays', ofBareMin: 0.9 },
]

/** A lone request pays no batching delay: its p50 ÷ the same without batching. */
const LONE_OF_UNBATCHED_MAX = 1.1
/** Batching pays: throughput ÷ the same without it. */
const OF_UNBATCHED_MIN = 5

/** A16: answers stay within this, 95 of 100. */
const P95_MS_MAX = 25
const LOAD_CORE_SHARE_MAX = 0.9

interface Target {
  readonly row: string
  readonly scenario: ScenarioName
  readonly ofBareMin: number
}

export function renderTable(results: Results): string {
  const { machine, settings } = results
  const lines = [
    '',
    `Node ${machine.node}, ${machine.cores} cores, ${machine.cpu}; fsync ${machine.fsyncUs} µs; ` +
      `load before ${machine.loadBefore}`,
    `${settings.connections} connections, ${settings.rounds} rounds of ${settings.seconds} s each, interleaved. ` +
      'Medians; in brackets the lowest and the highest round.',
  ]
  for (const { name, title } of results.scenarios) {
    const [ceilings, rows] = [results.rows.filter(isCeiling), results.rows.filter((row) => !isCeiling(row))]
    const table = [HEADINGS, ...rows.map((row) => cells(row, name))]
    if (name !== 'new-keys' || ceilings.length === 0) {
      lines.push('', bold(title), ...align(table))
      continue
    }
    const [heading = '', ...all] = align([...table, ...ceilings.map((row) => cells(row, name))])
    lines.push('', bold(title), heading, ...all.slice(0, rows.length), '', bold(CEILINGS), ...all.slice(rows.length))
  }
  if (results.lone.length > 0) lines.push('', bold(LONE), ...align([LONE_HEADINGS, ...results.lone.map(loneCells)]))
  lines.push('', bold('Goals'), ...goals(results), '', bold('Settings'), ...settingsOf(results), ...warnings(results))
  return `${lines.join('\n')}\n`
}

const CEILINGS =
  'Ceilings: no idempotency, only the two durable writes of a few bytes that any layer needs; the most this machine gives'
const LONE = 'A lone request: one connection, new keys'

function isCeiling({ kind }: Row): boolean {
  return kind === 'ceiling'
}

const LONE_HEADINGS: readonly string[] = ['', 'p50 ms', '', '× unbatched']

function loneCells({ label, p50Ms, ofCompared, fault }: LoneRow): readonly string[] {
  if (fault !== undefined) return [label, `invalid: ${fault}`]
  const range = `(${p50Ms.min.toFixed(2)}–${p50Ms.max.toFixed(2)})`
  return [label, p50Ms.median.toFixed(2), range, ofCompared === undefined ? '' : ofCompared.median.toFixed(2)]
}

const HEADINGS: readonly string[] = [
  '',
  'req/s',
  'of bare',
  '',
  'p50 ms',
  'p95 ms',
  'p99 ms',
  'CPU µs/req',
  '× bare',
  'database',
  'replay',
  'race',
  'mismatch',
]

function cells(row: Row, scenario: ScenarioName): readonly string[] {
  const label = row.kind === 'bare' ? row.label : `  ${row.label}`
  const summary = row.scenarios[scenario]?.summary
  if (summary === undefined) return [label, row.absent ?? 'not measured']
  if (summary.fault !== undefined) return [label, `invalid: ${summary.fault}`]
  const { requestsPerSecond, ofBare, p50Ms, p95Ms, p99Ms, cpuUsPerRequest, cpuOfBare } = summary
  const isBare = row.kind === 'bare'
  return [
    label,
    Math.round(requestsPerSecond.median).toLocaleString('en'),
    `${percent(ofBare.median)} %`,
    isBare ? '' : `(${percent(ofBare.min)}–${percent(ofBare.max)})`,
    p50Ms.toFixed(2),
    p95Ms.toFixed(2),
    p99Ms.toFixed(2),
    cpuUsPerRequest.median.toFixed(1),
    isBare ? '' : cpuOfBare.median.toFixed(2),
    summary.databaseCpuUsPerRequest?.toFixed(1) ?? '',
    ...(isBare || isCeiling(row) ? [] : [mark(row.probes?.replay), mark(row.probes?.race), mark(row.probes?.mismatch)]),
  ]
}

function goals(results: Results): readonly string[] {
  const lines = TARGETS.flatMap(({ row, scenario, ofBareMin }) => {
    const summary = summaryOf(results, row, scenario)
    if (summary === undefined) return []
    const { median } = summary.ofBare
    const isMet = median >= ofBareMin && summary.fault === undefined
    const ceiling = summaryOf(results, `${row}-ceiling`, scenario)
    const beside = ceiling === undefined ? '' : `; its ceiling here is ${percent(ceiling.ofBare.median)} %`
    return [`${mark(isMet)} ${row}, ${scenario}: ${percent(median)} % of bare (goal ${percent(ofBareMin)} %)${beside}`]
  })
  lines.push(...batchingGoals(results))
  for (const { name } of results.scenarios) {
    for (const peer of results.rows.filter(({ kind }) => kind === 'peer')) lines.push(...behind(results, peer, name))
  }
  const ours = results.rows.filter(({ kind, name }) => kind === 'oncekey' && !isForComparison(name))
  const p95s = ours.flatMap((row) => results.scenarios.flatMap(({ name }) => row.scenarios[name]?.summary.p95Ms ?? []))
  const worst = Math.max(0, ...p95s)
  if (p95s.length > 0)
    lines.push(`${mark(worst <= P95_MS_MAX)} A16: p95 ${worst.toFixed(2)} ms at worst (goal ${P95_MS_MAX} ms)`)
  return lines.length > 0 ? lines : ['none of the rows with a goal was measured']
}

function batchingGoals(results: Results): readonly string[] {
  const lines: string[] = []
  const batched = summaryOf(results, 'fastify+postgres', 'new-keys')?.requestsPerSecond.median
  const single = summaryOf(results, 'fastify+postgres-unbatched', 'new-keys')?.requestsPerSecond.median
  if (batched !== undefined && single !== undefined) {
    const text = `fastify+postgres, new-keys: ${(batched / single).toFixed(1)} × the same with batching off`
    lines.push(`${mark(batched >= OF_UNBATCHED_MIN * single)} ${text} (goal ${OF_UNBATCHED_MIN})`)
  }
  for (const { name, comparedWith, ofCompared, fault } of results.lone) {
    if (ofCompared === undefined) continue
    const isMet = ofCompared.median <= LONE_OF_UNBATCHED_MAX && fault === undefined
    const text = `${name}, a lone request: ${ofCompared.median.toFixed(2)} × ${comparedWith}`
    lines.push(`${mark(isMet)} ${text} (goal ${LONE_OF_UNBATCHED_MAX})`)
  }
  return lines
}

/** A peer must be behind oncekey on the same framework and the same kind of store. */
function behind(results: Results, peer: Row, scenario: ScenarioName): readonly string[] {
  const theirs = peer.scenarios[scenario]?.summary
  const store = peer.name.endsWith('-redis') ? 'redis' : 'memory'
  const ours = summaryOf(results, `${peer.framework}+${store}`, scenario)
  if (theirs === undefined || ours === undefined) return []
  const text = `${peer.name}, ${scenario}: ${percent(theirs.ofBare.median)} %, ours ${percent(ours.ofBare.median)} %`
  return [`${mark(theirs.fault !== undefined || theirs.ofBare.median < ours.ofBare.median)} ${text}`]
}

function summaryOf({ rows }: Results, name: string, scenario: ScenarioName): Summary | undefined {
  return rows.find((row) => row.name === name)?.scenarios[scenario]?.summary
}

function settingsOf({ rows }: Results): readonly string[] {
  return align(rows.map(({ name, settings }) => [name, settings]))
}

function warnings({ rows, machine }: Results): readonly string[] {
  const lines: string[] = []
  const shares = rows.flatMap((row) =>
    Object.values(row.scenarios).flatMap(({ slices }) => slices.map(({ loadCoreShare }) => loadCoreShare)),
  )
  const share = Math.max(0, ...shares)
  if (share > LOAD_CORE_SHARE_MAX) {
    lines.push(
      `The load generator used ${percent(share)} % of a core at its peak: the fastest rows may be limited by it, and ` +
        'look closer to each other than they are. The column CPU µs/req does not suffer from this.',
    )
  }
  if (machine.loadBefore > machine.cores / 4) {
    lines.push(
      `The machine was busy (load ${machine.loadBefore}) before the run began: trust CPU µs/req more than req/s.`,
    )
  }
  return lines.length > 0 ? ['', ...lines] : []
}

/** Columns, two spaces apart: the first two to the left when they are text, numbers to the right. */
function align(table: readonly (readonly string[])[]): readonly string[] {
  const widths: number[] = []
  for (const row of table) {
    // A row that ends early says something in words; it must not widen the column of numbers.
    const isWhole = row.length > 2 || table.every((one) => one.length === row.length)
    row.forEach((cell, at) => {
      if (at === 0 || isWhole) widths[at] = Math.max(widths[at] ?? 0, cell.length)
    })
  }
  return table.map((row) =>
    row
      .map((cell, at) => (at === 0 || row.length === 2 ? cell.padEnd(widths[at] ?? 0) : cell.padStart(widths[at] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
}

export function percent(share: number): string {
  return (share * 100).toFixed(0)
}

function mark(holds: boolean | undefined): string {
  return holds === undefined ? '?' : holds ? '✓' : '✗'
}

function bold(text: string): string {
  return process.stdout.isTTY && !process.env.NO_COLOR ? `\x1b[1m${text}\x1b[22m` : text
}
