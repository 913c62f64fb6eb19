import { channel } from 'node:diagnostics_channel'
import type { Labels } from '../store.ts'
import type { PathChange } from './conflicts.ts'

/**
 * What the gate tells besides the engine's own events. Subscribe: `diagnostics_channel.subscribe('oncekey:gate', listener)`.
 */
export type GateEvent =
  /** An answer of the upstream was passed on, whole. `covered`: as a protected operation. */
  | { readonly type: 'forwarded'; readonly status: number; readonly covered: boolean; readonly tookMs: number }
  /** Refused with 503 before anything was done, because a budget is used up. */
  | { readonly type: 'shed'; readonly reason: ShedReason }
  /** No byte of the request was sent: the record, if any, was released. */
  | { readonly type: 'upstream-refused'; readonly covered: boolean; readonly error: unknown }
  /** The exchange broke, or took too long, after a byte was sent: the record, if any, is unknown. */
  | { readonly type: 'upstream-broken'; readonly covered: boolean; readonly error: unknown; readonly timedOut: boolean }
  /** The request itself was not acceptable, and nothing was forwarded. */
  | { readonly type: 'refused-request'; readonly status: number; readonly reason: string }
  /** A connection was cut because its client neither read nor wrote at the least rate. */
  | { readonly type: 'slow-client'; readonly waitingFor: 'request' | 'reader' }
  | ({ readonly type: 'shadow' } & ShadowFinding)
  /** Where the body of a refused request differs from the first one with its key; values appear as keyed hashes. */
  | { readonly type: 'conflict-paths'; readonly id: string; readonly changes: readonly PathChange[] }

export type ShedReason = 'in-flight' | 'buffered-bytes' | 'connections' | 'stopping'

/** What the gate would have done with one request, had it not been in shadow mode. */
export interface ShadowFinding {
  readonly would: Would
  readonly id?: string
  readonly labels?: Labels
  /** Of the upstream's real answer. */
  readonly status?: number
  /** For a replay: whether the upstream's second answer was another one than its first. */
  readonly differs?: boolean
}

export type Would =
  /** A first request: it runs, as it did. */
  | 'run'
  /** A duplicate that the upstream ran again. */
  | 'replay'
  | 'conflict'
  | 'in-flight'
  /** The first request's outcome is not known. */
  | 'unknown'
  | 'expired'
  | 'missing-key'
  | 'invalid-key'
  | 'no-principal'
  /** The store failed, or the request was too large to compare. */
  | 'not-judged'

const events = channel('oncekey:gate')

/** Costs nothing when nobody listens. */
export function publishGate(event: GateEvent): void {
  if (events.hasSubscribers) events.publish(event)
}

export function gateIsHeard(): boolean {
  return events.hasSubscribers
}
