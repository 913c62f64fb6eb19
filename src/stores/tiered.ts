import { type Clock, systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { Awaitable, Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../store.ts'
import { isPromise } from '../store-access.ts'
import { assertBound, Calls, type Settled } from '../store-combination.ts'
import { CachedAnswers } from './tiered/cached-answers.ts'
import { Owned } from './tiered/owned.ts'

export interface TieredOptions {
  /** Holds settled answers and nothing else: `memoryStore()`, or a server near by. It may lose them at any time. */
  readonly cache: Store
  /** Holds every claim and decides alone. */
  readonly ledger: Store
  /**
   * How long an answer stays in the cache at most. This long a process may still replay an answer that an operator has
   * made the ledger forget through another process. Default 60,000.
   */
  readonly cacheTtlMsMax?: number
  /** How long a cache on a server may take before it is left out. Default 50. */
  readonly cacheMsMax?: number
  /** Hears of a cache that fails. Requests are answered all the same. */
  readonly onCacheError?: (error: unknown) => void
  readonly clock?: Clock
}

/**
 * A cache before a ledger. Every claim, settle, release and renewal goes to the ledger, and counts when the ledger said
 * so: the guarantees are the ledger's. The cache only answers what cannot change any more, the settled answers; a copy
 * ends when the original does. To lose the cache, or to restart with an empty one, costs time and nothing else.
 *
 * Duplicates in one process coalesce. While a claim is held by this process, its duplicates are told `running` without
 * the ledger; while the ledger is being asked about an id, others that ask about it wait for the next question and share
 * its answer. A thousand duplicates are one call, two at the most.
 */
export function tiered(options: TieredOptions): Store {
  const { cache, ledger, cacheTtlMsMax = CACHE_TTL_MS_MAX, cacheMsMax = CACHE_MS_MAX, clock = systemClock } = options
  if (typeof cache?.claim !== 'function' || typeof ledger?.claim !== 'function' || cache === ledger) {
    throw new OncekeyError('config-invalid', 'tiered needs two different stores: cache and ledger.')
  }
  assertBound('cacheTtlMsMax', cacheTtlMsMax)
  assertBound('cacheMsMax', cacheMsMax)
  const answers = new CachedAnswers(cache, clock, { cacheTtlMsMax, cacheMsMax, onCacheError: options.onCacheError })
  return new Tiered(cache, ledger, answers, clock)
}

const CACHE_TTL_MS_MAX = 60_000
const CACHE_MS_MAX = 50
/** A question to the ledger that is older than this is not waited for: it may never be answered. */
const JOIN_MS_MAX = 1_000
/** How often a waiter looks again when the ledger cannot push and the owner is elsewhere, or here. */
const POLL_ELSEWHERE_MS = 100
const POLL_HERE_MS = 1_000

class Tiered implements Store {
  readonly name: string
  readonly #cache: Store
  readonly #ledger: Store
  readonly #answers: CachedAnswers
  readonly #clock: Clock
  readonly #calls: Calls
  readonly #owned: Owned
  /** Questions to the ledger that are under way, by id; the newest comes last. */
  readonly #questions = new Map<string, Question[]>()
  #turn = 0
  /** Counted so that an answer which was on its way while it was forgotten is not put back. */
  #forgets = 0

  constructor(cache: Store, ledger: Store, answers: CachedAnswers, clock: Clock) {
    this.name = `tiered(${cache.name}, ${ledger.name})`
    this.#cache = cache
    this.#ledger = ledger
    this.#answers = answers
    this.#clock = clock
    this.#calls = new Calls(this.name, clock)
    this.#owned = new Owned(clock)
  }

  claim(request: ClaimRequest): Awaitable<Claim> {
    this.#calls.assertOpen()
    const running = this.#owned.running(request)
    if (running) return running
    const found = this.#answers.find(request.id)
    if (!isPromise(found)) return found ?? this.#calls.run(() => this.#claim(request))
    return this.#calls.run(async () => (await found) ?? this.#claim(request))
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#calls.run(async () => {
      const forgets = this.#forgets
      const entry = this.#letGo(id, token)
      if (entry) entry.settled ??= { settlement, atMs: this.#clock.now() }
      const isKept = await this.#ledger.settle(id, token, settlement)
      // Asked twice with two answers, only the ledger knows which of them it kept.
      if (isKept && entry?.settled?.settlement === settlement && forgets === this.#forgets) {
        const leftMs = entry.settled.atMs + settlement.ttlMs - this.#clock.now()
        this.#answers.fill(id, entry.fingerprint, settlement, leftMs)
      }
      this.#owned.drop(id, token)
      return isKept
    })
  }

  async release(id: string, token: string): Promise<boolean> {
    return this.#calls.run(async () => {
      this.#letGo(id, token)
      const isReleased = await this.#ledger.release(id, token)
      this.#owned.drop(id, token)
      return isReleased
    })
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#calls.run(async () => {
      const askedMs = this.#clock.now()
      if (leaseMs === 0) this.#letGo(id, token)
      const isHeld = await this.#ledger.renew(id, token, leaseMs)
      if (isHeld && leaseMs > 0) this.#owned.extend(id, token, askedMs + leaseMs)
      else this.#owned.drop(id, token)
      return isHeld
    })
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    return this.#calls.run(async () => {
      const askedMs = this.#clock.now()
      const forgets = this.#forgets
      const record = await this.#ledger.read(id)
      if (record?.state === 'settled') this.#learn(id, record, askedMs, forgets)
      return record
    })
  }

  async list(query?: ListQuery): Promise<readonly StoredRecord[]> {
    return this.#calls.run(async () => this.#ledger.list(query))
  }

  async forget(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      this.#owned.drop(id)
      for (const question of this.#questions.get(id) ?? []) question.isOver = true
      const isForgotten = await this.#ledger.forget(id)
      // After the ledger: an answer that is still on its way from it belongs to the time before.
      this.#forgets++
      this.#owned.wake(id)
      await this.#answers.forget(id)
      return isForgotten
    })
  }

  async redact(id: string): Promise<boolean> {
    return this.#calls.run(async () => {
      const isRedacted = await this.#ledger.redact(id)
      // After the ledger: an answer that is still on its way from it belongs to the time before.
      this.#forgets++
      await this.#answers.forget(id)
      return isRedacted
    })
  }

  async sweep(limit?: number): Promise<number> {
    return this.#calls.run(async () => {
      const freed = await this.#ledger.sweep(limit)
      await this.#answers.sweep(limit)
      return freed
    })
  }

  waitFor(id: string, signal: AbortSignal): Promise<void> {
    return this.#calls.wait(() => this.#ledger.waitFor?.(id, signal) ?? this.#wait(id, signal))
  }

  async close(): Promise<void> {
    const closing = this.#calls.close([this.#cache, this.#ledger])
    this.#owned.wakeAll()
    await closing
  }

  /** For a ledger that cannot push. */
  async #wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const isHere = this.#owned.holds(id)
    if (!isHere && (await this.#ledger.read(id))?.state !== 'running') return
    await this.#owned.wait(id, isHere ? POLL_HERE_MS : POLL_ELSEWHERE_MS, signal)
  }

  async #claim(request: ClaimRequest): Promise<Claim> {
    const arrived = ++this.#turn
    for (;;) {
      const running = this.#owned.running(request)
      if (running) return running
      const question = this.#questions.get(request.id)?.at(-1)
      const isJoined =
        question && question.token !== request.token && this.#clock.now() - question.askedMs < JOIN_MS_MAX
      if (!isJoined) return unwrap(await this.#ask(request).reply)
      const reply = await question.reply
      if (reply.claim?.state === 'settled') return reply.claim
      // What was asked before this claim came may be outdated: then it waits for the next question.
      if (question.turn < arrived) continue
      if (reply.claim?.state === 'acquired') continue
      return isForAll(reply, request) ? unwrap(reply) : unwrap(await this.#ask(request).reply)
    }
  }

  #ask(request: ClaimRequest): Question {
    const { id, token } = request
    const sent: Sent = { token, turn: ++this.#turn, askedMs: this.#clock.now(), isOver: false }
    const question = Object.assign(sent, { reply: this.#reply(request, sent) })
    const underWay = this.#questions.get(id) ?? []
    underWay.push(question)
    this.#questions.set(id, underWay)
    const done = () => {
      underWay.splice(underWay.indexOf(question), 1)
      if (underWay.length === 0) this.#questions.delete(id)
    }
    question.reply = question.reply.finally(done)
    return question
  }

  async #reply(request: ClaimRequest, sent: Sent): Promise<Reply> {
    const forgets = this.#forgets
    try {
      const claim = await this.#ledger.claim(request)
      if (claim.state === 'settled') this.#learn(request.id, claim, sent.askedMs, forgets)
      // A reply that comes after its owner has let go says nothing about now.
      if (claim.state === 'acquired' && !sent.isOver) this.#owned.add(request, sent.askedMs)
      return { claim }
    } catch (error) {
      return { error }
    }
  }

  /** Whatever this token asks from now on, nobody is told from here that it is running. */
  #letGo(id: string, token: string): ReturnType<Owned['ending']> {
    for (const question of this.#questions.get(id) ?? []) if (question.token === token) question.isOver = true
    return this.#owned.ending(id, token)
  }

  #learn(id: string, settled: Settled, askedMs: number, forgets: number): void {
    if (forgets !== this.#forgets) return
    this.#answers.fill(id, settled.fingerprint, settled, askedMs + settled.expiresInMs - this.#clock.now())
  }
}

/** One claim on its way to the ledger, which others of the same id may wait for. */
interface Question extends Sent {
  reply: Promise<Reply>
}

interface Sent {
  readonly token: string
  readonly turn: number
  readonly askedMs: number
  /** Its owner let go, or the record was forgotten, before the reply came. */
  isOver: boolean
}

type Reply = { readonly claim: Claim; readonly error?: never } | { readonly claim?: never; readonly error: unknown }

function unwrap(reply: Reply): Claim {
  if (reply.claim) return reply.claim
  throw reply.error
}

/** Whether the ledger would have said the same to this request. */
function isForAll({ claim, error }: Reply, request: ClaimRequest): boolean {
  if (claim?.state === 'unknown') return !request.takeover || claim.fingerprint !== request.fingerprint
  return claim !== undefined || !(error instanceof OncekeyError) || error.code !== 'config-invalid'
}
