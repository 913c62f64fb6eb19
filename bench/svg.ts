import { percent } from './report.ts'
import { isForComparison, type Results, type Row, type ScenarioName } from './results.ts'

/** One line of bars for each contestant, one column for each scenario; 100 % is the bare framework. */
export function renderSvg(results: Results): string {
  const groups = (['fastify', 'express'] as const).map((framework) => ({
    title: framework === 'fastify' ? 'Fastify' : 'Express 5',
    rows: results.rows.filter(
      (row) => row.framework === framework && HAS_BARS.has(row.kind) && !isForComparison(row.name),
    ),
    bare: results.rows.find((row) => row.framework === framework && row.kind === 'bare'),
  }))
  const parts: string[] = []
  let y = TOP
  for (const { title, rows, bare } of groups) {
    if (rows.length === 0) continue
    parts.push(text(MARGIN, y + 17, title, 'group'))
    results.scenarios.forEach(({ name }, at) => {
      const perSecond = bare?.scenarios[name]?.summary.requestsPerSecond.median ?? 0
      parts.push(text(columnX(at), y + 17, `bare: ${Math.round(perSecond).toLocaleString('en')} requests/s`, 'small'))
    })
    const top = y + GROUP_HEAD
    y = top
    for (const row of rows) {
      parts.push(line(row, results, y))
      y += LINE
    }
    for (const at of results.scenarios.keys()) parts.push(bareLine(at, top - 4, y))
    y += GROUP_GAP
  }
  return svg(y + FOOT, [...head(results), ...parts, ...foot(results, y)])
}

/** A ceiling is no contestant: it is a mark on the bar of the store that it belongs to. */
const HAS_BARS: ReadonlySet<Row['kind']> = new Set(['oncekey', 'peer'])

const WIDTH = 880
const MARGIN = 24
const LABELS = 262
const COLUMN = 292
/** How long a bar of 100 % is. Longer bars end at the column's end, and their number tells the rest. */
const FULL = 220
const LONGEST = 260
/** From this length on the number stands inside the bar. */
const INSIDE = 110
const TOP = 84
const GROUP_HEAD = 28
const GROUP_GAP = 14
const LINE = 27
const BAR = 18
const FOOT = 86
const FOOT_LINE = 18

function columnX(at: number): number {
  return MARGIN + LABELS + at * COLUMN
}

function head({ scenarios }: Results): readonly string[] {
  return [
    text(MARGIN, 32, 'Throughput that is left, in % of the bare framework', 'title'),
    ...scenarios.map(({ title }, at) => text(columnX(at), 66, title.split(':')[0] ?? title, 'column')),
  ]
}

function line(row: Row, { scenarios, rows }: Results, y: number): string {
  const ceiling = rows.find(({ name }) => name === `${row.name}-ceiling`)
  const bars = scenarios.map(({ name }, at) => bar(row, name, columnX(at), y) + mark(ceiling, name, columnX(at), y))
  const label = failedProbes(row) === '' ? row.label : `${row.label} †`
  return text(MARGIN + 12, y + 14, label, row.kind === 'oncekey' ? 'ours' : 'label') + bars.join('')
}

function bar(row: Row, scenario: ScenarioName, x: number, y: number): string {
  const measured = row.scenarios[scenario]
  if (measured === undefined || measured.summary.fault !== undefined) return text(x, y + 14, 'not measured', 'small')
  const { median, min, max } = measured.summary.ofBare
  const width = Math.max(2, Math.min(LONGEST, median * FULL))
  const kind = row.kind === 'oncekey' ? (row.name.endsWith('memory') ? 'memory' : 'durable') : 'peer'
  const spread = `<title>${percent(min)} to ${percent(max)} % in ${measured.slices.length} rounds</title>`
  const rect = `<rect class="${kind}" x="${x}" y="${y}" width="${width.toFixed(1)}" height="${BAR}" rx="3">${spread}</rect>`
  const isInside = width >= INSIDE
  const numberX = isInside ? x + 8 : Number((x + width + 7).toFixed(1))
  return rect + text(numberX, y + 14, `${percent(median)} %`, isInside ? `value on-${kind}` : 'value')
}

/** As far as a bar could reach on this machine. */
function mark(ceiling: Row | undefined, scenario: ScenarioName, x: number, y: number): string {
  const summary = ceiling?.scenarios[scenario]?.summary
  if (ceiling === undefined || summary === undefined || summary.fault !== undefined) return ''
  const { median } = summary.ofBare
  const end = Number((x + Math.min(LONGEST, median * FULL)).toFixed(1))
  const title = `<title>${escapeXml(ceiling.label)}, nothing else: ${percent(median)} %</title>`
  return `<path class="ceiling" d="M${end - 5} ${y - 2}h5v${BAR + 4}h-5">${title}</path>`
}

/** What a bar hides: that the answer was not right. */
function failedProbes({ kind, probes }: Row): string {
  if (probes === undefined || kind === 'bare') return ''
  const failed = [
    ...(probes.replay ? [] : ['a retry does not get the first answer']),
    ...(probes.race ? [] : ['a race runs more than once']),
    ...(probes.mismatch ? [] : ['another body under the same key is not refused']),
  ]
  return failed.join('; ')
}

function bareLine(at: number, top: number, bottom: number): string {
  const x = columnX(at) + FULL
  return `<line class="bare" x1="${x}" y1="${top}" x2="${x}" y2="${bottom - 6}"/>`
}

function foot({ machine, settings, rows }: Results, y: number): readonly string[] {
  const how = `${settings.connections} connections, one run, interleaved, median of ${settings.rounds} rounds`
  const faults = [...new Set(rows.map(failedProbes).filter((fault) => fault !== ''))].join('; ')
  const lines = [
    ...(faults === '' ? [] : [`† as set up here: ${faults}.`]),
    ...(rows.some(({ kind }) => kind === 'ceiling') ? [CEILING_TEXT] : []),
    'Dashed: the bare framework. SQLite, Redis and PostgreSQL sync every commit to disk, on the same two cores.',
    `${how}. Node ${machine.node}, ${machine.cores} cores, shared with the load generator.`,
  ]
  return lines.map((content, at) => text(MARGIN, y + 12 + at * FOOT_LINE, content, 'small'))
}

const CEILING_TEXT =
  'Bracket: two durable writes per request to the same store, and nothing else; what the machine itself leaves to be had.'

function text(x: number, y: number, content: string, kind: string): string {
  return `<text class="${kind}" x="${x}" y="${y}">${escapeXml(content)}</text>`
}

function escapeXml(content: string): string {
  return content.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}

const STYLE = `
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 17px; font-weight: 600 }
  .column, .group { font-weight: 600 }
  .ours { font-weight: 600 }
  .small { font-size: 12px; fill: #59636e }
  .value { font-variant-numeric: tabular-nums }
  .on-memory { fill: #ffffff; font-weight: 600 }
  .on-durable { fill: #06302c; font-weight: 600 }
  .back { fill: #ffffff; stroke: #d1d9e0 }
  .memory { fill: #0f766e }
  .durable { fill: #2dd4bf }
  .peer { fill: #b6bec7 }
  .bare { stroke: #59636e; stroke-dasharray: 3 3 }
  .ceiling { fill: none; stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .small { fill: #9198a1 }
    .on-memory { fill: #06302c }
    .on-durable { fill: #ffffff }
    .back { fill: #0d1117; stroke: #3d444d }
    .memory { fill: #2dd4bf }
    .durable { fill: #0f766e }
    .peer { fill: #57606a }
    .bare { stroke: #9198a1 }
    .ceiling { stroke: #f0f6fc }
  }
`

function svg(height: number, parts: readonly string[]): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" aria-label="Throughput of oncekey and of other libraries, in percent of the bare framework">
<style>${STYLE}</style>
<rect class="back" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>
${parts.join('\n')}
</svg>
`
}
