import type { Done } from '../execution.ts'

/**
 * For a handler that knows better than its status what became of the effect: `nothing-done` forgets the record, so that
 * the next request with this key runs; `unknown` leaves it unknown. The client gets the answer in any case. Say it before
 * the answer ends.
 */
export function declareOutcome(request: object, outcome: DeclaredOutcome): void {
  const incoming = (request as { raw?: object }).raw ?? request
  ;(incoming as WithOutcome)[OUTCOME] = outcome
}

export type DeclaredOutcome = 'nothing-done' | 'unknown'

/** How the handler said that it ended, if it did. */
export function declaredEnd(incoming: object): Done | undefined {
  const outcome = (incoming as WithOutcome)[OUTCOME]
  if (outcome === undefined) return undefined
  return { kind: outcome === 'unknown' ? 'broken' : 'nothing-done' }
}

const OUTCOME: unique symbol = Symbol('oncekey.outcome')
interface WithOutcome {
  [OUTCOME]?: DeclaredOutcome
}
