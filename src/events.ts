import { channel } from 'node:diagnostics_channel'
import type { Labels } from './store.ts'

/** What the engine tells of each step. Subscribe: `diagnostics_channel.subscribe('oncekey', listener)`. */
export interface OncekeyEvent {
  readonly type: EventType
  readonly id: string
  readonly store: string
  readonly contract: string
  /** Who and what it was about, where the user asked for `labels`. */
  readonly labels?: Labels
  readonly status?: number
  readonly error?: unknown
}

/** The operation that an event is about. */
export interface Subject {
  readonly id: string
  readonly labels?: Labels | undefined
}

export type EventType =
  /** This process owns the operation and runs its handler. */
  | 'claimed'
  /** The same, after an earlier owner's lease had lapsed. */
  | 'takeover'
  /** The answer is in the store. */
  | 'kept'
  /** The record was forgotten, because the answer says that nothing was done. */
  | 'released'
  /** The handler ended, and nobody can say whether its effect took place. */
  | 'left-unknown'
  /** The client got the real answer, but the store does not have it. */
  | 'unrecorded'
  /** Another owner has the record, or the lease could not be renewed in time. */
  | 'lease-lost'
  | 'replayed'
  | 'waiting'
  /** The store failed and the contract is `open`: the handler ran without protection. */
  | 'unprotected'
  | 'store-failed'
  /** The store failed and the contract is `closed`: nothing ran. */
  | 'refused'
  | 'conflict'
  | 'in-flight'
  | 'unknown'
  | 'expired'
  | 'not-kept'

const events = channel('oncekey')

const warned = new Set<string>()
const WARNED_MAX = 20

/** Each fault once: it may come with every request. */
function warnOnce(store: string, error: unknown): void {
  const what = error instanceof Error ? error.message : String(error)
  if (warned.has(what) || warned.size >= WARNED_MAX) return
  warned.add(what)
  process.emitWarning(`The ${store} store failed: ${what}`, 'OncekeyWarning')
}

/** Costs nothing when nobody listens; but a store that fails is never silent. */
export function publish(
  type: EventType,
  { id, labels }: Subject,
  store: string,
  contract: string,
  status: number | undefined,
  error: unknown,
): void {
  if (!events.hasSubscribers) {
    if (type === 'store-failed') warnOnce(store, error)
    return
  }
  const event: OncekeyEvent = {
    type,
    id,
    store,
    contract,
    ...(labels !== undefined && { labels }),
    ...(status !== undefined && { status }),
    ...(error !== undefined && { error }),
  }
  events.publish(event)
}
