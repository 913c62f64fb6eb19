import { useMemo, useState } from 'preact/hooks'
import type { OperationView, Rates, SeriesName, Status } from '../api.ts'
import { ago, clock, count, duration, number, rate } from '../format.ts'
import { useKeys } from '../keys.ts'
import { Route, StateBadge } from '../parts/badges.tsx'
import { Chart, type Steps, stepsOf } from '../parts/chart.tsx'
import { Failed, Loading, Stale } from '../parts/states.tsx'
import { usePolled, useTitle } from '../polled.ts'
import { operationHref } from '../router.ts'
import { status } from '../status.ts'
import { OUTCOMES } from '../words.ts'

const WINDOWS = [
  { label: '1 min', windowS: 60, stepMs: 1_000 },
  { label: '5 min', windowS: 300, stepMs: 2_000 },
  { label: '15 min', windowS: 900, stepMs: 5_000 },
] as const
const RATES_EVERY_MS = 2_000
const UNKNOWN_EVERY_MS = 10_000
const UNKNOWN_SHOWN = 5

export function Overview() {
  useTitle('Overview')
  const [span, setSpan] = useState<(typeof WINDOWS)[number]>(WINDOWS[1])
  const { data, error, reload } = usePolled<Rates>(`/api/rates?window=${span.windowS}`, RATES_EVERY_MS)
  useKeys({ r: reload })
  return (
    <div class="view">
      <div class="view-head">
        <h1>Overview</h1>
        <fieldset class="choice">
          <legend>Time shown</legend>
          {WINDOWS.map((window) => (
            <button type="button" key={window.label} aria-pressed={window === span} onClick={() => setSpan(window)}>
              {window.label}
            </button>
          ))}
        </fieldset>
      </div>
      {data === undefined ? (
        error === undefined ? (
          <Loading what="the rates" />
        ) : (
          <Failed what="The rates" error={error} retry={reload} />
        )
      ) : (
        <>
          <Stale error={error} />
          <Outcomes rates={data} stepMs={span.stepMs} label={span.label} />
        </>
      )}
      <div class="panels">
        <Attention />
        <GatePanel />
        <CountersPanel />
      </div>
    </div>
  )
}

/** Numbers, legend and switches in one: each tile is a series of the chart under it. */
function Outcomes({ rates, stepMs, label }: { rates: Rates; stepMs: number; label: string }) {
  const [hidden, setHidden] = useState<ReadonlySet<SeriesName>>(new Set())
  const [hovered, setHovered] = useState<number | undefined>(undefined)
  const steps = useMemo(() => stepsOf(rates, stepMs), [rates, stepMs])
  const toggle = (name: SeriesName): void => {
    const next = new Set(hidden)
    if (!next.delete(name)) next.add(name)
    setHidden(next)
  }
  const total = OUTCOMES.reduce((sum, { name }) => sum + totalOf(rates, name), 0)
  const at = hovered === undefined ? undefined : steps.timesS[hovered]
  return (
    <section class="outcomes" aria-label={`Outcomes of the last ${label}`}>
      <div class="tiles">
        {OUTCOMES.map(({ name, label: title, meaning }) => (
          <button
            type="button"
            class={`tile tone-${name}`}
            key={name}
            aria-pressed={!hidden.has(name)}
            title={`${meaning} Click to ${hidden.has(name) ? 'show' : 'hide'} it in the chart.`}
            onClick={() => toggle(name)}
          >
            <span class="tile-name">{title}</span>
            <span class="tile-count">{number(totalOf(rates, name))}</span>
            <span class="tile-rate">{rate(rateAt(steps, name, hovered))}</span>
          </button>
        ))}
      </div>
      <Chart
        steps={steps}
        hidden={hidden}
        onHover={(step) => setHovered(step && Math.min(step, steps.timesS.length - 1))}
      />
      <p class="chart-note">
        {at !== undefined
          ? `Rates at ${clock(at * 1_000)}, in steps of ${duration(stepMs)}.`
          : total === 0
            ? `Nothing came in the last ${label}. What comes is drawn here as it comes.`
            : `${number(total)} requests in the last ${label}; rates of the last ${duration(stepMs)}.`}
      </p>
    </section>
  )
}

function totalOf({ series }: Rates, name: SeriesName): number {
  return series[name].reduce((sum, value) => sum + value, 0)
}

function rateAt({ perSecond }: Steps, name: SeriesName, step: number | undefined): number {
  return (step === undefined ? perSecond[name].at(-1) : perSecond[name][step]) ?? 0
}

function Attention() {
  const path = `/api/operations?state=unknown&limit=${UNKNOWN_SHOWN + 1}`
  const { data, error, reload } = usePolled<{ operations: OperationView[] }>(path, UNKNOWN_EVERY_MS)
  const found = data?.operations ?? []
  return (
    <section class="panel" aria-label="Unknown outcomes">
      <h2>Unknown outcomes</h2>
      {data === undefined && error !== undefined && <Failed what="The list" error={error} retry={reload} />}
      {data === undefined && error === undefined && <Loading what="the list" />}
      {data !== undefined && found.length === 0 && (
        <p class="quiet">None. Every operation that has ended has an answer.</p>
      )}
      <ul class="plain">
        {found.slice(0, UNKNOWN_SHOWN).map((operation) => (
          <li key={operation.id}>
            <a class="brief" href={operationHref(operation.id)}>
              <StateBadge state={operation.state} />
              <Route labels={operation.labels} />
              <span class="quiet">{ago(operation.createdAt)}</span>
            </a>
          </li>
        ))}
      </ul>
      {found.length > 0 && (
        <p>
          <a href="/stuck">{found.length > UNKNOWN_SHOWN ? 'All of them' : 'Decide'} under In flight</a>
        </p>
      )}
    </section>
  )
}

function GatePanel() {
  const { value } = status
  const { store, gate } = value ?? {}
  return (
    <section class="panel" aria-label="Gate and store">
      <h2>Gate and store</h2>
      {value === undefined ? (
        <Loading what="the status" />
      ) : (
        <dl class="facts">
          <div>
            <dt>Store</dt>
            <dd>
              {store?.name},{' '}
              {store?.ok ? `answers in ${store.latencyMs.toFixed(1)} ms` : `does not answer: ${store?.error}`}
            </dd>
          </div>
          {gate === null && (
            <div>
              <dt>Gate</dt>
              <dd>none: the service protects itself</dd>
            </div>
          )}
          {Object.entries(gate ?? {}).map(([name, fact]) => (
            <Fact key={name} name={name} value={fact} />
          ))}
          <div>
            <dt>Runs since</dt>
            <dd>
              {clock(value.startedAt)}, version {value.version}
            </dd>
          </div>
        </dl>
      )}
    </section>
  )
}

/** Whatever the gate tells of itself; what is switched off is not worth a line. */
function Fact({ name, value }: { name: string; value: unknown }) {
  if (value === undefined || value === null || value === false || name === 'store') return null
  const title = name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)
  const text =
    typeof value === 'object'
      ? Object.entries(value)
          .filter(([, part]) => part !== 0)
          .map(([part, amount]) => `${part.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)} ${amount}`)
          .join(', ') || 'nothing'
      : String(value)
  return (
    <div>
      <dt>{title}</dt>
      <dd>{text}</dd>
    </div>
  )
}

const COUNTERS_SHOWN = 9

function CountersPanel() {
  const counters = Object.entries((status.value as Status | undefined)?.counters ?? {}).sort(([, a], [, b]) => b - a)
  const all = counters.reduce((sum, [, amount]) => sum + amount, 0)
  return (
    <section class="panel" aria-label="Events since the start">
      <h2>Since the start</h2>
      {all === 0 ? (
        <p class="quiet">Nothing has happened yet.</p>
      ) : (
        <dl class="counters">
          {counters.slice(0, COUNTERS_SHOWN).map(([type, amount]) => (
            <div key={type}>
              <dt>{type}</dt>
              <dd>{number(amount)}</dd>
            </div>
          ))}
        </dl>
      )}
      {all > 0 && (
        <p class="quiet">
          {count('event', all)}; <a href="/live">watch them</a>
        </p>
      )}
    </section>
  )
}
