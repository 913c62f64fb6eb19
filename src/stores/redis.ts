import { Alarms } from '../alarms.ts'
import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { Claim, ClaimRequest, ListQuery, Settlement, Store, StoredRecord } from '../store.ts'
import type { Strictness } from '../store-checks.ts'
import { assertClaimTimes, assertDuration, assertSettlementTimes, assertStrictness, rowCount } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import type { Arg, RedisClient } from './redis/clients.ts'
import { type Ask, type Driver, driverOf } from './redis/drivers.ts'
import { faultOf } from './redis/faults.ts'
import { claimOwn, fromText, RedisRecord, settleOwn, toText } from './redis/record.ts'
import * as scripts from './redis/scripts.ts'
import { judge, settingsOf } from './redis/settings.ts'
import { Turns } from './redis/turns.ts'
import { Waiters } from './redis/waiters.ts'

export type { RedisClient } from './redis/clients.ts'

export interface RedisStoreOptions {
  /** Before the key of every record, and before the channel that wakes waiters. Default `oncekey:`. */
  readonly prefix?: string
  /**
   * What to do when the server's `maxmemory-policy` is not `noeviction`, so that live claims can vanish and operations
   * run twice. Default `refuse`: every verb throws `config-invalid` until the server is set right.
   */
  readonly whenEvicting?: Strictness
  /** What to do when the server keeps no append-only file, so that a restart forgets records. Default `warn`. */
  readonly whenVolatile?: Strictness
}

/**
 * Records in Redis 7.0 or later, or Valkey: one server, Sentinel or Cluster, through a client of `redis` or `ioredis`.
 * Every verb is one script, in one round trip; claims and settles of the same moment share a script and a write.
 *
 * What is kept: with `appendfsync always` every acknowledged record survives the end of the server's process and of
 * its machine; with `everysec` a loss of power takes up to a second. A failover takes what the replica had not received
 * yet, whatever the settings are: those operations can run again. So with replicas, and without an append-only file,
 * this store is best effort. Where twice is too often, use PostgreSQL or SQLite.
 *
 * The settings are read at first use, on every master, and not again. The client is the caller's, as are its
 * reconnects and its listener for errors; only the waiters have a connection of their own, a duplicate of it.
 */
export function redisStore(client: RedisClient, options: RedisStoreOptions = {}): Store {
  const { prefix = 'oncekey:', whenEvicting = 'refuse', whenVolatile = 'warn' } = options
  if (typeof prefix !== 'string') throw new OncekeyError('config-invalid', 'prefix must be a string.')
  assertStrictness({ whenEvicting, whenVolatile })
  return new RedisStore(driverOf(client), toText(prefix), whenEvicting, whenVolatile)
}

/** A server that is silent for longer is not waited for. The engine's own limit is mostly shorter. */
const CALL_MS_MAX = 15_000
const KNOWN_LATELY_MAX = 16
const LIST_LIMIT_DEFAULT = 100
const STEP_RECORDS = 100
const SWEEP_LIMIT_DEFAULT = 1_000
const SCAN_STEP_KEYS = 1_000
/** Longer is as good as for ever, and still a time that a Date can show. */
const DURATION_MS_MAX = 1_000 * 365 * 24 * 3_600_000

class RedisStore implements Store {
  readonly name = 'redis'
  readonly #driver: Driver
  readonly #prefix: string
  readonly #channel: string
  readonly #whenEvicting: Strictness
  readonly #whenVolatile: Strictness
  readonly #alarms = new Alarms(systemClock, CALL_MS_MAX)
  readonly #turns: Turns
  readonly #waiters: Waiters
  /** Only a guess, for speed: whether the next claims are probably of known keys (above 0), or of new ones. */
  #knownLately = 0
  #isChecked = false
  #checking: Promise<void> | undefined
  #isClosed = false
  readonly #underWay = new UnderWay()

  constructor(driver: Driver, prefix: string, whenEvicting: Strictness, whenVolatile: Strictness) {
    this.#driver = driver
    this.#prefix = prefix
    this.#channel = `${prefix}woken`
    this.#whenEvicting = whenEvicting
    this.#whenVolatile = whenVolatile
    this.#isChecked = whenEvicting === 'ignore' && whenVolatile === 'ignore'
    this.#turns = new Turns((...call) => this.#send(...call), driver, systemClock, CALL_MS_MAX)
    const onMessage = (key: string): void => this.#waiters.wake(this.#idOf(key))
    this.#waiters = new Waiters(
      systemClock,
      async (id) => Number(await this.#run(scripts.LOOK, id)),
      (onChange) => driver.subscribe(this.#channel, onMessage, onChange),
    )
  }

  async claim(request: ClaimRequest): Promise<Claim> {
    const { id, leaseMs, unknownTtlMs, takeover } = request
    this.#assertOpen()
    assertClaimTimes(request)
    const reply = await this.#turns.submit({
      script: scripts.CLAIM,
      key: this.#keyOf(id),
      shared: [whole(leaseMs), whole(unknownTtlMs), takeover ? '1' : '', this.#knownLately > 0 ? '1' : ''],
      own: claimOwn(request),
      body: null,
    })
    if (Array.isArray(reply)) {
      this.#knownLately = Math.min(this.#knownLately + 1, KNOWN_LATELY_MAX)
      return RedisRecord.from(reply, id).state()
    }
    this.#knownLately = Math.max(this.#knownLately - 1, -KNOWN_LATELY_MAX)
    return { state: 'acquired', attempt: Number(reply) }
  }

  async settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    this.#assertOpen()
    const { ttlMs, expiredTtlMs } = settlement
    assertSettlementTimes(settlement)
    const [own, body] = settleOwn(token, settlement)
    const shared = [whole(ttlMs), whole(expiredTtlMs), this.#channel] as const
    const reply = await this.#turns.submit({ script: scripts.SETTLE, key: this.#keyOf(id), shared, own, body })
    const isDone = Number(reply) === 1
    if (isDone) this.#waiters.wake(id)
    return isDone
  }

  async release(id: string, token: string): Promise<boolean> {
    this.#assertOpen()
    return this.#wakingWhenTrue(id, scripts.RELEASE, toText(token), this.#channel)
  }

  async renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    this.#assertOpen()
    assertDuration('leaseMs', leaseMs)
    if (leaseMs === 0) return this.#wakingWhenTrue(id, scripts.RENEW, toText(token), '0', this.#channel)
    return Number(await this.#run(scripts.RENEW, id, toText(token), whole(leaseMs), this.#channel)) === 1
  }

  async read(id: string): Promise<StoredRecord | undefined> {
    this.#assertOpen()
    return this.#read(id)
  }

  /** Visits every key on every master, by SCAN; only the records of the page are read. */
  async list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    this.#assertOpen()
    const { after, limit = LIST_LIMIT_DEFAULT, state } = query
    const limited = rowCount(limit)
    const ids = new Set<string>()
    for await (const page of this.#ids()) for (const id of page) if (after === undefined || id > after) ids.add(id)
    const sorted = [...ids].sort((a, b) => (a < b ? -1 : 1))
    const records: StoredRecord[] = []
    for (let from = 0; from < sorted.length && records.length < limited; from += STEP_RECORDS) {
      const step = await Promise.all(sorted.slice(from, from + STEP_RECORDS).map((id) => this.#read(id)))
      for (const record of step) if (record && (state === undefined || record.state === state)) records.push(record)
    }
    return records.slice(0, limited)
  }

  async forget(id: string): Promise<boolean> {
    this.#assertOpen()
    return this.#wakingWhenTrue(id, scripts.FORGET, this.#channel)
  }

  async redact(id: string): Promise<boolean> {
    this.#assertOpen()
    return Number(await this.#run(scripts.REDACT, id)) === 1
  }

  /** Redis frees by itself what is gone, so no row goes here: only the answers of expired records, `limit` at most. */
  async sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    this.#assertOpen()
    let left = rowCount(limit)
    for await (const page of this.#ids()) {
      for (let from = 0; from < page.length && left > 0; ) {
        const step = page.slice(from, from + Math.min(left, STEP_RECORDS))
        const stripped = await Promise.all(step.map((id) => this.#run(scripts.STRIP, id)))
        for (const isStripped of stripped) left -= Number(isStripped)
        from += step.length
      }
      if (left <= 0) break
    }
    return 0
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    await this.#waiters.wait(id, signal)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.#waiters.close()
    await this.#turns.idle()
    await this.#underWay.idle()
  }

  async #read(id: string): Promise<StoredRecord | undefined> {
    const reply = await this.#run(scripts.READ, id)
    return Array.isArray(reply) ? RedisRecord.from(reply, id).stored() : undefined
  }

  async #wakingWhenTrue(id: string, script: scripts.Script, ...args: Arg[]): Promise<boolean> {
    const isDone = Number(await this.#run(script, id, ...args)) === 1
    if (isDone) this.#waiters.wake(id)
    return isDone
  }

  #run(script: scripts.Script, id: string, ...args: Arg[]): Promise<unknown> {
    return this.#turns.submit({ script, key: this.#keyOf(id), args })
  }

  #send(...call: Parameters<Driver['run']>): Promise<unknown> {
    if (this.#isChecked) return this.#driver.run(...call)
    return this.#check().then(() => this.#driver.run(...call))
  }

  /** Ends in time, and with our own error; `close` waits for it. */
  #bounded<T>(reply: Promise<T>): Promise<T> {
    this.#underWay.begin()
    return new Promise<T>((resolve, reject) => {
      const end = (): void => {
        this.#alarms.cancel(alarm)
        this.#underWay.end()
      }
      let isLate = false
      const alarm = this.#alarms.set(() => {
        isLate = true
        end()
        reject(faultOf(new Error(`no reply within ${CALL_MS_MAX} ms`)))
      })
      reply.then(
        (value) => {
          if (isLate) return
          end()
          resolve(value)
        },
        (error: unknown) => {
          if (isLate) return
          end()
          reject(faultOf(error))
        },
      )
    })
  }

  /** Once; again after a failure, so that a server that was set right is used without a restart. */
  #check(): Promise<void> {
    this.#checking ??= this.#inspect().finally(() => {
      this.#checking = undefined
    })
    return this.#checking
  }

  async #inspect(): Promise<void> {
    const servers = await this.#driver.servers()
    if (servers.length === 0) throw new Error('the client knows no server; it is not connected')
    const settings = await Promise.all(servers.map(settingsOf))
    for (const warning of judge(settings, this.#whenEvicting, this.#whenVolatile)) {
      process.emitWarning(warning, 'OncekeyWarning')
    }
    this.#isChecked = true
  }

  async *#ids(): AsyncGenerator<readonly string[]> {
    const start = this.#driver.keyPrefix + this.#prefix
    const pattern = `${start.replace(/[\\*?[\]]/g, '\\$&')}{*}`
    if (!this.#isChecked) await this.#bounded(this.#check())
    for (const ask of await this.#bounded(this.#driver.servers())) yield* this.#idsOn(ask, pattern)
  }

  async *#idsOn(ask: Ask, pattern: string): AsyncGenerator<readonly string[]> {
    let cursor = '0'
    do {
      const step = await this.#bounded(ask('SCAN', cursor, 'MATCH', pattern, 'COUNT', String(SCAN_STEP_KEYS)))
      const [next, keys] = step as [Buffer, Buffer[]]
      cursor = String(next)
      yield keys.map((key) => this.#idOf(String(key)))
    } while (cursor !== '0')
  }

  #keyOf(id: string): string {
    return `${this.#prefix}{${toText(id)}}`
  }

  #idOf(key: string): string {
    return fromText(key.slice(this.#driver.keyPrefix.length + this.#prefix.length + 1, -1))
  }

  #assertOpen(): void {
    if (this.#isClosed) {
      throw new OncekeyError('store-closed', 'This redis store was closed. Its records are still there; open another.')
    }
  }
}

/** The records count in whole milliseconds; a part of one counts as one. */
function whole(durationMs: number): string {
  return String(Math.min(Math.ceil(durationMs), DURATION_MS_MAX))
}
