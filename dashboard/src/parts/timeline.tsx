import type { OperationStory, SeenEvent } from '../api.ts'
import { duration, number, preciseClock } from '../format.ts'
import { status } from '../status.ts'
import { wordsOf } from '../words.ts'

/** Events of one kind that came one after the other are one entry. */
interface Entry {
  readonly first: SeenEvent
  readonly last: SeenEvent
  readonly count: number
}

function entriesOf(history: readonly SeenEvent[]): readonly Entry[] {
  const entries: Entry[] = []
  for (const event of history) {
    const before = entries.at(-1)
    // Conflicts differ from one another in what was changed.
    const isSame = before?.first.type === event.type && before.first.status === event.status && !event.changes
    if (before !== undefined && isSame)
      entries[entries.length - 1] = { ...before, last: event, count: before.count + 1 }
    else entries.push({ first: event, last: event, count: 1 })
  }
  return entries
}

export function Timeline({ story }: { story: OperationStory }) {
  const history = withBeginning(story)
  const entries = entriesOf(history)
  const isMadeUp = history !== story.history
  return (
    <>
      {isMadeUp && (
        <p class="quiet hint">
          {story.history.length === 0
            ? 'This process has seen nothing of it'
            : 'This process has not seen its beginning'}
          {status.value && ` since it started at ${preciseClock(status.value.startedAt).slice(0, -4)}`}: another one
          did, or an earlier run. What stands in the store is shown.
        </p>
      )}
      <ol class="timeline">
        {entries.map((entry, i) => (
          <TimelineEntry key={entry.first.seq} entry={entry} before={entries[i - 1]} />
        ))}
      </ol>
    </>
  )
}

/** The record knows when it was claimed, even if nobody here saw it. */
function withBeginning(story: OperationStory): readonly SeenEvent[] {
  const { history, id } = story
  if (story.state === 'absent' || history.some(({ type }) => type === 'claimed')) return history
  const claimed: SeenEvent = { seq: 0, at: story.createdAt, type: 'claimed', id }
  return [claimed, ...history]
}

function TimelineEntry({ entry: { first, last, count }, before }: { entry: Entry; before: Entry | undefined }) {
  const { title, tone, meaning } = wordsOf(first)
  return (
    <li class={`tone-${tone}`}>
      <div class="entry-head">
        <strong>
          {title}
          {count > 1 && <span class="times"> ×{number(count)}</span>}
        </strong>
        {first.status !== undefined && <span class="code">{first.status}</span>}
        <span class="grow" />
        <time class="mono quiet" dateTime={new Date(first.at).toISOString()}>
          {preciseClock(first.at)}
          {before !== undefined && <span class="gap"> +{duration(first.at - before.last.at)}</span>}
        </time>
      </div>
      <p>
        {meaning}
        {count > 1 && ` The last of them came ${duration(last.at - first.at)} after the first.`}
      </p>
      {first.detail !== undefined && <p class="detail">{first.detail}</p>}
      {first.changes !== undefined && <Changes changes={first.changes} />}
    </li>
  )
}

function Changes({ changes }: { changes: NonNullable<SeenEvent['changes']> }) {
  if (changes.length === 0) {
    return (
      <p class="quiet">
        The bodies do not differ in any JSON value: method, route or content type do, or neither is JSON.
      </p>
    )
  }
  return (
    <table class="changes">
      <caption>What differs from the first request; values are shown as hashes</caption>
      <thead>
        <tr>
          <th scope="col">JSON path</th>
          <th scope="col">Was</th>
          <th scope="col">Is</th>
        </tr>
      </thead>
      <tbody>
        {changes.map(({ path, was, is }) => (
          <tr key={path}>
            <td class="mono wrap">{path === '' ? 'the whole body' : path}</td>
            <td class="mono">{was ?? <span class="quiet">not there</span>}</td>
            <td class="mono">{is ?? <span class="quiet">not there</span>}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}
