import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import { type OperationView, session } from '../api.ts'
import { ago, clock, count, duration, number, shortId } from '../format.ts'
import { useKeys } from '../keys.ts'
import { Listing, ROWS_MAX } from '../listing.ts'
import { Route, StateBadge, StatusCode } from '../parts/badges.tsx'
import { Empty, Failed, Loading } from '../parts/states.tsx'
import { useNarrow, VirtualList } from '../parts/virtual-list.tsx'
import { useTitle } from '../polled.ts'
import { go, operationHref, place } from '../router.ts'

const FIELDS = ['q', 'route', 'principal', 'state'] as const
type Field = (typeof FIELDS)[number]
const STATES = ['running', 'unknown', 'settled', 'expired'] as const
/** How long somebody must have stopped typing before the store is asked. */
const TYPING_MS = 250

/** The last search stays as it was left: coming back from an operation finds the same rows at the same place. */
const listing = signal<Listing | undefined>(undefined)

function search(query: string): void {
  listing.peek()?.stop()
  listing.value = new Listing(query)
}

export function OperationsView() {
  useTitle('Operations')
  const query = searched(place.value.params)
  const text = query.toString()
  const { value: asker } = session
  useEffect(() => {
    if (listing.peek()?.query !== text || listing.peek()?.progress.peek().error) search(text)
  }, [text, asker])
  const reload = (): void => search(text)
  useKeys({ r: reload })
  const { value: shown } = listing
  return (
    <div class="view tall">
      <div class="view-head">
        <h1>Operations</h1>
        <Filter params={query} />
        <button type="button" onClick={reload} title="Load again (r)">
          Reload
        </button>
      </div>
      {shown !== undefined && shown.query === text && <Found key={text} listing={shown} isFiltered={text !== ''} />}
    </div>
  )
}

function Filter({ params }: { params: URLSearchParams }) {
  return (
    <search class="filter">
      <Text field="q" label="Key or id" params={params} isSearch />
      <Text field="route" label="Route" params={params} />
      <Text field="principal" label="Principal" params={params} />
      <select
        aria-label="State"
        value={params.get('state') ?? ''}
        onChange={({ currentTarget: { value } }) => narrow('state', value)}
      >
        <option value="">any state</option>
        {STATES.map((state) => (
          <option key={state}>{state}</option>
        ))}
      </select>
    </search>
  )
}

interface TextProps {
  readonly field: Field
  readonly label: string
  readonly params: URLSearchParams
  readonly isSearch?: boolean
}

function Text({ field, label, params, isSearch }: TextProps) {
  const given = params.get(field) ?? ''
  const [typed, setTyped] = useState(given)
  // What this field itself has put into the address must not come back over what was typed since.
  const sent = useRef(given)
  useEffect(() => {
    if (given === sent.current) return
    sent.current = given
    setTyped(given)
  }, [given])
  useEffect(() => {
    const value = typed.trim()
    if (value === sent.current) return
    const timer = setTimeout(() => {
      sent.current = value
      narrow(field, value)
    }, TYPING_MS)
    return () => clearTimeout(timer)
  }, [typed, field])
  return (
    <input
      type="search"
      aria-label={label}
      placeholder={isSearch ? `${label}  ( / )` : label}
      value={typed}
      autocomplete="off"
      spellcheck={false}
      {...(isSearch && { 'data-search': '' })}
      onInput={({ currentTarget }) => setTyped(currentTarget.value)}
    />
  )
}

/** The address says what is searched for, so that it can be sent to somebody; typing fills no history. */
function narrow(field: Field, value: string): void {
  const next = searched(place.peek().params)
  if (value === '') next.delete(field)
  else next.set(field, value)
  go(`/operations${next.size === 0 ? '' : `?${next}`}`, 'replace')
}

function searched(params: URLSearchParams): URLSearchParams {
  return new URLSearchParams(FIELDS.flatMap((name) => (params.get(name) ? [[name, params.get(name) ?? '']] : [])))
}

function Found({ listing: found, isFiltered }: { listing: Listing; isFiltered: boolean }) {
  const isNarrow = useNarrow()
  const { rows, scanned, state, error } = found.progress.value
  useEffect(() => {
    if (found.progress.peek().scanned === 0) void found.more()
  }, [found])
  if (rows.length === 0) {
    if (error !== undefined) return <Failed what="The operations" error={error} retry={() => void found.more()} />
    if (state === 'complete') return <Nothing isFiltered={isFiltered} scanned={scanned} />
    if (state !== 'paused') return <Loading what={scanned === 0 ? 'operations' : `(${number(scanned)} looked at)`} />
  }
  return (
    <>
      <Summary listing={found} />
      {!isNarrow && <Columns />}
      <VirtualList
        label="Operations"
        rows={rows}
        rowPx={isNarrow ? 62 : 38}
        rowKey={({ id }) => id}
        rowHref={({ id }) => operationHref(id)}
        spot={found.spot}
        onNearEnd={() => {
          if (found.progress.peek().state === 'more') void found.more()
        }}
        onEnd={() => found.all()}
      >
        {(operation) => <OperationRow operation={operation} />}
      </VirtualList>
    </>
  )
}

function Nothing({ isFiltered, scanned }: { isFiltered: boolean; scanned: number }) {
  if (!isFiltered) {
    return <Empty title="The store is empty.">A record is made by the first request that comes with a key.</Empty>
  }
  return (
    <Empty title="Nothing was found.">
      {count('record', scanned)} looked at. A key is found by any part of it, an id by its beginning, a route by any
      part, a principal only whole. Operations that were recorded without labels are found by id alone.
    </Empty>
  )
}

function Summary({ listing: found }: { listing: Listing }) {
  const { rows, scanned, state, error, isNewestFirst } = found.progress.value
  const words = {
    loading: `${number(rows.length)} loaded, more on their way …`,
    more: `${number(rows.length)} loaded, in the order of their ids; scroll on for more.`,
    paused: `${number(rows.length)} found among the ${number(scanned)} records looked at so far.`,
    complete: `${count('operation', rows.length)}${isNewestFirst ? ', newest first' : ', in the order of their ids'}.`,
    full: `The first ${number(ROWS_MAX)}; there are more. Narrow the search to see them.`,
  }[state]
  return (
    <p class="summary" role="status">
      {error === undefined ? words : `${words} Then it failed: ${error.message}`}{' '}
      {state === 'paused' && (
        <button type="button" onClick={() => void found.more()}>
          Go on
        </button>
      )}
    </p>
  )
}

function Columns() {
  return (
    <div class="cells operation-cells columns" aria-hidden="true">
      <span>State</span>
      <span>Route</span>
      <span>Key</span>
      <span>Principal</span>
      <span>Answer</span>
      <span>Attempt</span>
      <span>Created</span>
      <span>Left</span>
    </div>
  )
}

function OperationRow({ operation }: { operation: OperationView }) {
  const { id, state, labels, attempt, createdAt, goneAt, leaseLeftMs } = operation
  return (
    <div class="cells operation-cells">
      <StateBadge state={state} />
      <Route labels={labels} />
      <a class="mono cut cover" href={operationHref(id)} title={id}>
        {labels.key ?? shortId(id)}
      </a>
      <span class="cut">{labels.principal}</span>
      <StatusCode operation={operation} />
      <span class={attempt > 1 ? 'attempt many' : 'attempt'}>{attempt}</span>
      <time class="quiet" dateTime={new Date(createdAt).toISOString()} title={clock(createdAt)}>
        {ago(createdAt)}
      </time>
      <span class="quiet left" title={leaseLeftMs === undefined ? 'until it is forgotten' : 'of its lease'}>
        {duration(leaseLeftMs ?? goneAt - Date.now())}
      </span>
    </div>
  )
}
