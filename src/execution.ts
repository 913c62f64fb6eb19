import { deriveKey } from './operation/scope.ts'
import type { Refusal } from './refusal.ts'
import type { Answer, Awaitable, Labels } from './store.ts'

/** One logical operation, as the client named it. */
export interface Operation {
  /** `operationId(scope, key)`. */
  readonly id: string
  readonly key: string
  /** Default `client`. */
  readonly keySource?: KeySource
  readonly fingerprint: string
  readonly labels?: Labels
}

/** Who named the operation: the client, or this layer from what the request is about. */
export type KeySource = 'client' | 'auto'

/** What a handler is given. */
export interface Run {
  readonly id: string
  readonly key: string
  readonly keySource: KeySource
  /** 1 for a first run. More: an earlier owner lost its lease, and nobody knows how far it came. */
  readonly attempt: number
  /** Aborts when this run no longer holds the operation. What it does from then on may be done by another, too. */
  readonly signal: AbortSignal
  /** A key for a call further down: the same on every retry and takeover of this operation, different for each name. */
  derive(name: string): string
}

/** Runs the handler and reports how it ended, as a value: it throws only when it cannot tell. */
export type Work = (run: Run) => Promise<Done>

/** How a handler ended. */
export type Done =
  | { readonly kind: 'answered'; readonly answer: Answer }
  /** It says that it did nothing; the next request with this key runs. */
  | { readonly kind: 'nothing-done' }
  /** The answer broke off: a destroyed connection, a hijacked socket. Nobody knows how far the effect came. */
  | { readonly kind: 'broken' }

export type Result =
  /** The handler ran, here and now. */
  | { readonly kind: 'executed'; readonly done: Done; readonly record: RecordFate }
  /** It ran before; this is its answer. The body is never `null` here. */
  | { readonly kind: 'replayed'; readonly answer: Answer }
  | { readonly kind: 'refused'; readonly refusal: Refusal }

/** `unrecorded`: the answer is real, but the store does not have it, so a retry may find the outcome unknown. */
export type RecordFate = 'kept' | 'released' | 'unknown' | 'unrecorded'

/** Asked after a crash when the contract says `reconcile`: what became of the operation? */
export type Reconcile = (run: Run) => Awaitable<Answer | 'rerun' | 'unknown'>

/** `lease` is undefined where nothing can be lost: without a store, and inside a transaction. */
export class CurrentRun implements Run {
  readonly id: string
  readonly key: string
  readonly keySource: KeySource
  readonly attempt: number
  readonly #lease: { readonly signal: AbortSignal } | undefined

  constructor(operation: Operation, attempt: number, lease: { readonly signal: AbortSignal } | undefined) {
    this.id = operation.id
    this.key = operation.key
    this.keySource = operation.keySource ?? 'client'
    this.attempt = attempt
    this.#lease = lease
  }

  get signal(): AbortSignal {
    return this.#lease?.signal ?? NEVER
  }

  derive(name: string): string {
    return deriveKey(this.id, name)
  }
}

const NEVER: AbortSignal = new AbortController().signal
