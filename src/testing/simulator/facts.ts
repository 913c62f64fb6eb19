import { type Verdict, verdicts } from '../../contract.ts'
import type { Answer } from '../../store.ts'
import type { History, RunRecord } from './history.ts'
import type { Invariant } from './invariants.ts'

/** What follows from the history about records, without asking the store: bounds that hold whatever it did. */
export class Facts {
  readonly history: History
  readonly fail: Fail
  readonly isOpen: boolean
  readonly leaseMs: number
  readonly #verdict: (status: number) => Verdict

  constructor(history: History, fail: Fail) {
    this.history = history
    this.fail = fail
    this.isOpen = history.contract.storeFailure === 'open'
    this.leaseMs = history.contract.lease.ms
    this.#verdict = verdicts(history.contract)
  }

  /** The store's clock at this virtual time, at the latest: a jump in the same millisecond has taken place. */
  storeMs(ms: number): number {
    return ms + this.#aheadMs((jump) => jump.atMs <= ms)
  }

  /** The store's clock at this virtual time, at the earliest. */
  storeMsMin(ms: number): number {
    return ms + this.#aheadMs((jump) => jump.atMs < ms)
  }

  verdict({ done }: RunRecord): Verdict | 'running' {
    if (done === undefined) return 'running'
    if (done === 'threw' || done.kind === 'broken') return 'unknown'
    return done.kind === 'nothing-done' ? 'release' : this.#verdict(done.answer.status)
  }

  keeps(answer: Answer): boolean {
    return this.#verdict(answer.status) === 'keep'
  }

  isKept(run: RunRecord): boolean {
    return run.call.result?.kind === 'executed' && run.call.result.record === 'kept'
  }

  /** On the store's clock: before this, the record that the run left cannot be gone. */
  livesUntilMs(run: RunRecord): number {
    const { ttl } = this.history.contract
    const unsettledMs = this.storeMsMin(run.call.sentMs) + this.leaseMs + ttl.unknownMs
    const verdict = this.verdict(run)
    if (verdict === 'running' || run.endedMs === undefined) return unsettledMs
    const endedMs = this.storeMsMin(run.endedMs)
    if (verdict === 'release') return endedMs
    if (verdict === 'unknown') return Math.min(unsettledMs, endedMs + ttl.unknownMs)
    const settledMs = this.answerUntilMs(run) + ttl.expiredMs
    return this.isKept(run) ? settledMs : Math.min(unsettledMs, settledMs)
  }

  /** On the store's clock: a kept answer is replayed until then at the least. */
  answerUntilMs(run: RunRecord): number {
    return this.storeMsMin(run.endedMs ?? 0) + this.answerMs(run)
  }

  #aheadMs(isCounted: (jump: History['storeJumps'][number]) => boolean): number {
    let aheadMs = 0
    for (const jump of this.history.storeJumps) if (isCounted(jump)) aheadMs += jump.byMs
    return aheadMs
  }

  answerMs({ done }: RunRecord): number {
    const { ttl } = this.history.contract
    const status = typeof done === 'object' && done.kind === 'answered' ? done.answer.status : 200
    return status < 400 ? ttl.committedMs : ttl.rejectedMs
  }
}

type Fail = (invariant: Invariant, text: string) => void
