import type { History } from './history.ts'

export interface Gauge {
  readonly name: string
  readonly help: string
  readonly value: number
}

/** Prometheus' text format. Counters are of this process; several gates are summed by whoever collects them. */
export function renderMetrics(history: History, gauges: readonly Gauge[]): string {
  const lines = [
    '# HELP oncekey_events_total What happened to operations, by type of event.',
    '# TYPE oncekey_events_total counter',
    ...[...history.counters].map(([type, count]) => `oncekey_events_total{type="${escaped(type)}"} ${count}`),
  ]
  for (const { name, help, value } of gauges) {
    lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} gauge`, `${name} ${value}`)
  }
  return `${lines.join('\n')}\n`
}

function escaped(value: string): string {
  return value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')
}
