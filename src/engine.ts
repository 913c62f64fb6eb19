import { Alarms } from './alarms.ts'
import { type Clock, systemClock } from './clock.ts'
import { type Contract, type Verdict, verdicts } from './contract.ts'
import { checkContract } from './contract-check.ts'
import { OncekeyError, type RefusalCode } from './error.ts'
import { type EventType, publish, type Subject } from './events.ts'
import {
  CurrentRun,
  type Done,
  type Operation,
  type Reconcile,
  type RecordFate,
  type Result,
  type Run,
  type Work,
} from './execution.ts'
import { Lease } from './lease.ts'
import { refusal } from './refusal.ts'
import type {
  Answer,
  Awaitable,
  Claim,
  ClaimRequest,
  RecordState,
  Settlement,
  Store,
  TransactionalStore,
  TransactionEnd,
} from './store.ts'
import { type Hold, isPromise, StoreAccess } from './store-access.ts'
import { Waiters } from './waiters.ts'

export interface EngineOptions {
  readonly store: Store
  readonly contract: Contract
  readonly reconcile?: Reconcile
  /** How long one call of the store may take before it counts as failed. Default 5,000, or a quarter of the lease if that is less. */
  readonly storeMsMax?: number
  readonly clock?: Clock
  /** Makes the token of each attempt; must never repeat. */
  readonly newToken?: () => string
}

/**
 * Claim → execute → settle or release. The only control flow of the system: adapters translate, stores store.
 *
 * The handler runs only after the store said `acquired` to this attempt's token, and its answer is given out only after
 * it was settled, or marked as unrecorded. Whatever goes wrong in between ends in one of the states of the store
 * contract, and the contract says what that means for a retry.
 */
export class Engine {
  readonly contract: Contract
  readonly #store: Store
  readonly #access: StoreAccess
  readonly #clock: Clock
  readonly #reconcile: Reconcile | undefined
  readonly #newToken: () => string
  readonly #verdict: (status: number) => Verdict
  readonly #waiters: Waiters
  readonly #renewals: Alarms

  constructor(options: EngineOptions) {
    checkContract(options.contract)
    checkOptions(options)
    const { store, contract, reconcile, clock = systemClock } = options
    const storeMsMax = options.storeMsMax ?? Math.min(STORE_MS_MAX, Math.floor(contract.lease.ms / CALLS_PER_LEASE))
    this.contract = contract
    this.#store = store
    this.#access = new StoreAccess(store, clock, storeMsMax, this.#tell.bind(this))
    this.#clock = clock
    this.#reconcile = contract.crash === 'reconcile' ? reconcile : undefined
    this.#newToken = options.newToken ?? tokenMaker()
    this.#verdict = verdicts(contract)
    this.#waiters = new Waiters(store, this.#access, clock)
    this.#renewals = new Alarms(clock, Math.floor(contract.lease.ms / RENEWALS_PER_LEASE))
  }

  /** Runs the work at most once for this operation, whoever else asks, and says what its answer is. */
  execute(operation: Operation, work: Work): Promise<Result> {
    const hold: Hold = { id: operation.id, token: this.#newToken(), labels: operation.labels }
    const askedMs = this.#clock.now()
    try {
      const claim = this.#access.claim(this.#claimRequest(operation, hold))
      if (isPromise(claim)) return this.#follow(operation, hold, claim, askedMs, work)
      // A store that answers at once costs no turn of the event loop.
      if (claim.state === 'acquired') return this.#own(operation, hold, claim.attempt, askedMs, work)
      if (claim.state !== 'running') return Promise.resolve(this.#answerFrom(operation, claim))
      return this.#follow(operation, hold, claim, askedMs, work)
    } catch (error) {
      return this.#withoutStore(operation, hold, error, work)
    }
  }

  /** Until the operation is this attempt's own, or has an answer, or may not be waited for any longer. */
  async #follow(
    operation: Operation,
    hold: Hold,
    firstClaim: Awaitable<Claim>,
    firstAskedMs: number,
    work: Work,
  ): Promise<Result> {
    let [asked, askedMs] = [firstClaim, firstAskedMs]
    let waitUntil: number | undefined
    let running: RecordState | undefined
    for (;;) {
      let claim: Claim
      try {
        claim = await asked
      } catch (error) {
        // Whoever was seen running may well be running still: no reason to run beside it, even unprotected.
        return running ? this.#answerFrom(operation, running) : this.#withoutStore(operation, hold, error, work)
      }
      if (claim.state === 'acquired') {
        const nowMs = this.#clock.now()
        if (nowMs - askedMs < this.contract.lease.ms) return this.#own(operation, hold, claim.attempt, askedMs, work)
        // This process was paused for longer than its lease: it may run only if nobody has taken over.
        try {
          const renewed = await this.#access.renew(hold, this.contract.lease.ms)
          if (renewed) return this.#own(operation, hold, claim.attempt, nowMs, work)
        } catch (error) {
          return this.#withoutStore(operation, hold, error, work)
        }
      } else {
        const { fingerprint, state } = claim
        const mayWait =
          state === 'running' && fingerprint === operation.fingerprint && this.contract.inFlight === 'wait'
        if (!mayWait) return this.#answerFrom(operation, claim)
        running = claim
        if (waitUntil === undefined) this.#tell('waiting', hold)
        waitUntil ??= this.#clock.now() + this.contract.waitMsMax
        const waited = await this.#waiters.wait(hold.id, waitUntil)
        if (waited.state !== 'changed') return this.#answerFrom(operation, claim)
        if (waited.record?.state === 'settled') return this.#answerFrom(operation, waited.record)
        // Released, forgotten or unknown: claim it like anybody else. One of those who waited gets it.
      }
      askedMs = this.#clock.now()
      asked = this.#claimAgain(operation, hold)
    }
  }

  async #claimAgain(operation: Operation, hold: Hold): Promise<Claim> {
    return this.#access.claim(this.#claimRequest(operation, hold))
  }

  /**
   * The same, but claim, work and answer are one transaction of the store's own database: what the work writes there
   * happens exactly once. The work runs on `tx`; when it throws, or its answer is not kept, all of it is rolled back.
   */
  async transact<Tx>(operation: Operation, work: (tx: Tx, run: Run) => Promise<Done>): Promise<Result> {
    const store = transactional<Tx>(this.#store)
    const { id } = operation
    let done: Done | undefined
    let thrown: { readonly error: unknown } | undefined
    let end: TransactionEnd
    try {
      end = await store.transaction(
        this.#claimRequest(operation, { id, token: this.#newToken() }),
        async (tx, attempt) => {
          this.#tell(attempt > 1 ? 'takeover' : 'claimed', operation)
          done = await work(tx, new CurrentRun(operation, attempt, undefined)).catch((error) => {
            thrown = { error }
            throw error
          })
          return done.kind === 'answered' && this.#verdict(done.answer.status) === 'keep'
            ? this.#settlement(done.answer)
            : undefined
        },
      )
    } catch (error) {
      if (thrown) throw thrown.error
      // What is not the store's own error came from the database about the user's rows: a constraint that the commit broke.
      if (!(error instanceof OncekeyError) || error.code === 'config-invalid') throw error
      this.#tell('store-failed', operation, undefined, error)
      const detail = done && COMMIT_LOST
      return this.#refuse('store-unavailable', 'refused', operation, RETRY_AFTER_STORE_MS, detail)
    }
    if (end.state !== 'committed' && end.state !== 'rolled-back') return this.#answerFrom(operation, end)
    const record = end.state === 'committed' ? 'kept' : 'released'
    this.#tell(record, operation, done?.kind === 'answered' ? done.answer.status : undefined)
    return { kind: 'executed', done: done as Done, record }
  }

  /** Resolves when nothing is left to do behind answers that were already given, such as a settle that is tried again. */
  idle(): Promise<void> {
    return this.#access.idle()
  }

  /** What the record of an earlier request means for this one. */
  #answerFrom(operation: Operation, record: RecordState): Result {
    if (record.fingerprint !== operation.fingerprint) return this.#refuse('key-conflict', 'conflict', operation)
    switch (record.state) {
      case 'settled':
        return this.#replay(operation, record.answer)
      case 'running':
        return this.#refuse('in-flight', 'in-flight', operation, record.leaseLeftMs)
      case 'unknown':
        return this.#refuse('outcome-unknown', 'unknown', operation)
      case 'expired':
        return this.#refuse('key-expired', 'expired', operation)
      default:
        return record satisfies never
    }
  }

  #replay(subject: Subject, answer: Answer): Result {
    if (answer.body === null) return this.#refuse('answer-not-kept', 'not-kept', subject)
    this.#tell('replayed', subject, answer.status)
    return { kind: 'replayed', answer }
  }

  /** This attempt owns the operation until its lease is lost. */
  async #own(operation: Operation, hold: Hold, attempt: number, askedMs: number, work: Work): Promise<Result> {
    this.#tell(attempt > 1 ? 'takeover' : 'claimed', hold)
    const lease = new Lease(this.#access, this.contract.lease, this.#clock, this.#renewals, hold, askedMs)
    const run = new CurrentRun(operation, attempt, lease)
    try {
      const found = attempt > 1 && this.#reconcile ? await this.#reconcile(run) : 'rerun'
      if (found === 'rerun') {
        const done = await work(run)
        lease.stop()
        if (lease.lost) this.#tell('lease-lost', hold)
        const record = this.#conclude(hold, done, lease.untilMs)
        return { kind: 'executed', done, record: isPromise(record) ? await record : record }
      }
      lease.stop()
      if (found === 'unknown') {
        await this.#access.giveUp(hold)
        return this.#refuse('outcome-unknown', 'unknown', hold)
      }
      // The hook knows what the earlier owner did: from now on that is the answer, for this request too.
      const kept = await this.#access.settle(hold, this.#settlement(found), lease.untilMs)
      // Somebody else was faster, or the store is away: the record, and not this hook, says what the answer is.
      return kept ? this.#replay(hold, found) : this.#refuse('outcome-unknown', 'unknown', hold)
    } catch (error) {
      // Work reports its failures as values; one that throws has told us nothing of its effect.
      lease.stop()
      await this.#access.giveUp(hold)
      throw error
    }
  }

  /** Brings the record to where the handler's end says that it belongs. */
  #conclude(hold: Hold, done: Done, retryUntilMs: number): Awaitable<RecordFate> {
    const verdict = done.kind === 'answered' ? this.#verdict(done.answer.status) : VERDICT_WITHOUT_ANSWER[done.kind]
    if (verdict === 'keep' && done.kind === 'answered') {
      // The effect has taken place: the client gets its answer even when the store does not.
      const kept = this.#access.settle(hold, this.#settlement(done.answer), retryUntilMs)
      return isPromise(kept) ? kept.then(keptOrNot) : keptOrNot(kept)
    }
    if (verdict === 'release') return this.#access.release(hold, retryUntilMs).then(() => 'released')
    return this.#access.giveUp(hold).then(() => 'unknown')
  }

  /** Nothing is known of the operation, and the contract decides what weighs more: the guarantee, or the answer. */
  async #withoutStore(operation: Operation, hold: Hold, error: unknown, work: Work): Promise<Result> {
    this.#tell('store-failed', hold, undefined, error)
    const retryUntilMs = this.#clock.now() + this.contract.lease.ms
    if (this.contract.storeFailure === 'closed') {
      // The claim may have arrived though its reply did not: nothing ran, so it must not stand.
      this.#access.undoClaim(hold)
      return this.#refuse('store-unavailable', 'refused', hold, RETRY_AFTER_STORE_MS)
    }
    this.#tell('unprotected', hold)
    const done = await work(new CurrentRun(operation, 1, undefined))
    // Should the claim have arrived after all, its record gets its answer; if it has not, this changes nothing.
    this.#access.inBackground(Promise.resolve(this.#conclude(hold, done, retryUntilMs)))
    return { kind: 'executed', done, record: 'unrecorded' }
  }

  #claimRequest({ id, fingerprint, labels }: Operation, { token }: Hold): ClaimRequest {
    const { lease, ttl, crash } = this.contract
    const takeover = crash !== 'refuse'
    const request = { id, token, fingerprint, leaseMs: lease.ms, unknownTtlMs: ttl.unknownMs, takeover }
    return labels ? { ...request, labels } : request
  }

  #settlement(answer: Answer): Settlement {
    const { committedMs, rejectedMs, expiredMs } = this.contract.ttl
    return answer.status < 400
      ? { outcome: 'committed', answer, ttlMs: committedMs, expiredTtlMs: expiredMs }
      : { outcome: 'rejected', answer, ttlMs: rejectedMs, expiredTtlMs: expiredMs }
  }

  #refuse(code: RefusalCode, event: EventType, subject: Subject, retryAfterMs?: number, detail?: string): Result {
    this.#tell(event, subject)
    return { kind: 'refused', refusal: refusal(code, { retryAfterMs, detail }) }
  }

  #tell(type: EventType, subject: Subject, status?: number, error?: unknown): void {
    publish(type, subject, this.#store.name, this.contract.name, status, error)
  }
}

function keptOrNot(kept: boolean): RecordFate {
  return kept ? 'kept' : 'unrecorded'
}

/** Unique everywhere by its first part, and within this process by its second. */
function tokenMaker(): () => string {
  const prefix = crypto.randomUUID()
  let count = 0
  return () => `${prefix}.${(++count).toString(36)}`
}

function transactional<Tx>(store: Store): TransactionalStore<Tx> {
  if (typeof (store as Partial<TransactionalStore<Tx>>).transaction === 'function')
    return store as TransactionalStore<Tx>
  throw new OncekeyError(
    'config-invalid',
    `The ${store.name} store has no transactions that your own rows could take part in; use one on the database that holds them`,
  )
}

function checkOptions({ store, contract, reconcile, storeMsMax }: EngineOptions): void {
  if (typeof store?.claim !== 'function') {
    throw new OncekeyError(
      'config-invalid',
      'store is missing; pass one, for example memoryStore() from oncekey/memory',
    )
  }
  if (contract.crash === 'reconcile' && !reconcile) {
    throw new OncekeyError(
      'config-invalid',
      `contract "${contract.name}": crash is "reconcile", but no reconcile hook was given; pass reconcile, or choose "refuse" or "rerun"`,
    )
  }
  if (storeMsMax !== undefined && !(storeMsMax > 0 && 2 * storeMsMax < contract.lease.ms)) {
    throw new OncekeyError(
      'config-invalid',
      `storeMsMax is ${storeMsMax}, but must be more than 0 and less than half of the lease (lease.ms = ${contract.lease.ms}): a claim may be asked twice, and must still have its lease when the reply comes`,
    )
  }
}

const COMMIT_LOST =
  'The operation ran, but the database did not confirm its commit: all of it took place, or nothing. Retry with the same key to learn which; it will not take place twice.'

const VERDICT_WITHOUT_ANSWER = { 'nothing-done': 'release', broken: 'unknown' } as const

const RENEWALS_PER_LEASE = 3
const STORE_MS_MAX = 5_000
/** The default for `storeMsMax` never takes more than this share of the lease. */
const CALLS_PER_LEASE = 4
const RETRY_AFTER_STORE_MS = 1_000
