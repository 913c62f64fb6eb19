import { createHash, type Hash } from 'node:crypto'
import { type Contract, verdicts } from '../contract.ts'
import type { Operation } from '../execution.ts'
import { isRefusal, type Protection, type RequestFacts } from '../http/protection.ts'
import type { Payload } from '../operation/fingerprint.ts'
import type { Claim, Store } from '../store.ts'
import { within } from './bounds.ts'
import { publishGate, type ShadowFinding, type Would } from './events.ts'
import type { Exchange } from './exchange.ts'
import type { Observer } from './pass.ts'

export type ShadowCounters = Readonly<Record<Would | 'differs', number>>

/** Before every principal of shadow mode: its records never meet those of a gate that protects. No client can send it. */
export const SHADOW_PREFIX = '\u0000shadow\u0000'

/**
 * Shadow mode (X10): everything is forwarded as it comes, nothing waits for the store, and nothing is refused or
 * replayed. Beside that each request is claimed and settled in records of its own, to find what would have happened. Of
 * an answer only its status and the digest of its body are kept.
 */
export class Shadow {
  readonly counters: Record<Would | 'differs', number> = {
    run: 0,
    replay: 0,
    conflict: 0,
    'in-flight': 0,
    unknown: 0,
    expired: 0,
    'missing-key': 0,
    'invalid-key': 0,
    'no-principal': 0,
    'not-judged': 0,
    differs: 0,
  }
  readonly store: Store
  readonly leaseMsMin: number
  readonly #pending = new Set<Promise<void>>()
  #count = 0
  readonly #tokenHead: string = crypto.randomUUID()

  /** `leaseMsMin`: longer than any exchange takes, because nothing is renewed here. */
  constructor(store: Store, leaseMsMin: number) {
    this.store = store
    this.leaseMsMin = leaseMsMin
  }

  /** What to watch of this exchange, if there is something to find out. */
  observe(exchange: Exchange, protection: Protection<Exchange>, facts: RequestFacts): Observer | undefined {
    const key = protection.key(exchange, facts)
    if (key === undefined) return undefined
    if (isRefusal(key)) {
      this.tell({ would: key.code === 'key-missing' ? 'missing-key' : 'invalid-key' })
      return undefined
    }
    if (exchange.principal === '') {
      this.tell({ would: 'no-principal' })
      return undefined
    }
    if (this.#pending.size >= PENDING_MAX) {
      this.tell({ would: 'not-judged' })
      return undefined
    }
    return new Judgement(this, exchange, protection, (payload) => protection.operation(exchange, facts, key, payload))
  }

  tell(finding: ShadowFinding): void {
    this.counters[finding.would]++
    if (finding.differs) this.counters.differs++
    publishGate({ type: 'shadow', ...finding })
  }

  newToken(): string {
    return `${this.#tokenHead}.${(++this.#count).toString(36)}`
  }

  inBackground(work: Promise<void>): void {
    const one = work.catch(() => this.tell({ would: 'not-judged' })).finally(() => this.#pending.delete(one))
    this.#pending.add(one)
  }

  async idle(msMax: number): Promise<void> {
    await within(Promise.all(this.#pending), msMax)
  }
}

/** A store that does not reply must not gather judgements without end. */
const PENDING_MAX = 5_000
const STORE_MS_MAX = 5_000

interface Answered {
  readonly status: number
  readonly digest: Buffer
}

class Judgement implements Observer {
  readonly #shadow: Shadow
  readonly #exchange: Exchange
  readonly #contract: Contract
  readonly #operation: (payload: Payload) => Operation | Promise<Operation>
  readonly #token: string
  readonly #hash: Hash = createHash('sha256')
  readonly #answered: Promise<Answered | 'nothing-done' | 'unknown'>
  #resolve!: (end: Answered | 'nothing-done' | 'unknown') => void
  #chunks: Buffer[] | undefined = []
  #bytes = 0
  #status = 0

  constructor(
    shadow: Shadow,
    exchange: Exchange,
    { contract }: Protection<Exchange>,
    operation: (payload: Payload) => Operation | Promise<Operation>,
  ) {
    this.#shadow = shadow
    this.#exchange = exchange
    this.#contract = contract
    this.#operation = operation
    this.#token = shadow.newToken()
    this.#answered = new Promise((resolve) => {
      this.#resolve = resolve
    })
  }

  requestChunk(chunk: Buffer): void {
    this.#bytes += chunk.length
    if (!this.#chunks) return
    if (this.#bytes > this.#contract.limits.requestBytesMax || !this.#exchange.take(chunk.length)) {
      this.#chunks = undefined
    } else this.#chunks.push(chunk)
  }

  requestEnd(): void {
    const chunks = this.#chunks
    this.#chunks = undefined
    if (!chunks) return this.#shadow.tell({ would: 'not-judged' })
    const bytes = Buffer.concat(chunks)
    const contentType = this.#exchange.incoming.headers['content-type'] ?? ''
    const payload: Payload = bytes.length === 0 ? { kind: 'none' } : { kind: 'bytes', bytes, contentType }
    this.#shadow.inBackground(this.#judge(payload))
  }

  answerStart(status: number): void {
    this.#status = status
  }

  answerChunk(chunk: Buffer): void {
    this.#hash.update(chunk)
  }

  answerEnd(): void {
    this.#resolve({ status: this.#status, digest: this.#hash.digest() })
  }

  broken(sent: boolean): void {
    this.#resolve(sent ? 'unknown' : 'nothing-done')
  }

  async #judge(payload: Payload): Promise<void> {
    const operation = await this.#operation(payload)
    const { id, labels } = operation
    const claim = await this.#claim(operation)
    const end = await this.#answered
    const about = { id, ...(labels && { labels }), ...(typeof end === 'object' && { status: end.status }) }
    if (claim.state === 'acquired') {
      await this.#conclude(id, end)
      return this.#shadow.tell({ would: 'run', ...about })
    }
    if (claim.fingerprint !== operation.fingerprint) return this.#shadow.tell({ would: 'conflict', ...about })
    if (claim.state === 'settled') {
      const { status, body } = claim.answer
      const differs = typeof end === 'object' && !(end.status === status && body !== null && end.digest.equals(body))
      return this.#shadow.tell({ would: 'replay', differs, ...about })
    }
    this.#shadow.tell({ would: claim.state === 'running' ? 'in-flight' : claim.state, ...about })
  }

  async #claim({ id, fingerprint, labels }: Operation): Promise<Claim> {
    const { lease, ttl } = this.#contract
    const leaseMs = Math.max(lease.ms, this.#shadow.leaseMsMin)
    const request = { id, token: this.#token, fingerprint, leaseMs, unknownTtlMs: ttl.unknownMs, takeover: false }
    const claim = this.#shadow.store.claim(labels ? { ...request, labels } : request)
    const reply = await within(Promise.resolve(claim), STORE_MS_MAX)
    if (reply === 'late') throw new Error('The store did not reply in time.')
    return reply
  }

  async #conclude(id: string, end: Answered | 'nothing-done' | 'unknown'): Promise<void> {
    const { store } = this.#shadow
    const verdict =
      typeof end === 'object' ? verdicts(this.#contract)(end.status) : end === 'unknown' ? 'unknown' : 'release'
    if (verdict === 'release') await store.release(id, this.#token)
    else if (verdict === 'unknown' || typeof end !== 'object') await store.renew(id, this.#token, 0)
    else {
      const { committedMs, rejectedMs, expiredMs } = this.#contract.ttl
      const isCommitted = end.status < 400
      await store.settle(id, this.#token, {
        outcome: isCommitted ? 'committed' : 'rejected',
        answer: { status: end.status, headers: [], body: end.digest },
        ttlMs: isCommitted ? committedMs : rejectedMs,
        expiredTtlMs: expiredMs,
      })
    }
  }
}
