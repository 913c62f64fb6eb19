import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import type { Rates, SeriesName } from '../api.ts'
import { clock, rate } from '../format.ts'
import { colorOf, theme } from '../theme.ts'
import { OUTCOMES } from '../words.ts'

/** Counts per second, in steps that do not move when time goes on. */
export interface Steps {
  readonly timesS: readonly number[]
  readonly widthS: number
  readonly perSecond: Readonly<Record<SeriesName, readonly number[]>>
}

/** The second that is not over yet, and steps that are not whole, are left out: they would look like a fall. */
export function stepsOf({ from, stepMs, series }: Rates, widthMs: number): Steps {
  const per = widthMs / stepMs
  const length = series.executed.length - 1
  const skipped = (Math.ceil(from / widthMs) * widthMs - from) / stepMs
  const count = Math.max(0, Math.floor((length - skipped) / per))
  const starts = Array.from({ length: count }, (_, i) => skipped + i * per)
  const sum = (values: readonly number[], start: number): number =>
    values.slice(start, start + per).reduce((total, value) => total + value, 0)
  const perSecond = Object.fromEntries(
    OUTCOMES.map(({ name }) => [name, starts.map((start) => (sum(series[name], start) * 1_000) / widthMs)]),
  ) as Record<SeriesName, number[]>
  return { timesS: starts.map((start) => (from + start * stepMs) / 1_000), widthS: widthMs / 1_000, perSecond }
}

interface ChartProps {
  readonly steps: Steps
  readonly hidden: ReadonlySet<SeriesName>
  /** Which step the pointer is on; `undefined` when it is on none. */
  readonly onHover: (step: number | undefined) => void
}

const HEIGHT_PX = 240

/** Rates by outcome, one upon the other. */
export function Chart({ steps, hidden, onHover }: ChartProps) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const hover = useRef(onHover)
  hover.current = onHover
  const data = stacked(steps, hidden)
  const latest = useRef(data)
  latest.current = data
  const { value: look } = theme

  // A canvas must be drawn anew in the other theme.
  useEffect(() => {
    const { current: element } = box
    if (element === null) return
    const made = new uPlot(
      options(element.clientWidth, (step) => hover.current(step)),
      latest.current,
      element,
    )
    plot.current = made
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT_PX }))
    observer.observe(element)
    return () => {
      observer.disconnect()
      made.destroy()
    }
  }, [look])

  useEffect(() => plot.current?.setData(data))

  const last = steps.timesS.at(-1)
  const now = OUTCOMES.map(({ name, label }) => `${label} ${rate(steps.perSecond[name].at(-1) ?? 0)}`).join(', ')
  return (
    <div
      class="chart"
      ref={box}
      role="img"
      aria-label={`Rates by outcome over time. ${last === undefined ? '' : `At ${clock(last * 1_000)}: ${now}.`}`}
    />
  )
}

/**
 * uPlot paints one after the other: the highest sum first, each lower one over it. A step is drawn up to the next time, so
 * the last one stands twice.
 */
function stacked({ timesS, widthS, perSecond }: Steps, hidden: ReadonlySet<SeriesName>): uPlot.AlignedData {
  const sums: Array<Array<number | null>> = []
  let below = timesS.map(() => 0)
  for (const { name } of OUTCOMES) {
    if (hidden.has(name)) {
      sums.push(timesS.map(() => null))
      continue
    }
    below = below.map((sum, i) => sum + (perSecond[name][i] ?? 0))
    sums.push(below)
  }
  const twice = <T,>(values: readonly T[]): T[] => [...values, ...values.slice(-1)]
  return [[...timesS, ...timesS.slice(-1).map((at) => at + widthS)], ...sums.reverse().map(twice)]
}

function options(width: number, onHover: (step: number | undefined) => void): uPlot.Options {
  const ink = colorOf('--quiet')
  const line = colorOf('--line')
  const font = '11px system-ui, sans-serif'
  const stepped = uPlot.paths.stepped?.({ align: 1 })
  return {
    width,
    height: HEIGHT_PX,
    padding: [10, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { y: { range: (_, __, max) => [0, Math.max(1, max * 1.08)] } },
    axes: [
      {
        stroke: ink,
        font,
        size: 32,
        grid: { show: false },
        ticks: { stroke: line, size: 4, width: 1 },
        values: (_, splits) => splits.map((at) => clock(at * 1_000)),
        space: 90,
      },
      {
        stroke: ink,
        font,
        size: 46,
        grid: { stroke: line, width: 1 },
        ticks: { show: false },
        values: (_, splits) => splits.map((value) => rate(value)),
      },
    ],
    series: [
      {},
      ...OUTCOMES.toReversed().map(({ name }) => ({
        fill: colorOf(`--${name}`),
        stroke: colorOf('--surface'),
        width: 0.5,
        points: { show: false },
        ...(stepped && { paths: stepped }),
      })),
    ],
    hooks: { setCursor: [({ cursor: { idx } }) => onHover(idx ?? undefined)] },
  }
}
