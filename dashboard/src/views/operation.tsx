import { useEffect, useState } from 'preact/hooks'
import type { OperationStory } from '../api.ts'
import { ago, clock, duration } from '../format.ts'
import { useKeys } from '../keys.ts'
import { feed } from '../live.ts'
import { Actions } from '../parts/actions.tsx'
import { AnswerPanel } from '../parts/answer.tsx'
import { StateBadge } from '../parts/badges.tsx'
import { Empty, Failed, Loading, Stale } from '../parts/states.tsx'
import { Timeline } from '../parts/timeline.tsx'
import { usePolled, useTick, useTitle } from '../polled.ts'
import { back } from '../router.ts'
import { STATE_WORDS } from '../words.ts'

/** One operation's story: what it is, what happened to it, what was answered, and what can be done. */
export function OperationView({ id }: { id: string }) {
  const { data, error, reload, atMs } = usePolled<OperationStory>(`/api/operations/${encodeURIComponent(id)}`)
  useTitle(data?.labels.key ?? id.slice(0, 12))
  useKeys({ r: reload, Escape: () => back('/operations') })
  // Its own events only: what happens to others is no reason to ask again.
  const last = feed.value.findLast((event) => event.id === id)?.number ?? 0
  const [seen] = useState({ last })
  useEffect(() => {
    if (last === seen.last) return
    seen.last = last
    reload()
  }, [last, reload, seen])
  if (data === undefined) {
    if (error?.status === 404) return <Absent id={id} />
    if (error !== undefined) return <Failed what="The operation" error={error} retry={reload} />
    return <Loading what="the operation" />
  }
  const labels = labelsOf(data)
  return (
    <div class="view">
      <Stale error={error?.status === 404 ? undefined : error} />
      <div class="view-head">
        <button type="button" class="back" onClick={() => back('/operations')} title="Back (Esc)">
          ← Back
        </button>
        <h1 class="operation-title">
          <span class="method">{labels.method}</span> {labels.route ?? 'Operation without labels'}
        </h1>
        <StateBadge state={data.state} />
        <span class="grow" />
        <Actions operation={{ id: data.id, state: data.state, labels }} onDone={reload} />
      </div>
      <p class="lead">{STATE_WORDS[data.state]}</p>
      <div class="story">
        <section aria-label="What happened">
          <h2>What happened</h2>
          <Timeline story={data} />
        </section>
        <div class="aside">
          <Facts story={data} labels={labels} atMs={atMs} />
          {data.answer !== undefined && <AnswerPanel answer={data.answer} />}
        </div>
      </div>
    </div>
  )
}

/** A record that was released has none any more; its events may still tell. */
function labelsOf({ labels, history }: OperationStory): Readonly<Record<string, string>> {
  if (Object.keys(labels).length > 0) return labels
  return history.findLast((event) => event.labels !== undefined)?.labels ?? {}
}

function Absent({ id }: { id: string }) {
  return (
    <Empty title="There is no such operation.">
      Nothing in the store has the id <code class="wrap">{id}</code>, and this process has seen nothing of it. It may
      have been forgotten in time, or released. <a href="/operations">Look for others</a>
    </Empty>
  )
}

interface FactsProps {
  readonly story: OperationStory
  readonly labels: Readonly<Record<string, string>>
  readonly atMs: number
}

function Facts({ story, labels, atMs }: FactsProps) {
  useTick(1_000)
  const passedMs = performance.now() - atMs
  const facts: Array<readonly [name: string, value: string | undefined, isMono?: boolean]> = [
    ['Key', labels.key, true],
    ['Principal', labels.principal],
    ['Contract', story.history.findLast((event) => event.contract !== undefined)?.contract],
  ]
  if (story.state !== 'absent') {
    const { attempt, createdAt, goneAt, leaseLeftMs, expiresInMs, outcome, fingerprint } = story
    facts.push(
      ['Outcome', outcome],
      ['Attempt', String(attempt)],
      ['Created', `${clock(createdAt)}, ${ago(createdAt)}`],
      ['Lease left', leaseLeftMs === undefined ? undefined : duration(leaseLeftMs - passedMs)],
      ['Replayed for', expiresInMs === undefined ? undefined : `another ${duration(expiresInMs - passedMs)}`],
      ['Forgotten in', duration(goneAt - Date.now())],
      ['Fingerprint', fingerprint, true],
    )
  }
  facts.push(['Id', story.id, true])
  return (
    <section class="panel" aria-label="Facts">
      <h2>Facts</h2>
      <dl class="facts">
        {facts.map(
          ([name, value, isMono]) =>
            value !== undefined && (
              <div key={name}>
                <dt>{name}</dt>
                <dd class={isMono ? 'mono wrap' : 'wrap'}>{value}</dd>
              </div>
            ),
        )}
      </dl>
    </section>
  )
}
