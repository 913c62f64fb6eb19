import type { OperationView } from '../api.ts'
import { STATE_WORDS } from '../words.ts'

export function StateBadge({ state }: { state: string }) {
  return (
    <span class={`badge state-${state}`} title={STATE_WORDS[state]}>
      {state}
    </span>
  )
}

/** The answer's status; what was rejected is told apart not by colour alone. */
export function StatusCode({
  operation: { status, outcome },
}: {
  operation: Pick<OperationView, 'status' | 'outcome'>
}) {
  if (status === undefined) return <span class="code quiet">—</span>
  return (
    <span class={`code ${outcome === 'rejected' ? 'rejected' : ''}`} title={outcome}>
      {status}
    </span>
  )
}

export function Route({ labels }: { labels: Readonly<Record<string, string>> }) {
  const { method, route } = labels
  if (route === undefined && method === undefined) return <span class="quiet">no labels kept</span>
  return (
    <span class="route" title={`${method ?? ''} ${route ?? ''}`}>
      <span class="method">{method}</span> {route}
    </span>
  )
}
