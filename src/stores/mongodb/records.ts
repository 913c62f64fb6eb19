import { OncekeyError } from '../../error.ts'
import type { Claim, ClaimRequest, ListQuery, Settlement, StoredRecord } from '../../store.ts'
import type { MongodbCollection, MongodbSession, MongodbWriteConcern } from './client.ts'
import {
  fieldsOf,
  isGone,
  isRunning,
  labelsOf,
  PROJECTION,
  type RecordFields,
  recordOf,
  type SeenDocument,
  stateOf,
} from './document.ts'
import { isLostRace } from './faults.ts'

/** How long a duration may be, so that no sum of two and the date leaves the range of dates: some 3,000 years. */
const DURATION_MS_MAX = 1e14
/** Each lost race means that somebody else has made the record, which the next try finds. */
const TRIES_MAX = 20

const IS_GONE = { $lte: ['$goneAt', '$$NOW'] }
const IS_HERE = { $gt: ['$goneAt', '$$NOW'] }
const IS_NEW = { $or: [{ $eq: [{ $type: '$goneAt' }, 'missing'] }, IS_GONE] }
const IS_PENDING = { $eq: [{ $type: '$outcome' }, 'missing'] }
const IS_LEASED = { $gt: ['$leaseUntil', '$$NOW'] }
const IS_FRESH = { $gt: ['$expiresAt', '$$NOW'] }
const UNKNOWN_TTL_MS = { $subtract: ['$goneAt', '$leaseUntil'] }

const STATES: Readonly<Record<StoredRecord['state'], object>> = {
  running: { $and: [IS_PENDING, IS_LEASED] },
  unknown: { $and: [IS_PENDING, { $not: [IS_LEASED] }] },
  settled: { $and: [{ $not: [IS_PENDING] }, IS_FRESH] },
  expired: { $and: [{ $not: [IS_PENDING] }, { $not: [IS_FRESH] }] },
}

/** Decided inside the server, by its clock: a new record, a takeover, or the record as it is. */
function claimPipeline(request: ClaimRequest, fields: RecordFields): object[] {
  const { id, token, fingerprint, takeover, labels } = request
  const leaseMs = wholeMs(request.leaseMs)
  const lease = {
    leaseUntil: { $add: ['$$NOW', leaseMs] },
    goneAt: { $add: ['$$NOW', leaseMs + wholeMs(request.unknownTtlMs)] },
  }
  const owner = { $literal: token }
  const isOther = { $ne: ['$token', owner] }
  const isSameRequest = { $eq: ['$fingerprint', { $literal: fingerprint }] }
  const first = {
    _id: { $literal: id },
    token: owner,
    fingerprint: { $literal: fingerprint },
    attempt: { $literal: 1 },
    createdAt: '$$NOW',
    ...lease,
    labels: { $literal: labelsOf(labels) },
    ...fieldsOf(request, fields),
  }
  const taken = { $mergeObjects: ['$$ROOT', { token: owner, attempt: { $add: ['$attempt', 1] }, ...lease }] }
  const mayTake = { $and: [takeover, IS_PENDING, { $not: [IS_LEASED] }, isSameRequest, isOther] }
  return [{ $replaceWith: { $cond: [IS_NEW, first, { $cond: [mayTake, taken, '$$ROOT'] }] } }]
}

/** What is settled already stays as it is: the same settle asked again is answered as before. */
function settlePipeline({ outcome, answer, ttlMs, expiredTtlMs }: Settlement): object[] {
  const expiresAt = { $add: ['$$NOW', wholeMs(ttlMs)] }
  const settled = {
    outcome: { $literal: outcome },
    status: { $literal: answer.status },
    headers: { $literal: answer.headers.map(([name, value]) => [name, value]) },
    body: { $literal: answer.body === null ? null : Buffer.from(answer.body) },
    expiresAt,
    goneAt: { $add: ['$$NOW', wholeMs(ttlMs) + wholeMs(expiredTtlMs)] },
    ...(expiredTtlMs > 0 ? { stripAt: expiresAt } : {}),
  }
  const next = { $mergeObjects: ['$$ROOT', settled] }
  return [{ $replaceWith: { $cond: [IS_PENDING, next, '$$ROOT'] } }]
}

function leasePipeline(leaseMs: number): object[] {
  const leaseUntil = { $add: ['$$NOW', wholeMs(leaseMs)] }
  return [{ $set: { leaseUntil, goneAt: { $add: [leaseUntil, UNKNOWN_TTL_MS] } } }]
}

export interface RecordSettings {
  readonly writeConcern: MongodbWriteConcern
  readonly callMsMax: number
  readonly fields?: RecordFields
}

/** The verbs as commands, one round trip each unless it says otherwise. Nothing here reads any clock but the server's. */
export class Records {
  readonly #collection: MongodbCollection
  readonly #settings: RecordSettings

  constructor(collection: MongodbCollection, settings: RecordSettings) {
    this.#collection = collection
    this.#settings = settings
  }

  async claim(request: ClaimRequest, session?: MongodbSession): Promise<Claim> {
    const update = claimPipeline(request, this.#settings.fields ?? {})
    const options = { upsert: true, returnDocument: 'after', projection: PROJECTION, includeResultMetadata: true }
    for (let tries = 1; ; tries++) {
      try {
        const result = await this.#collection.findOneAndUpdate({ _id: request.id }, update, {
          ...this.writing(session),
          ...options,
        })
        const seen = verified((result as { value: unknown }).value, request.id)
        const isOwner = seen.outcome === undefined && seen.token === request.token
        return isOwner ? { state: 'acquired', attempt: seen.attempt } : stateOf(seen)
      } catch (error) {
        if (session !== undefined || !isLostRace(error) || tries === TRIES_MAX) throw error
      }
    }
  }

  async settle(id: string, token: string, settlement: Settlement, session?: MongodbSession): Promise<boolean> {
    // What this very transaction has claimed cannot be gone for it, however long its work took.
    const filter = session === undefined ? { _id: id, token, $expr: IS_HERE } : { _id: id, token }
    return this.#update(filter, settlePipeline(settlement), session)
  }

  /** A token's attempt never changes, so that only one of the two can fit: the second round trip is for takeovers. */
  async release(id: string, token: string): Promise<boolean> {
    const own = { _id: id, token, outcome: { $exists: false }, $expr: IS_HERE }
    const { deletedCount } = await this.#collection.deleteOne({ ...own, attempt: 1 }, this.writing())
    return deletedCount > 0 || this.#update({ ...own, attempt: { $gt: 1 } }, leasePipeline(0))
  }

  renew(id: string, token: string, leaseMs: number): Promise<boolean> {
    return this.#update({ _id: id, token, outcome: { $exists: false }, $expr: IS_HERE }, leasePipeline(leaseMs))
  }

  /** One that is gone is removed on sight, which costs a second round trip. */
  async read(id: string): Promise<StoredRecord | undefined> {
    const [found] = await this.#find({ _id: id }, { limit: 1 })
    if (found === undefined) return undefined
    const seen = verified(found, id)
    if (!isGone(seen)) return recordOf(seen)
    await this.#collection.deleteOne({ _id: id, token: seen.token, $expr: IS_GONE }, this.writing())
    return undefined
  }

  async list({ after, limit, state }: ListQuery): Promise<StoredRecord[]> {
    const condition = state === undefined ? IS_HERE : { $and: [IS_HERE, STATES[state]] }
    const page = after === undefined ? {} : { _id: { $gt: after } }
    const found = await this.#find(
      { ...page, goneAt: { $exists: true }, $expr: condition },
      { sort: { _id: 1 }, limit },
    )
    return found.map(recordOf)
  }

  async forget(id: string): Promise<boolean> {
    const { deletedCount } = await this.#collection.deleteOne({ _id: id, $expr: IS_HERE }, this.writing())
    return deletedCount > 0
  }

  /** Once more with the same reply, when it was lost. A stripped record stays stripped. */
  async redact(id: string): Promise<boolean> {
    const headers = { $cond: [{ $eq: [{ $type: '$headers' }, 'missing'] }, '$$REMOVE', []] }
    const fields = Object.keys(this.#settings.fields ?? {}).map((field) => [field, '$$REMOVE'])
    const redacted = { ...Object.fromEntries(fields), labels: { $literal: {} }, headers, body: null }
    const filter = { _id: id, outcome: { $exists: true }, $expr: IS_HERE }
    return this.#update(filter, [{ $set: redacted }])
  }

  /** In steps by index; two or four round trips. */
  async sweep(limit: number): Promise<number> {
    const isDue = (field: string) => ({ [field]: { $type: 'date' }, $expr: { $lte: [`$${field}`, '$$NOW'] } })
    const idsOf = async (field: string): Promise<string[]> => {
      const due = await this.#find(isDue(field), { sort: { [field]: 1 }, limit, projection: { _id: 1 } })
      return due.map(({ _id }) => _id)
    }
    const stripped = await idsOf('stripAt')
    if (stripped.length > 0) {
      const fields = { $unset: { body: '', headers: '', stripAt: '' } }
      await this.#collection.updateMany({ _id: { $in: stripped }, ...isDue('stripAt') }, fields, this.writing())
    }
    const gone = await idsOf('goneAt')
    if (gone.length === 0) return 0
    const filter = { _id: { $in: gone }, ...isDue('goneAt') }
    return (await this.#collection.deleteMany(filter, this.writing())).deletedCount
  }

  /** Which of these are running, and for how many more ms. */
  async running(ids: readonly string[]): Promise<Map<string, number>> {
    const projection = { _id: 1, outcome: 1, leaseUntil: 1, now: '$$NOW' }
    const found = await this.#find({ _id: { $in: ids } }, { projection })
    const running = found.filter(isRunning)
    return new Map(running.map(({ _id, leaseUntil, now }) => [_id, Number(leaseUntil) - Number(now)]))
  }

  /** Inside a transaction it is the transaction that has the write concern. */
  writing(session?: MongodbSession): object {
    const { writeConcern, callMsMax } = this.#settings
    const shared = { ...READABLE, maxTimeMS: callMsMax }
    return session === undefined ? { ...shared, writeConcern } : { ...shared, session }
  }

  async #update(filter: object, update: object[], session?: MongodbSession): Promise<boolean> {
    return (await this.#collection.updateOne(filter, update, this.writing(session))).matchedCount > 0
  }

  async #find(filter: object, options: object): Promise<SeenDocument[]> {
    const { writeConcern, callMsMax } = this.#settings
    // What a weaker write has acknowledged is perhaps not on a majority, and must be seen all the same.
    const level = writeConcern.w === 'majority' ? 'majority' : 'local'
    const reading = { ...READABLE, readPreference: 'primary', readConcern: { level }, maxTimeMS: callMsMax }
    const cursor = this.#collection.find(filter, { projection: PROJECTION, ...reading, ...options })
    return (await cursor.toArray()) as SeenDocument[]
  }
}

/** Whatever the caller's collection is set to, documents come back in the form that `document.ts` reads. */
const READABLE = { promoteBuffers: true, promoteValues: true, promoteLongs: true, useBigInt64: false, raw: false }

function verified(value: unknown, id: string): SeenDocument {
  const seen = value as SeenDocument | null
  if (seen?._id === id && seen.goneAt instanceof Date && seen.now instanceof Date) return seen
  throw new OncekeyError(
    'store-incompatible',
    `Asked for the record ${id}, MongoDB gave something that is not that record. Nothing was recorded. Does the collection ` +
      'have a collation, or belong to somebody else? Give oncekey one of its own.',
  )
}

function wholeMs(durationMs: number): number {
  return Math.min(Math.ceil(durationMs), DURATION_MS_MAX)
}
