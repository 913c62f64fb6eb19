import { systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type {
  Claim,
  ClaimRequest,
  ListQuery,
  Settlement,
  StoredRecord,
  TransactionalStore,
  TransactionEnd,
} from '../store.ts'
import { assertClaimTimes, assertClient, assertCounts, assertDuration, assertSettlementTimes } from '../store-checks.ts'
import { UnderWay } from '../under-way.ts'
import type { MongodbClient, MongodbCollection, MongodbSession, MongodbWriteConcern } from './mongodb/client.ts'
import { assertFits, checkFields, type RecordFields } from './mongodb/document.ts'
import { isClientClosed, noReply, toOncekeyError } from './mongodb/faults.ts'
import { Records } from './mongodb/records.ts'
import { INDEXES, type MongodbIndex, prepare, uniqueIndex } from './mongodb/schema.ts'
import { transact } from './mongodb/transaction.ts'
import { CHANGES, Waiters } from './mongodb/waiters.ts'

export type { MongodbClient, MongodbCollection, MongodbSession, MongodbWriteConcern } from './mongodb/client.ts'
export type { MongodbIndex } from './mongodb/schema.ts'

export interface MongodbStoreOptions<Session extends MongodbSession = MongodbSession> {
  /**
   * The client that the collection belongs to. `transaction` needs it; and so does a process that may start before its
   * server, for the driver gives a client up whose first connection failed, until it is told to connect again.
   */
  readonly client?: MongodbClient<Session>
  /** When a write counts as done. Default `{ w: 'majority', journal: true }`; anything less can lose claims. */
  readonly writeConcern?: MongodbWriteConcern
  /** Whether the store may make its indexes when it is first used. `false`: make `mongodbIndexes` yourself. */
  readonly migrate?: boolean
  /** Labels, or the `fingerprint`, to be written as fields of the document, too: `{ userId: 'principal', bodyHash: 'fingerprint' }`. */
  readonly fields?: RecordFields
  /** Which of these `fields` together are made a unique index. */
  readonly unique?: readonly string[]
  /** How long one call may take before `store-unavailable` is thrown. Default 10 s. */
  readonly callMsMax?: number
  /** For `transaction`: how long a duplicate waits for the first one's end before it is told `running`. Default 5 s. */
  readonly transactionWaitMsMax?: number
}

/**
 * Records in a collection of MongoDB 5 or later, which should belong to oncekey alone; one document each.
 *
 * A claim is one `findOneAndUpdate` with upsert, and the server decides it, by its own clock (`$$NOW`). With the default
 * write concern an acknowledged claim or settle is in the journal of a majority of the replica set: it survives kill -9,
 * a loss of power and a failover. After a failover time is the new primary's: keep the members' clocks together.
 *
 * In a sharded cluster, shard the collection by a hashed `_id`. A TTL index lets the server free what is gone, about once a minute; until then it counts as absent all the same. An
 * answer with its record must fit into one document of 16 MB. Other processes' settles are heard by a change stream; a
 * server that is not a member of a replica set has none, and is polled.
 *
 * `transaction(request, work)`: the claim, what `work` writes with `{ session: tx }`, and the answer commit together or
 * not at all. It needs `client` and a replica set. A conflict with other transactions throws, and nothing has taken
 * place; a duplicate tries again until the first one has ended.
 *
 * The caller owns the client; give it `socketTimeoutMS` and `waitQueueTimeoutMS`, so that a server that hangs does not
 * keep the connections of its pool. A server that only speaks the protocol, and cannot decide a claim in one step, is
 * refused with `store-incompatible`.
 */
export function mongodbStore<Session extends MongodbSession = MongodbSession>(
  collection: MongodbCollection,
  options: MongodbStoreOptions<Session> = {},
): TransactionalStore<Session> {
  assertClient(collection, 'findOneAndUpdate', 'mongodbStore', "client.db().collection('oncekey')")
  const bounds = {
    callMsMax: options.callMsMax ?? CALL_MS_MAX_DEFAULT,
    transactionWaitMsMax: options.transactionWaitMsMax ?? TRANSACTION_WAIT_MS_MAX_DEFAULT,
  }
  assertCounts(bounds)
  const { writeConcern = WRITE_CONCERN_DEFAULT, fields = {}, unique = [] } = options
  checkFields(fields, unique)
  if (writeConcern.w === 0) {
    throw new OncekeyError('config-invalid', 'writeConcern.w is 0: MongoDB would not even say who has the claim.')
  }
  return new MongodbStore(collection, { ...options, ...bounds, writeConcern })
}

/** The indexes that the store makes when it is first used, for those who make them themselves. */
export const mongodbIndexes: readonly MongodbIndex[] = INDEXES

const WRITE_CONCERN_DEFAULT: MongodbWriteConcern = { w: 'majority', journal: true }
const CALL_MS_MAX_DEFAULT = 10_000
const TRANSACTION_WAIT_MS_MAX_DEFAULT = 5_000
const LIST_LIMIT_DEFAULT = 100
const SWEEP_LIMIT_DEFAULT = 1_000

type Settings<Session extends MongodbSession> = MongodbStoreOptions<Session> & {
  readonly writeConcern: MongodbWriteConcern
  readonly callMsMax: number
  readonly transactionWaitMsMax: number
}

class MongodbStore<Session extends MongodbSession> implements TransactionalStore<Session> {
  readonly name = 'mongodb'
  readonly #collection: MongodbCollection
  readonly #settings: Settings<Session>
  readonly #records: Records
  readonly #waiters: Waiters
  readonly #accepted = new UnderWay()
  #prepared: Promise<void> | undefined
  #mustConnect = false
  #closing: Promise<void> | undefined

  constructor(collection: MongodbCollection, settings: Settings<Session>) {
    this.#collection = collection
    this.#settings = settings
    this.#records = new Records(collection, settings)
    this.#waiters = new Waiters({
      look: (ids) => this.#bounded(() => this.#records.running(ids)),
      watch: () => collection.watch([...CHANGES], {}),
    })
  }

  claim(request: ClaimRequest): Promise<Claim> {
    return this.#accept(() => {
      assertClaimTimes(request)
      return this.#call(() => this.#records.claim(request))
    })
  }

  settle(id: string, token: string, settlement: Settlement): Promise<boolean> {
    return this.#accept(async () => {
      assertSettlement(settlement)
      return this.#woken(id, await this.#call(() => this.#records.settle(id, token, settlement)))
    })
  }

  release(id: string, token: string): Promise<boolean> {
    return this.#accept(async () => this.#woken(id, await this.#call(() => this.#records.release(id, token))))
  }

  renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#accept(async () => {
      assertDuration('leaseMs', leaseMs)
      const isRenewed = await this.#call(() => this.#records.renew(id, token, leaseMs))
      return this.#woken(id, isRenewed, leaseMs === 0)
    })
  }

  read(id: string): Promise<StoredRecord | undefined> {
    return this.#accept(() => this.#call(() => this.#records.read(id)))
  }

  list(query: ListQuery = {}): Promise<readonly StoredRecord[]> {
    return this.#accept(() => this.#call(() => this.#records.list({ limit: LIST_LIMIT_DEFAULT, ...query })))
  }

  forget(id: string): Promise<boolean> {
    return this.#accept(async () => this.#woken(id, await this.#call(() => this.#records.forget(id))))
  }

  redact(id: string): Promise<boolean> {
    return this.#accept(() => this.#call(() => this.#records.redact(id)))
  }

  sweep(limit: number = SWEEP_LIMIT_DEFAULT): Promise<number> {
    return this.#accept(() => this.#call(() => this.#records.sweep(limit)))
  }

  async waitFor(id: string, signal: AbortSignal): Promise<void> {
    this.#assertOpen()
    await this.#waiters.wait(id, signal)
  }

  transaction(
    request: ClaimRequest,
    work: (tx: Session, attempt: number) => Promise<Settlement | undefined>,
  ): Promise<TransactionEnd> {
    const { client, writeConcern, transactionWaitMsMax } = this.#settings
    return this.#accept(async () => {
      assertClaimTimes(request)
      if (client === undefined) {
        throw new OncekeyError(
          'config-invalid',
          'mongodbStore was made without client, and a transaction needs a session of it. Pass { client } with the ' +
            'MongoClient that the collection belongs to.',
        )
      }
      await this.#prepare()
      const call = <T>(verb: () => Promise<T>) => this.#bounded(verb)
      const settings = { call, writeConcern, waitMsMax: transactionWaitMsMax }
      const end = await transact(client, this.#records, request, settings, async (tx, attempt) => {
        const settlement = await work(tx, attempt)
        if (settlement !== undefined) assertSettlement(settlement)
        return settlement
      })
      if (end.state === 'committed') this.#waiters.wake(request.id)
      return end
    })
  }

  close(): Promise<void> {
    this.#closing ??= this.#finish()
    this.#waiters.wakeAll()
    return this.#closing
  }

  async #finish(): Promise<void> {
    await this.#accepted.idle()
    // A server that cannot be told that its stream is closed finds out by itself.
    await this.#bounded(() => this.#waiters.close()).catch(() => {})
  }

  async #call<T>(verb: () => Promise<T>): Promise<T> {
    await this.#prepare()
    return this.#bounded(verb)
  }

  /** Tried again by the next call when it failed: a server that comes later is as good. */
  #prepare(): Promise<void> {
    if (this.#prepared !== undefined) return this.#prepared
    const { client, migrate = true, unique = [] } = this.#settings
    const prepared = this.#bounded(async () => {
      if (this.#mustConnect) await client?.connect()
      await prepare(this.#collection, this.#records.writing(), migrate ? [...INDEXES, ...uniqueIndex(unique)] : [])
    })
    this.#prepared = prepared
    prepared.catch((error: unknown) => {
      this.#prepared = undefined
      // One that its owner has closed is left closed.
      this.#mustConnect = !isClientClosed(error)
    })
    return prepared
  }

  /** The driver by itself would wait for a server that hangs for ever. */
  async #bounded<T>(verb: () => Promise<T>): Promise<T> {
    const { callMsMax } = this.#settings
    let cancel = (): void => {}
    const late = new Promise<never>((_, reject) => {
      cancel = systemClock.schedule(callMsMax + REPLY_MS, () => reject(noReply(callMsMax)))
    })
    try {
      return await Promise.race([verb(), late])
    } catch (error) {
      throw toOncekeyError(error)
    } finally {
      cancel()
    }
  }

  #woken(id: string, isChanged: boolean, isEnded = true): boolean {
    if (isChanged && isEnded) this.#waiters.wake(id)
    return isChanged
  }

  async #accept<T>(verb: () => Promise<T>): Promise<T> {
    this.#assertOpen()
    return this.#accepted.during(verb())
  }

  #assertOpen(): void {
    if (this.#closing === undefined) return
    throw new OncekeyError('store-closed', 'This MongoDB store was closed. Its records are kept; open another.')
  }
}

/** The server is told to give up after `callMsMax`; its word for it is better than ours, and may come a little later. */
const REPLY_MS = 250

function assertSettlement(settlement: Settlement): void {
  assertSettlementTimes(settlement)
  assertFits(settlement.answer)
}
