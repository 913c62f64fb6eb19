import type { OperationView } from '../api.ts'
import { ago, clock, count, duration, shortId } from '../format.ts'
import { useKeys } from '../keys.ts'
import { Actions } from '../parts/actions.tsx'
import { Route, StateBadge } from '../parts/badges.tsx'
import { Empty, Failed, Loading, Stale } from '../parts/states.tsx'
import { useNarrow, VirtualList } from '../parts/virtual-list.tsx'
import { usePolled, useTick, useTitle } from '../polled.ts'
import { operationHref } from '../router.ts'

const EVERY_MS = 3_000
const SHOWN_MAX = 1_000
const TICK_MS = 250

interface Page {
  readonly operations: readonly OperationView[]
  readonly next: string | null
}

/** What has no answer yet: unknown outcomes that wait for somebody to decide, and what is running. */
export function StuckView() {
  useTitle('In flight')
  const unknown = usePolled<Page>(`/api/operations?state=unknown&limit=${SHOWN_MAX}`, EVERY_MS)
  const running = usePolled<Page>(`/api/operations?state=running&limit=${SHOWN_MAX}`, EVERY_MS)
  const isNarrow = useNarrow()
  const reload = (): void => {
    unknown.reload()
    running.reload()
  }
  useKeys({ r: reload })
  const error = unknown.error ?? running.error
  if (unknown.data === undefined || running.data === undefined) {
    if (error !== undefined) return <Failed what="What is in flight" error={error} retry={reload} />
    return <Loading what="what is in flight" />
  }
  const oldestFirst = unknown.data.operations.toSorted((a, b) => a.createdAt - b.createdAt)
  const leastLeftFirst = running.data.operations.toSorted((a, b) => (a.leaseLeftMs ?? 0) - (b.leaseLeftMs ?? 0))
  const rows = [...oldestFirst, ...leastLeftFirst]
  const isMore = unknown.data.next !== null || running.data.next !== null
  return (
    <div class="view tall">
      <div class="view-head">
        <h1>In flight and stuck</h1>
        <span class="quiet" role="status">
          {count('unknown outcome', oldestFirst.length)}, {leastLeftFirst.length} running
          {isMore && `; of each the first ${SHOWN_MAX} in the order of their ids`}
        </span>
      </div>
      <Stale error={error} />
      {rows.length === 0 ? (
        <Empty title="Nothing is in flight, and nothing is stuck.">
          Here stand operations whose handler runs now, with what is left of its lease, and those whose outcome nobody
          knows.
        </Empty>
      ) : (
        <VirtualList
          label="Operations without an answer"
          rows={rows}
          rowPx={isNarrow ? 104 : 52}
          rowKey={({ id }) => id}
          rowHref={({ id }) => operationHref(id)}
        >
          {(operation) => <StuckRow operation={operation} atMs={running.atMs} onDone={reload} />}
        </VirtualList>
      )}
    </div>
  )
}

function StuckRow({ operation, atMs, onDone }: { operation: OperationView; atMs: number; onDone: () => void }) {
  const { id, state, labels, attempt, createdAt, goneAt, leaseLeftMs } = operation
  return (
    <div class="cells stuck-cells">
      <StateBadge state={state} />
      <span class="two">
        <a class="mono cut cover" href={operationHref(id)} title={id}>
          {labels.key ?? shortId(id)}
        </a>
        <Route labels={labels} />
      </span>
      <span class="cut">{labels.principal}</span>
      <span class="quiet" title={clock(createdAt)}>
        {ago(createdAt)}
        {attempt > 1 && `, attempt ${attempt}`}
      </span>
      {leaseLeftMs === undefined ? (
        <span class="quiet lease" title="when its record is forgotten">
          gone in {duration(goneAt - Date.now())}
        </span>
      ) : (
        <Lease leftMs={leaseLeftMs} atMs={atMs} />
      )}
      <Actions operation={operation} onDone={onDone} />
    </div>
  )
}

/** Counts down by itself; the next answer corrects it, up again when the owner has renewed it. */
function Lease({ leftMs, atMs }: { leftMs: number; atMs: number }) {
  useTick(TICK_MS)
  const nowMs = Math.max(0, leftMs - (performance.now() - atMs))
  return (
    <span class={nowMs === 0 ? 'lease over' : 'lease'}>
      <span>{nowMs === 0 ? 'lease lapsed' : `lease ${duration(nowMs)}`}</span>
      <progress max={LEASE_SHOWN_MS} value={nowMs} aria-label="Lease left" />
    </span>
  )
}

/** The lease of every contract of the house; a longer one shows as full. */
const LEASE_SHOWN_MS = 30_000
