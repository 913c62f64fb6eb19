import type { Answer } from '../../store.ts'
import { Facts } from './facts.ts'
import type { Call, History, RunRecord } from './history.ts'
import type { Violation } from './invariants.ts'
import { HOP_MS_MAX } from './plan.ts'

/** Every violation in a schedule. It looks at effects and answers only, never at what the store holds. */
export function judge(history: History): Violation[] {
  const found: Violation[] = []
  const facts = new Facts(history, (invariant, text) => found.push({ invariant, text }))
  for (const key of new Set(history.calls.map((call) => call.key))) {
    const calls = history.calls.filter((call) => call.key === key)
    const runs = history.runs.filter((run) => run.call.key === key)
    judgeRuns(facts, runs)
    judgeKept(facts, runs, calls)
    judgeProbes(facts, calls)
    for (const call of calls) judgeCall(facts, call, calls, runs)
  }
  judgeDerived(facts)
  for (const name of history.neverIdle) facts.fail('ends-in-time', `the engine of ${name} never becomes idle`)
  if (history.isEndless) facts.fail('ends-in-time', 'the schedule never came to rest')
  if (history.readsAtOnceMax > READS_AT_ONCE_MAX) {
    facts.fail('shared-reads', `one process began ${history.readsAtOnceMax} reads of one record within one round trip`)
  }
  return found
}

/** A watch that has just ended may have read, and a new one that is told of a change at once reads too. */
const READS_AT_ONCE_MAX = 3

/** Every pair of runs of one key, in the order in which they began. */
function judgeRuns(facts: Facts, runs: readonly RunRecord[]): void {
  const { crash } = facts.history.contract
  for (const [index, later] of runs.entries()) {
    for (const earlier of runs.slice(0, index)) {
      judgeAbort(facts, earlier, later)
      if (facts.isOpen) continue
      // One that was told of its claim late may begin after its own takeover: it did not take the operation over.
      if (later.attempt >= earlier.attempt) judgeLiveOwner(facts, earlier, later.startedMs, `run ${later.number} began`)
      if (facts.storeMs(later.startedMs) >= facts.livesUntilMs(earlier)) continue
      if (crash !== 'refuse' && hasExpiredSince(facts, earlier, later, runs)) continue
      const both = `run ${later.number} began at ${later.startedMs} ms, while the record of run ${earlier.number} must have lived`
      if (crash === 'refuse') facts.fail('at-most-once', both)
      if (earlier.call.fingerprint !== later.call.fingerprint) facts.fail('one-payload', both)
      // A request that was sent before the earlier run began may have claimed first, and began late.
      const isLater = later.call.sentMs > earlier.startedMs
      if (isLater && later.attempt === 1) facts.fail('takeover-told', `${both}, and was told attempt 1`)
      if (crash === 'reconcile') judgeReconciled(facts, earlier, later)
    }
  }
}

/** Whether a takeover in between may have settled the record, and that answer has expired again. */
function hasExpiredSince(facts: Facts, earlier: RunRecord, later: RunRecord, runs: readonly RunRecord[]): boolean {
  const { ttl } = facts.history.contract
  const nowMs = facts.storeMs(later.startedMs)
  const isBetween = (run: RunRecord) => run !== earlier && run.attempt > 1 && (run.endedMs ?? 0) > earlier.call.sentMs
  return (
    runs.some((run) => isBetween(run) && facts.verdict(run) === 'keep' && nowMs >= facts.livesUntilMs(run)) ||
    facts.history.lookups.some(
      ({ key, atMs, isKnown }) =>
        key === earlier.call.key &&
        isKnown &&
        atMs > earlier.call.sentMs &&
        nowMs >= facts.storeMs(atMs) + ttl.committedMs + ttl.expiredMs,
    )
  )
}

function judgeReconciled(facts: Facts, earlier: RunRecord, later: RunRecord): void {
  const effect = facts.history.effects.find(({ run }) => run === earlier)
  if (effect && effect.atMs < (later.lookedUpMs ?? later.call.sentMs)) {
    const how =
      later.lookedUpMs === undefined ? 'without asking the hook' : `though the hook was asked at ${later.lookedUpMs} ms`
    facts.fail('reconcile-once', `run ${later.number} began after the effect of run ${earlier.number}, ${how}`)
  }
}

/** A run that nothing has disturbed since its request came holds its operation. */
function judgeLiveOwner(facts: Facts, owner: RunRecord, atMs: number, what: string): void {
  const { process, call } = owner
  const goneMs = Math.min(owner.endedMs ?? Number.POSITIVE_INFINITY, process.diedMs ?? Number.POSITIVE_INFINITY)
  if (owner.startedMs >= atMs || goneMs <= atMs) return
  if (atMs - call.sentMs > facts.history.contract.lease.handlerMsMax) return
  if (process.faults.some(({ fromMs, toMs }) => toMs >= call.sentMs && fromMs <= atMs)) return
  facts.fail('live-owner', `${what} at ${atMs} ms, while run ${owner.number} was running undisturbed`)
}

function judgeAbort(facts: Facts, earlier: RunRecord, later: RunRecord): void {
  const { process, call } = earlier
  const { storeJumps, endMs } = facts.history
  if (!earlier.tookSignal || later.attempt <= earlier.attempt || facts.isOpen) return
  // A clock that was moved tells nobody when the lease ends.
  if (storeJumps.some(({ atMs }) => atMs >= call.sentMs) || process.jumpsMs.some((atMs) => atMs >= call.sentMs)) return
  const pauseEndsMs = process.pauseEndsMs.filter((atMs) => atMs >= call.sentMs)
  const looks = pauseEndsMs.length > 0 ? LOOKS_AFTER_PAUSE : LOOKS_TO_NOTICE
  const boundMs = Math.max(later.startedMs, ...pauseEndsMs) + looks * Math.ceil(facts.leaseMs / 3) + 2 * HOP_MS_MAX
  const untilMs = earlier.endedMs ?? process.diedMs ?? endMs
  if (untilMs <= boundMs || (earlier.abortedMs ?? Number.POSITIVE_INFINITY) <= boundMs) return
  facts.fail(
    'signal-aborts',
    `run ${earlier.number} was taken over by run ${later.number} and not told by ${boundMs} ms`,
  )
}

/** The owner looks three times in each lease. One look may find that the store is silent, the next that it still is. */
const LOOKS_TO_NOTICE = 2
/** A process that was suspended believes in its lease for as long again. */
const LOOKS_AFTER_PAUSE = 5

function judgeKept(facts: Facts, runs: readonly RunRecord[], calls: readonly Call[]): void {
  const kept = runs.filter((run) => facts.isKept(run))
  for (const [index, run] of kept.entries()) {
    const toldMs = facts.storeMs(run.call.endedMs ?? 0)
    for (const other of kept.slice(0, index)) {
      const firstMs = Math.min(facts.storeMsMin(run.endedMs ?? 0), facts.storeMsMin(other.endedMs ?? 0))
      const lastMs = Math.max(toldMs, facts.storeMs(other.call.endedMs ?? 0))
      if (lastMs - firstMs < Math.min(facts.answerMs(run), facts.answerMs(other))) {
        facts.fail('one-answer', `the answers of run ${other.number} and run ${run.number} were both kept`)
      }
    }
    for (const call of calls) {
      if (call.sentMs <= (run.call.endedMs ?? 0) || call.endedMs === undefined) continue
      if (facts.storeMs(call.endedMs) < facts.answerUntilMs(run)) judgeRetry(facts, run, call)
      else if (facts.storeMsMin(call.sentMs) >= toldMs + facts.answerMs(run)) judgeExpired(facts, run, call)
    }
  }
}

/** A retry that came after the answer was kept, and was answered before it expired. */
function judgeRetry(facts: Facts, run: RunRecord, { number, fingerprint, result }: Call): void {
  if (!result || typeof run.done !== 'object' || run.done.kind !== 'answered') return
  if (result.kind === 'refused' && result.refusal.code === 'store-unavailable') return
  if (facts.isOpen && (result.kind === 'threw' || (result.kind === 'executed' && result.record === 'unrecorded')))
    return
  const { answer } = run.done
  const isSame = fingerprint === run.call.fingerprint
  const expected = !isSame ? 'key-conflict' : answer.body === null ? 'answer-not-kept' : 'replayed'
  const given = result.kind === 'refused' ? result.refusal.code : result.kind
  if (given !== expected || (result.kind === 'replayed' && !isEqual(result.answer, answer))) {
    facts.fail('kept-is-kept', `run ${run.number} was kept, but call ${number} was told: ${given}, not its ${expected}`)
  }
}

function judgeExpired(facts: Facts, run: RunRecord, { number, result, endedMs = 0 }: Call): void {
  const { lookups, hasStragglers } = facts.history
  if (hasStragglers) return
  // The hook may give out the same answer anew.
  if (lookups.some(({ key, atMs, isKnown }) => isKnown && key === run.call.key && atMs <= endedMs)) return
  if (result?.kind !== 'replayed' || typeof run.done !== 'object' || run.done.kind !== 'answered') return
  if (isEqual(result.answer, run.done.answer)) {
    facts.fail('replay-fresh', `call ${number} got the answer of run ${run.number} after it had expired`)
  }
}

function judgeCall(facts: Facts, call: Call, calls: readonly Call[], runs: readonly RunRecord[]): void {
  const { result, number } = call
  judgeDuration(facts, call)
  if (result?.kind === 'replayed') {
    const isGiven = facts.history.answers.some(
      ({ key, fingerprint, answer }) =>
        key === call.key && fingerprint === call.fingerprint && isEqual(answer, result.answer),
    )
    if (!isGiven) facts.fail('replay-exact', `call ${number} got an answer that its operation was never given`)
    if (!facts.keeps(result.answer))
      facts.fail('replay-exact', `call ${number} got ${result.answer.status}, which is never kept`)
  }
  if (result?.kind !== 'refused' && result?.kind !== 'replayed') return
  if (call.run)
    facts.fail('refused-not-run', `call ${number} was told ${result.kind}, but run ${call.run.number} was its own`)
  if (result.kind === 'refused' && result.refusal.code === 'store-unavailable') return
  if (!calls.some((other) => other !== call && mayHold(facts, other, call))) {
    facts.fail(
      'no-shadow',
      `call ${number} was told ${result.kind === 'refused' ? result.refusal.code : 'replayed'}, but no other request can have claimed ${call.key}`,
    )
  }
  if (result.kind === 'refused' && result.refusal.code === 'outcome-unknown' && !facts.isOpen) {
    for (const run of runs)
      if (run.startedMs < call.sentMs)
        judgeLiveOwner(facts, run, call.endedMs ?? 0, `call ${number} was told outcome-unknown`)
  }
}

/** Whether the other request can have left a record for this one to meet. */
function mayHold(facts: Facts, other: Call, call: Call): boolean {
  const { result } = other
  const { contract, hasStragglers } = facts.history
  if (other.sentMs > (call.endedMs ?? 0)) return false
  if (hasStragglers) return true
  if (other.run || other.endedMs === undefined || other.endedMs >= call.sentMs || result?.kind === 'threw') return true
  const code = result?.kind === 'refused' ? result.refusal.code : undefined
  // Under reconcile a request takes the operation over before it is told that nobody knows.
  return code === 'store-unavailable' || (code === 'outcome-unknown' && contract.crash === 'reconcile')
}

/** Claim, wait, claim again, handler, and one last word to the store: each has its bound, and so has the sum. */
function judgeDuration(facts: Facts, call: Call): void {
  const { contract, storeMsMax, endMs } = facts.history
  if (call.process.diedMs !== undefined && call.endedMs === undefined) return
  const untilMs = call.endedMs ?? endMs
  const handlerMs = call.run ? (call.run.endedMs ?? endMs) - call.run.startedMs : 0
  const disturbedMs =
    (call.endedMs === undefined ? call.process.disturbedMs : call.disturbedAfterMs) - call.disturbedBeforeMs
  const claims = contract.inFlight === 'wait' ? 4 : 2
  const boundMs = (claims + 1) * storeMsMax + contract.waitMsMax + SLACK_MS + disturbedMs
  if (untilMs - call.sentMs - handlerMs <= boundMs) return
  const how = call.endedMs === undefined ? 'never settled' : `took ${untilMs - call.sentMs} ms`
  facts.fail(
    'ends-in-time',
    `call ${call.number} ${how}; its handler took ${handlerMs} ms, all else is bounded by ${boundMs} ms`,
  )
}

/** The reconcile hook, the hops of messages, and timers that round up. */
const SLACK_MS = 40

function judgeProbes(facts: Facts, calls: readonly Call[]): void {
  const soon = calls.findLast(({ probe }) => probe === 'soon')
  const late = calls.findLast(({ probe }) => probe === 'late')
  const openCodes: readonly string[] = ['in-flight', 'store-unavailable']
  const code = soon?.result?.kind === 'refused' ? soon.result.refusal.code : undefined
  if (code && openCodes.includes(code)) facts.fail('key-free', `${soon?.key} was still ${code} at the end of its bound`)
  if (late?.endedMs !== undefined && !late.run) {
    facts.fail('key-free', `${late.key} did not run though every record has expired: call ${late.number}`)
  }
}

function judgeDerived(facts: Facts): void {
  const byKey = new Map<string, string>()
  const owners = new Map<string, string>()
  for (const { call, derived, number } of facts.history.runs) {
    const before = byKey.get(call.key) ?? derived
    if (before !== derived)
      facts.fail('derive-stable', `run ${number} of ${call.key} derived ${derived}, an earlier one ${before}`)
    const owner = owners.get(derived) ?? call.key
    if (owner !== call.key) facts.fail('derive-stable', `${owner} and ${call.key} derived the same key`)
    byKey.set(call.key, before)
    owners.set(derived, owner)
  }
}

function isEqual(a: Answer, b: Answer): boolean {
  if (a === b) return true
  if (a.status !== b.status || a.body?.length !== b.body?.length) return false
  if (JSON.stringify(a.headers) !== JSON.stringify(b.headers)) return false
  return a.body?.every((byte, index) => byte === b.body?.[index]) ?? b.body === null
}
