/**
 * The store contract: everything the engine asks of a database, and every guarantee it relies on.
 *
 * A store keeps one record for each operation. It knows nothing of HTTP, keys or tenants: the id is a fixed-size
 * hash that the engine made. A record is in one of these states, as seen by the store's own clock:
 *
 *   absent   no record, or its `goneAt` has passed
 *   running  claimed; `now < leaseUntil`
 *   unknown  claimed, never settled, and the lease lapsed: nobody can say whether the effect took place
 *   settled  the answer is kept; `now < expiresAt`
 *   expired  the answer has expired, but the contract asked to remember that the key was used; `now < goneAt`
 *
 * Guarantees that every store gives, and that `storeSuite` tests:
 *
 *  1. `claim` is one atomic step. Of any number of concurrent claims of an absent id, exactly one is `acquired`.
 *  2. Time is the store's. The state is decided inside the claim's own predicate, at the very millisecond; a record
 *     that no sweeper has removed yet counts as absent once `goneAt` is reached. A sweeper only frees space.
 *  3. Every write after the claim carries the token, and changes nothing (`false`) when another owner holds the record
 *     or the record is gone. A lapsed lease alone does not take the record from its owner: only a takeover does.
 *  4. `claim` and `settle` are idempotent by token: when a reply was lost, asking again gives the same answer.
 *     A repeated `settle` never changes what the first one stored.
 *  5. A claim with another fingerprint never changes a record; the store reports the record's own fingerprint.
 *  6. A record that is running or unknown is never evicted. A store that is full throws `store-full`.
 *  7. A record carries its own id, and the store verifies it when it reads.
 *  8. Answers come back byte for byte: an empty body is not a missing body, header order and repetition are kept.
 *  9. A store that cannot be reached throws; it never guesses. After `close()` every verb throws `store-closed`;
 *     work already accepted when `close()` was called is finished first.
 */
export interface Store {
  /** Shown to people: `memory`, `sqlite`, … */
  readonly name: string

  /** Claims the operation, or says why not. A new key costs one round trip. */
  claim(request: ClaimRequest): Awaitable<Claim>

  /** Keeps the answer. `false`: the token does not hold the record, nothing was changed. */
  settle(id: string, token: string, settlement: Settlement): Awaitable<boolean>

  /**
   * Forgets an unsettled record, as if the request had never come. A record that was taken over (`attempt` above 1) is
   * not forgotten but becomes `unknown` again: this owner did nothing, but an earlier one may have. `false`: not the
   * owner's, or already settled.
   */
  release(id: string, token: string): Awaitable<boolean>

  /**
   * Moves the lease's end to now + `leaseMs`; `goneAt` moves along, keeping its distance. With `leaseMs` 0 the owner
   * gives the lease up: the record is `unknown` from this moment. `false`: not the owner's, or already settled.
   */
  renew(id: string, token: string, leaseMs: number): Awaitable<boolean>

  /** The record as it stands now; `undefined` when absent. */
  read(id: string): Awaitable<StoredRecord | undefined>

  /** Records in the order of their ids, starting after `after`. For operators; not on the hot path. */
  list(query?: ListQuery): Awaitable<readonly StoredRecord[]>

  /** An operator's removal, in whatever state the record is. `false`: there was none. */
  forget(id: string): Awaitable<boolean>

  /**
   * Removes what an answered record tells of people, and keeps the claim: body, headers and labels go, and a retry is told
   * that the answer was not kept. `false`: there is no record, or it has no answer yet.
   */
  redact(id: string): Awaitable<boolean>

  /** Frees records whose `goneAt` has passed, `limit` at most, and the bodies of expired ones. Returns how many rows went. */
  sweep(limit?: number): Awaitable<number>

  /**
   * Resolves as soon as the record may no longer be running: settled, released, forgotten or given up, by any process.
   * It may resolve early; it resolves at once when the record is not running now. It never rejects for an abort: an
   * aborted `signal` resolves it. A store that cannot push leaves it out, and the engine polls.
   */
  waitFor?(id: string, signal: AbortSignal): Promise<void>

  /** Finishes accepted work, then frees what the store itself opened. Idempotent. */
  close(): Promise<void>
}

/**
 * A store whose records live in the same database as the user's own rows. `Tx` is what the database's own driver calls
 * a transaction. Only here do record and effect commit together, so only here does an effect happen exactly once.
 */
export interface TransactionalStore<Tx> extends Store {
  /**
   * One transaction of the database: claims the operation, runs `work` inside it, and keeps the settlement that `work`
   * returns. All of it commits together, or nothing does: a crash, a throw and `undefined` leave no trace of either.
   *
   * A concurrent duplicate waits in the database for the first one's end, and then gets its settled record; when it may
   * not wait any longer it is told `running`. A throw of `work` is thrown on. When the reply to the commit was lost this
   * throws, and the record, if it is there, says that all of it took place.
   */
  transaction(
    request: ClaimRequest,
    work: (tx: Tx, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd>
}

export type TransactionEnd =
  | { readonly state: 'committed' }
  /** `work` returned `undefined`. */
  | { readonly state: 'rolled-back' }
  /** `work` did not run. */
  | RecordState

export type Awaitable<T> = T | Promise<T>

export interface ClaimRequest {
  /** 64 hex characters: SHA-256 over scope and key. */
  readonly id: string
  /** Names this attempt; unique. Every later write must carry it. */
  readonly token: string
  readonly fingerprint: string
  readonly leaseMs: number
  /** How long an unanswered record is remembered as unknown after its lease lapsed. */
  readonly unknownTtlMs: number
  /** Whether a record that is unknown, with this same fingerprint, is taken over rather than reported. */
  readonly takeover: boolean
  /** What operators may see of the request. Kept as given; empty unless the user asked for it. */
  readonly labels?: Labels
}

export type Labels = Readonly<Record<string, string>>

export type Claim =
  /** This token owns the record. `attempt` is 1 for a first claim; each takeover adds one. */
  { readonly state: 'acquired'; readonly attempt: number } | RecordState

/** What is known of a record. Durations are counted on the store's clock, so the caller's own clock does not matter. */
export type RecordState =
  | { readonly state: 'running'; readonly fingerprint: string; readonly leaseLeftMs: number }
  | { readonly state: 'unknown'; readonly fingerprint: string; readonly goneInMs: number }
  | {
      readonly state: 'settled'
      readonly fingerprint: string
      readonly outcome: Outcome
      readonly answer: Answer
      /** How long the answer is still replayed. A copy of it must not live longer. */
      readonly expiresInMs: number
    }
  | { readonly state: 'expired'; readonly fingerprint: string; readonly goneInMs: number }

export type StoredRecord = RecordState & {
  readonly id: string
  readonly attempt: number
  /** Milliseconds since the epoch on the store's clock: the first claim, not a takeover. */
  readonly createdAt: number
  /** Since the epoch, on the store's clock: when the record counts as absent. */
  readonly goneAt: number
  readonly labels: Labels
}

export type Outcome = 'committed' | 'rejected'

export interface Settlement {
  readonly outcome: Outcome
  readonly answer: Answer
  /** How long the answer is replayed. */
  readonly ttlMs: number
  /** How long after that the key is still remembered as used. 0: the key is new again at once. */
  readonly expiredTtlMs: number
}

export interface Answer {
  /** An HTTP status; plain code uses 200 for a value and 500 for a thrown error. */
  readonly status: number
  /** Name and value pairs, in order, repeated names kept. */
  readonly headers: ReadonlyArray<readonly [name: string, value: string]>
  /** `null`: the operation was answered, but the answer was too large to keep. */
  readonly body: Uint8Array | null
}

export interface ListQuery {
  /** The last id of the page before; omitted for the first page. */
  readonly after?: string
  /** At most this many records. Default 100. */
  readonly limit?: number
  readonly state?: RecordState['state']
}
