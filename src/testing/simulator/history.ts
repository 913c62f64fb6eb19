import type { Contract } from '../../contract.ts'
import type { Done, Result } from '../../execution.ts'
import type { Answer } from '../../store.ts'

/**
 * What the judge sees of a schedule: what clients asked and were told, which handlers ran, and what they did to the
 * world outside. Nothing here was read from the store. Times are virtual milliseconds.
 */
export interface History {
  readonly contract: Contract
  readonly storeMsMax: number
  readonly calls: Call[]
  readonly runs: RunRecord[]
  readonly effects: Effect[]
  /** Every answer that a handler or the reconcile hook gave for an operation. */
  readonly answers: GivenAnswer[]
  /** When the reconcile hook was asked, and whether it knew the answer. */
  readonly lookups: Array<{ readonly key: string; readonly atMs: number; readonly isKnown: boolean }>
  /** When the store's clock was moved, and how far forward. */
  readonly storeJumps: Array<{ readonly atMs: number; readonly byMs: number }>
  /** Whether messages may arrive long after they were sent, or twice: an old one may then bring an old answer back. */
  readonly hasStragglers: boolean
  /** How many reads of one record one process began within one round trip, at the most. */
  readsAtOnceMax: number
  endMs: number
  /** Processes whose engine still had work in the background when nothing was left to happen. */
  readonly neverIdle: string[]
  /** It never came to rest: the scheduler still had work after its bound. */
  isEndless: boolean
}

/** A client's request, from the moment that `execute` is called in a process. */
export interface Call {
  readonly number: number
  readonly client: string
  readonly key: string
  readonly fingerprint: string
  readonly process: ProcessRecord
  readonly sentMs: number
  /** Asked when all faults were over: `soon` after, and `late`, when every record has expired. */
  readonly probe: 'soon' | 'late' | undefined
  /** The process's own `disturbedMs` when the call came. */
  readonly disturbedBeforeMs: number
  disturbedAfterMs: number
  run: RunRecord | undefined
  result: Result | { readonly kind: 'threw' } | undefined
  endedMs: number | undefined
}

/** One run of a handler. */
export interface RunRecord {
  readonly number: number
  readonly call: Call
  /** As the handler was told. */
  readonly attempt: number
  readonly derived: string
  readonly startedMs: number
  readonly process: ProcessRecord
  readonly tookSignal: boolean
  /** When the reconcile hook was asked on behalf of this run, before it. */
  readonly lookedUpMs: number | undefined
  abortedMs: number | undefined
  done: Done | 'threw' | undefined
  endedMs: number | undefined
}

export interface Effect {
  readonly key: string
  readonly fingerprint: string
  readonly run: RunRecord
  readonly atMs: number
  readonly answer: Answer
}

export interface GivenAnswer {
  readonly key: string
  readonly fingerprint: string
  readonly answer: Answer
}

/** One life of one process, from its start to its crash. */
export interface ProcessRecord {
  readonly name: string
  diedMs: number | undefined
  /** How long it was paused in all, and what its clock's jumps may cost: no bound of its own can be kept meanwhile. */
  disturbedMs: number
  /** When it stood still, or was given another date: the end of each pause, the moment of each jump. */
  readonly pauseEndsMs: number[]
  readonly jumpsMs: number[]
  /** When something disturbed it or its way to the store. */
  readonly faults: Array<{ readonly fromMs: number; readonly toMs: number }>
}

/** What happened how often, to show that a run of the simulator tested something. */
export type Coverage = Record<Sight, number>

export type Sight = (typeof SIGHTS)[number]

export const SIGHTS = [
  'executed',
  'replayed',
  'conflict',
  'in-flight',
  'outcome-unknown',
  'key-expired',
  'answer-not-kept',
  'store-unavailable',
  'kept',
  'released',
  'left-unknown',
  'unrecorded',
  'unrecorded-open',
  'handler-threw',
  'takeover',
  'reconciled',
  'reconcile-unknown',
  'signal-aborted',
  'settle-refused',
  'release-refused',
  'renew-refused',
  'request-lost',
  'reply-lost',
  'request-late',
  'reply-late',
  'request-twice',
  'waited',
  'woken-by-push',
  'process-crashed',
  'process-paused',
  'process-suspended',
  'clock-jumped',
  'store-clock-jumped',
  'store-down',
  'partitioned',
  'direct-store',
] as const

export function noCoverage(): Coverage {
  return Object.fromEntries(SIGHTS.map((sight) => [sight, 0])) as Coverage
}
