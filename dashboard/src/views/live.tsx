import { useState } from 'preact/hooks'
import { clock, count } from '../format.ts'
import { useKeys } from '../keys.ts'
import { connection, type FeedEvent, feed } from '../live.ts'
import { Route } from '../parts/badges.tsx'
import { Empty } from '../parts/states.tsx'
import { useNarrow, VirtualList } from '../parts/virtual-list.tsx'
import { useTitle } from '../polled.ts'
import { go, operationHref, place } from '../router.ts'
import { wordsOf } from '../words.ts'

/** What happens, as it happens; the newest on top. */
export function LiveView() {
  useTitle('Live')
  const [frozen, setFrozen] = useState<readonly FeedEvent[] | undefined>(undefined)
  const type = place.value.params.get('type') ?? ''
  const isNarrow = useNarrow()
  const { value: all } = feed
  const shown = frozen ?? all
  const rows = shown.filter((event) => isWanted(event, type)).toReversed()
  const toggle = (): void => setFrozen(frozen === undefined ? all : undefined)
  const missed = (all.at(-1)?.number ?? 0) - (frozen?.at(-1)?.number ?? 0)
  useKeys({ p: toggle })
  return (
    <div class="view tall">
      <div class="view-head">
        <h1>Live</h1>
        <label class="inline">
          Type
          <select
            value={type}
            onChange={({ currentTarget: { value } }) => go(value === '' ? '/live' : `/live?type=${value}`, 'replace')}
          >
            <option value="">all but forwarded</option>
            <option value="all">all</option>
            {[...new Set([...all.map((event) => event.type), ...(['', 'all'].includes(type) ? [] : [type])])]
              .sort()
              .map((name) => (
                <option key={name}>{name}</option>
              ))}
          </select>
        </label>
        <button type="button" aria-pressed={frozen !== undefined} onClick={toggle} title="Pause (p)">
          {frozen === undefined ? 'Pause' : 'Go on'}
        </button>
        <span class="quiet" role="status">
          {frozen === undefined
            ? connection.value.state === 'lost' && 'The stream is interrupted; it goes on where it stopped.'
            : `Paused. ${count('event', missed)} came since.`}
        </span>
      </div>
      {rows.length === 0 ? (
        <Empty
          title={['', 'all'].includes(type) ? 'Nothing has happened yet.' : `No event of type ${type} is remembered.`}
        >
          Events are shown here as requests come.
        </Empty>
      ) : (
        <VirtualList
          label="Events, newest first"
          rows={rows}
          rowPx={isNarrow ? 58 : 36}
          rowKey={(event) => String(event.number)}
          rowHref={(event) => (event.id === '' ? undefined : operationHref(event.id))}
        >
          {(event) => <EventRow event={event} />}
        </VirtualList>
      )}
    </div>
  )
}

/** An answer that was passed on is told a second time, by the engine, if it belongs to an operation. */
function isWanted(event: FeedEvent, type: string): boolean {
  return type === '' ? event.type !== 'forwarded' : type === 'all' || event.type === type
}

function EventRow({ event }: { event: FeedEvent }) {
  const { at, id, labels = {}, status, detail, contract } = event
  const { title, tone, meaning } = wordsOf(event)
  return (
    <div class="cells live-cells">
      <time class="mono quiet" dateTime={new Date(at).toISOString()}>
        {clock(at)}
      </time>
      <span class={`event tone-${tone}`} title={meaning}>
        {id === '' ? title : <a href={operationHref(id)}>{title}</a>}
      </span>
      <span class="code">{status}</span>
      <span class="grow">{labels.route === undefined ? null : <Route labels={labels} />}</span>
      <span class="mono grow cut">{labels.key}</span>
      <span class="cut quiet grow" title={detail}>
        {detail ?? [labels.principal, contract].filter(Boolean).join(' · ')}
      </span>
    </div>
  )
}
