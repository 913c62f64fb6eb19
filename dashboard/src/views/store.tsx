import { useEffect, useState } from 'preact/hooks'
import type { Expiry } from '../api.ts'
import { bytes, clock, count, duration, number } from '../format.ts'
import { useKeys } from '../keys.ts'
import { StateBadge } from '../parts/badges.tsx'
import { Empty, Failed, Loading, Stale } from '../parts/states.tsx'
import { usePolled, useTitle } from '../polled.ts'
import { status } from '../status.ts'

const EXPIRY_EVERY_MS = 15_000
const LATENCIES_MAX = 120

/** Whether the store answers, how fast, what it holds, and when that will be gone. */
export function StoreView() {
  useTitle('Store')
  const { data, error, reload } = usePolled<Expiry>('/api/expiry', EXPIRY_EVERY_MS)
  useKeys({ r: reload })
  return (
    <div class="view">
      <div class="view-head">
        <h1>Store</h1>
        <button type="button" onClick={reload} title="Load again (r)">
          Reload
        </button>
      </div>
      <Health />
      {data === undefined ? (
        error === undefined ? (
          <Loading what="what the store holds" />
        ) : (
          <Failed what="What the store holds" error={error} retry={reload} />
        )
      ) : (
        <>
          <Stale error={error} />
          {data.scanned === 0 ? (
            <Empty title="The store is empty.">A record is made by the first request that comes with a key.</Empty>
          ) : (
            <div class="panels two-panels">
              <Held expiry={data} />
              <Histogram expiry={data} />
            </div>
          )}
        </>
      )}
    </div>
  )
}

function Health() {
  const { value } = status
  const [latencies, setLatencies] = useState<readonly number[]>([])
  useEffect(() => {
    if (value?.store.ok) setLatencies((before) => [...before, value.store.latencyMs].slice(-LATENCIES_MAX))
  }, [value])
  if (value === undefined) return <Loading what="the store’s health" />
  const { name, ok, latencyMs, error } = value.store
  return (
    <section class="panel health" aria-label="Health">
      <div>
        <h2>Health</h2>
        <p class={ok ? 'big good' : 'big bad'}>
          {name} {ok ? 'answers' : 'does not answer'}
        </p>
        {error !== undefined && <p role="alert">{error}</p>}
        <p class="quiet">
          {ok ? `One read took ${latencyMs.toFixed(2)} ms.` : `Given up after ${duration(latencyMs)}.`} Asked every 5 s;
          this process runs since {clock(value.startedAt)}.
        </p>
      </div>
      <Sparkline values={latencies} />
    </section>
  )
}

const SPARK = { width: 300, height: 56 } as const

function Sparkline({ values }: { values: readonly number[] }) {
  if (values.length < 2) return <p class="quiet">The course of the latency is drawn while this page is open.</p>
  const max = Math.max(...values)
  const x = (i: number): number => (i / (values.length - 1)) * SPARK.width
  const y = (value: number): number => SPARK.height - 2 - (value / (max || 1)) * (SPARK.height - 4)
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(' ')
  const label = `Latency of the last ${values.length} reads: at most ${max.toFixed(2)} ms`
  return (
    <figure class="spark">
      <svg viewBox={`0 0 ${SPARK.width} ${SPARK.height}`} role="img" aria-label={label} preserveAspectRatio="none">
        <polyline points={points} />
      </svg>
      <figcaption class="quiet">{label}</figcaption>
    </figure>
  )
}

function Held({ expiry: { states, bodyBytes, scanned, complete } }: { expiry: Expiry }) {
  return (
    <section class="panel" aria-label="What it holds">
      <h2>What it holds</h2>
      <ul class="bars">
        {Object.entries(states).map(([state, amount]) => (
          <Bar key={state} amount={amount} of={scanned}>
            <a href={`/operations?state=${state}`}>
              <StateBadge state={state} />
            </a>
          </Bar>
        ))}
      </ul>
      <p class="quiet">
        {complete
          ? `${count('record', scanned)}, which is all; bodies of ${bytes(bodyBytes)}.`
          : `Of the first ${number(scanned)} records, in the order of their ids; there are more. Ids are hashes: the shares hold for all of them. Bodies of ${bytes(bodyBytes)} in these.`}
      </p>
    </section>
  )
}

function Histogram({ expiry: { buckets, scanned, complete } }: { expiry: Expiry }) {
  const max = Math.max(...buckets.map((bucket) => bucket.count))
  return (
    <section class="panel" aria-label="When records are gone">
      <h2>When records are gone</h2>
      <ul class="bars">
        {buckets.map(({ untilMs, count: amount }) => (
          <Bar key={untilMs} amount={amount} of={max}>
            {untilMs === null ? 'later' : `within ${duration(untilMs)}`}
          </Bar>
        ))}
      </ul>
      <p class="quiet">
        {complete ? 'Each record stands in the first line that holds it.' : `Of the first ${number(scanned)} records.`}
      </p>
    </section>
  )
}

function Bar({ amount, of, children }: { amount: number; of: number; children: preact.ComponentChildren }) {
  return (
    <li>
      <span class="bar-name">{children}</span>
      <span class="bar" aria-hidden="true">
        <span style={{ width: `${of === 0 ? 0 : (100 * amount) / of}%` }} />
      </span>
      <span class="bar-count">{number(amount)}</span>
    </li>
  )
}
