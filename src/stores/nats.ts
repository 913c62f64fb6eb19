import { OncekeyError } from '../error.ts'
import type { Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../store.ts'
import { assertClaimTimes, assertClient, assertDuration, assertSettlementTimes } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import { Bucket } from './nats/bucket.ts'
import { pauseAfter, TRIES_MAX, tooContended } from './nats/checks.ts'
import type { NatsJetStream } from './nats/client.ts'
import { Holds } from './nats/holds.ts'
import { pageOf, Sweeper } from './nats/operators.ts'
import {
  answerOf,
  createdAtOf,
  type Entry,
  encode,
  type Kept,
  recordOf,
  redactedOf,
  stateOf,
  timesOf,
  tombstoneOf,
  whole,
} from './nats/record.ts'
import { ServerClock } from './nats/server-clock.ts'
import { Waiters } from './nats/waiters.ts'

export type { NatsJetStream } from './nats/client.ts'

export interface NatsStoreOptions {
  /** The KV bucket, which must exist and should belong to oncekey alone. */
  readonly bucket: string
  /** How long one request to NATS may take, the election of a new leader included. Default 5 s. */
  readonly requestMsMax?: number
  /**
   * How far the clocks of the cluster's servers may be apart. By so much later does a lease count as lapsed and an
   * answer as expired, for each new leader brings its own clock. Default 500 ms; with one replica 0.
   */
  readonly skewMsMax?: number
}

/**
 * Records in a NATS JetStream KV bucket, shared by any number of processes: `natsStore(jetstream(connection), …)`.
 *
 * Every write is a compare-and-set on the record's revision: a new key costs one round trip, and so do `settle`,
 * `renew` and `release` by the process that claimed; a duplicate costs two. Nothing is ever deleted and made again:
 * what is released or forgotten becomes a tombstone. The client is JetStream's and not the KV's, for the KV client can
 * neither read from the leader nor make a compare-and-set that holds in a cluster of every version (see `bucket.ts`).
 *
 * Time is the servers'. NATS does not tell it, so it is measured (see `server-clock.ts`): a lease lapses up to a
 * request's duration plus 5 ms plus `skewMsMax` late, and never early as long as the servers' clocks keep within
 * `skewMsMax`. A record is at most as large as the server's `max_payload`, 1 MB by default.
 *
 * Space is freed by the bucket's own `ttl`, which must be longer than every lifetime asked for, or by `sweep`, which
 * reads the whole bucket and is best run by one process.
 */
export function natsStore(js: NatsJetStream, options: NatsStoreOptions): Store {
  const { bucket, requestMsMax = REQUEST_MS_MAX_DEFAULT, skewMsMax } = options ?? {}
  assertClient(js, 'publish', 'natsStore', 'jetstream(connection)')
  if (typeof bucket !== 'string' || !/^[-\w]+$/.test(bucket)) {
    throw new OncekeyError('config-invalid', `bucket is ${bucket}; it must be letters, digits, "-" and "_".`)
  }
  assertDuration('requestMsMax', requestMsMax)
  if (skewMsMax !== undefined) assertDuration('skewMsMax', skewMsMax)
  return new NatsStore(new Bucket(js, bucket, requestMsMax), skewMsMax)
}

const REQUEST_MS_MAX_DEFAULT = 5_000
const SKEW_MS_MAX_DEFAULT = 500
const LIST_LIMIT_DEFAULT = 100
const SWEEP_LIMIT_DEFAULT = 1_000
/**
 * What has been gone for so long is no longer replaced by its revision but purged and made anew, and the sweeper purges
 * only what has been gone for twice as long: a replacement must never be under way while its predecessor is purged.
 */
const OLD_MS = 60_000

class NatsStore implements Store {
  readonly name = 'nats'
  readonly #bucket: Bucket
  readonly #clock: ServerClock
  readonly #holds = new Holds()
  readonly #waiters: Waiters
  readonly #sweeper: Sweeper
  readonly #accepted = new UnderWay()
  #closing: Promise<void> | undefined

  constructor(bucket: Bucket, skewMsMax: number | undefined) {
    this.#bucket = bucket
    this.#clock = new ServerClock(bucket, async () => {
      return skewMsMax ?? ((await bucket.settings()).replicas > 1 ? SKEW_MS_MAX_DEFAULT : 0)
    })
    this.#waiters = new Waiters(bucket, (id) => this.#leaseLeft(id))
    this.#sweeper = new Sweeper(bucket, 2 * OLD_MS)
  }

  claim(request: ClaimRequest): Promise<Claim> {
    return this.#accept(() => this.#claim(request))
  }

  settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#accept(async () => {
      assertSettlementTimes(settlement)
      const settled = answerOf(settlement)
      await this.#assertKeepable(settled.ttlMs + settled.expiredTtlMs)
      const { body } = settlement.answer
      const done = await this.#replaceOwn(id, token, (kept) => encode({ ...kept, settled }, body))
      if (done === 'settled') return true
      this.#holds.drop(token)
      return done
    })
  }

  release(id: string, token: string): Promise<boolean> {
    return this.#accept(async () => {
      const released = (kept: Kept): Kept => (kept.attempt > 1 ? { ...kept, leaseMs: 0 } : tombstoneOf(id))
      const done = await this.#replaceOwn(id, token, (kept) => encode(released(kept)))
      this.#holds.drop(token)
      return done === true
    })
  }

  renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#accept(async () => {
      assertDuration('leaseMs', leaseMs)
      let renewed: Kept | undefined
      const sentMs = performance.now()
      const encodeRenewed = (kept: Kept): Uint8Array => {
        renewed = { ...kept, leaseMs: whole(leaseMs) }
        return encode(renewed)
      }
      const done = await this.#replaceOwn(id, token, encodeRenewed, (revision) => {
        if (renewed) this.#holds.keep(renewed, revision, sentMs)
      })
      return done === true
    })
  }

  read(id: string): Promise<StoredRecord | undefined> {
    return this.#accept(async () => {
      const entry = await this.#bucket.read(id)
      if (entry === undefined) return undefined
      const now = await this.#nowFor(entry)
      return now < timesOf(entry).goneAt ? recordOf(entry, now) : undefined
    })
  }

  /** Asks for the names of all keys, and reads records in their order until the page is full. */
  list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    const { after, limit = LIST_LIMIT_DEFAULT, state } = query
    return this.#accept(async () => {
      return pageOf(this.#bucket, after, limit, async (entry) => {
        const now = await this.#nowFor(entry)
        if (now >= timesOf(entry).goneAt) return undefined
        const record = recordOf(entry, now)
        return state === undefined || record.state === state ? record : undefined
      })
    })
  }

  forget(id: string): Promise<boolean> {
    return this.#accept(async () => {
      for (let tries = 0; tries < TRIES_MAX; tries++) {
        const entry = await this.#bucket.read(id)
        if (entry === undefined || (await this.#isGone(entry))) return false
        if ((await this.#bucket.write(id, encode(tombstoneOf(id)), entry.revision)) !== undefined) return true
        await pauseAfter(tries)
      }
      throw tooContended(id)
    })
  }

  redact(id: string): Promise<boolean> {
    return this.#accept(async () => {
      for (let tries = 0; tries < TRIES_MAX; tries++) {
        const entry = await this.#bucket.read(id)
        if (entry?.kept.settled === undefined || (await this.#isGone(entry))) return false
        const redacted = encode(redactedOf(entry, await this.#nowFor(entry)))
        if ((await this.#bucket.write(id, redacted, entry.revision)) !== undefined) return true
        await pauseAfter(tries)
      }
      throw tooContended(id)
    })
  }

  sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    return this.#accept(async () => this.#sweeper.sweep(limit, await this.#clock.fresh()))
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    await this.#waiters.wait(id, signal)
  }

  close(): Promise<void> {
    this.#closing ??= this.#accepted.idle().then(() => this.#waiters.close())
    this.#waiters.wakeAll()
    return this.#closing
  }

  async #claim(request: ClaimRequest): Promise<Claim> {
    const { id, token } = request
    assertClaimTimes(request)
    const first = firstOf(request)
    await this.#assertKeepable(first.leaseMs + first.unknownTtlMs)
    const bytes = encode(first)
    let next: Next = { kept: first, bytes, revision: 0 }
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const sentMs = performance.now()
      const revision = await this.#bucket.write(id, next.bytes, next.revision)
      if (revision !== undefined) {
        this.#holds.keep(next.kept, revision, sentMs)
        return { state: 'acquired', attempt: next.kept.attempt }
      }
      await pauseAfter(tries)
      const entry = await this.#bucket.read(id)
      const decided = entry === undefined ? 'absent' : await this.#decide(entry, request)
      if (decided === 'absent') next = { kept: first, bytes, revision: 0 }
      else if (decided === 'gone') next = { kept: first, bytes, revision: entry?.revision ?? 0 }
      else if ('state' in decided) return decided
      else next = { kept: decided, bytes: encode(decided), revision: entry?.revision ?? 0 }
    }
    this.#holds.drop(token)
    throw tooContended(id)
  }

  /** What the claim comes to, seeing this entry: an answer, or that it may write: a new record or the one of a takeover. */
  async #decide(entry: Entry, request: ClaimRequest): Promise<Claim | Kept | 'absent' | 'gone'> {
    const { kept } = entry
    if (await this.#isGone(entry)) {
      if (!(await this.#isOld(entry))) return 'gone'
      await this.#bucket.purge(request.id, entry.revision)
      return 'absent'
    }
    const now = await this.#nowFor(entry)
    if (kept.settled !== undefined) return stateOf(entry, now)
    if (kept.token === request.token) return { state: 'acquired', attempt: kept.attempt }
    if (!request.takeover || kept.fingerprint !== request.fingerprint) return stateOf(entry, now)
    if (!(await this.#isPast(entry, timesOf(entry).leaseUntil))) return stateOf(entry, now)
    const { token, leaseMs, unknownTtlMs } = request
    const lease = { leaseMs: whole(leaseMs), unknownTtlMs: whole(unknownTtlMs) }
    return { ...kept, ...lease, token, attempt: kept.attempt + 1, createdAt: createdAtOf(entry) }
  }

  /**
   * Replaces a record that this token holds unsettled. What this process claimed is replaced at once, by the revision
   * that it knows; only when that fails, or the record might be gone, it is read.
   */
  async #replaceOwn(
    id: string,
    token: string,
    encodeNext: (kept: Kept) => Uint8Array,
    written: (revision: number) => void = () => {},
  ): Promise<boolean | 'settled'> {
    const hold = this.#holds.find(id, token)
    if (hold !== undefined) {
      const revision = await this.#bucket.write(id, encodeNext(hold.kept), hold.revision)
      if (revision !== undefined) {
        written(revision)
        return true
      }
      this.#holds.drop(token)
    }
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const entry = await this.#bucket.read(id)
      if (entry === undefined || entry.kept.token !== token || (await this.#isGone(entry))) return false
      if (entry.kept.settled !== undefined) return 'settled'
      const { ageMs: _, ...kept } = { ...entry.kept, createdAt: createdAtOf(entry) }
      const revision = await this.#bucket.write(id, encodeNext(kept), entry.revision)
      if (revision !== undefined) {
        written(revision)
        return true
      }
      await pauseAfter(tries)
    }
    throw tooContended(id)
  }

  async #leaseLeft(id: string): Promise<{ revision: number; leaseLeftMs: number }> {
    const entry = await this.#bucket.read(id)
    if (entry === undefined || entry.kept.tombstone || entry.kept.settled) {
      return { revision: entry?.revision ?? 0, leaseLeftMs: 0 }
    }
    const leaseLeftMs = timesOf(entry).leaseUntil - (await this.#nowFor(entry))
    return { revision: entry.revision, leaseLeftMs }
  }

  async #isGone(entry: Entry): Promise<boolean> {
    return entry.kept.tombstone === true || this.#isPast(entry, timesOf(entry).goneAt)
  }

  /** Whether others may now have what the owner had. Asked again of a fresh clock before it is believed. */
  async #isPast(entry: Entry, atMs: number): Promise<boolean> {
    if (entry.timeMs >= atMs) return true
    return (await this.#clock.now()) >= atMs && (await this.#clock.fresh()) >= atMs
  }

  async #isOld(entry: Entry): Promise<boolean> {
    const { ageMsMax } = await this.#bucket.settings()
    const now = await this.#nowFor(entry)
    return now >= timesOf(entry).goneAt + OLD_MS || now >= entry.timeMs + ageMsMax - OLD_MS
  }

  /** The server's clock had reached the entry's own time when it stored it. */
  async #nowFor(entry: Entry): Promise<number> {
    return Math.max(entry.timeMs, await this.#clock.now())
  }

  async #assertKeepable(lifetimeMs: number): Promise<void> {
    const { ageMsMax } = await this.#bucket.settings()
    if (lifetimeMs <= ageMsMax) return
    throw new OncekeyError(
      'config-invalid',
      `The NATS bucket ${this.#bucket.name} forgets everything after ${ageMsMax} ms (its ttl), and this record must be ` +
        `kept for ${lifetimeMs} ms. Nothing was changed. Raise the bucket's ttl, or shorten the contract's lifetimes.`,
    )
  }

  /** `close` waits for what was accepted before it. */
  async #accept<T>(verb: () => Promise<T>): Promise<T> {
    this.#assertOpen()
    return this.#accepted.during(verb())
  }

  #assertOpen(): void {
    if (this.#closing !== undefined) {
      throw new OncekeyError('store-closed', 'This NATS store was closed. Its records are kept; open another store.')
    }
  }
}

interface Next {
  readonly kept: Kept
  readonly bytes: Uint8Array
  readonly revision: number
}

function firstOf({ id, token, fingerprint, leaseMs, unknownTtlMs, labels }: ClaimRequest): Kept {
  const kept = { id, token, fingerprint, attempt: 1, leaseMs: whole(leaseMs), unknownTtlMs: whole(unknownTtlMs) }
  return labels === undefined ? kept : { ...kept, labels }
}
