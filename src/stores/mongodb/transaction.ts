import { systemClock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import type { Claim, ClaimRequest, Settlement, TransactionEnd } from '../../store.ts'
import type { MongodbClient, MongodbSession, MongodbWriteConcern } from './client.ts'
import { codeOf, hasLabel, isLostRace } from './faults.ts'
import type { Records } from './records.ts'

export interface TransactionSettings {
  /** Bounds a call, and says in our words how it failed. */
  readonly call: <T>(verb: () => Promise<T>) => Promise<T>
  readonly writeConcern: MongodbWriteConcern
  /** How long a duplicate waits for the end of the first one's transaction. */
  readonly waitMsMax: number
}

/** MongoDB does not let a transaction wait for another: the duplicate tries again, at first soon, then at this pace. */
const RETRY_MS_MIN = 2
const RETRY_MS_MAX = 50
const COMMITS_MAX = 5

/** Claims, works and settles in one transaction of a session of its own. */
export async function transact<Session extends MongodbSession>(
  client: MongodbClient<Session>,
  records: Records,
  request: ClaimRequest,
  settings: TransactionSettings,
  work: (tx: Session, attempt: number) => Promise<Settlement | undefined>,
): Promise<TransactionEnd> {
  const { call } = settings
  const session = client.startSession()
  try {
    const claim = await claimInside(session, records, request, settings)
    if (claim.state !== 'acquired') {
      // Nothing was written, but only with the commit is it certain that what was read is on a majority.
      if (session.inTransaction()) await commit(session, call)
      return claim
    }
    const settlement = await work(session, claim.attempt)
    if (settlement === undefined) return { state: 'rolled-back' }
    await settleInside(session, call, () => records.settle(request.id, request.token, settlement, session))
    await commit(session, call)
    return { state: 'committed' }
  } finally {
    await abort(session, call)
    await call(() => session.endSession()).catch(() => {})
  }
}

/** Leaves an open transaction. Nothing of the user's has run yet, so that it may be begun again and again. */
async function claimInside(
  session: MongodbSession,
  records: Records,
  request: ClaimRequest,
  { call, writeConcern, waitMsMax }: TransactionSettings,
): Promise<Claim> {
  const deadline = performance.now() + waitMsMax
  for (let retryMs = RETRY_MS_MIN; ; retryMs = Math.min(2 * retryMs, RETRY_MS_MAX)) {
    session.startTransaction({ readConcern: { level: 'snapshot' }, readPreference: 'primary', writeConcern })
    try {
      return await call(() => records.claim(request, session))
    } catch (error) {
      await abort(session, call)
      if (NO_TRANSACTIONS_CODES.includes(codeOf(error))) throw noTransactions(error)
      const isHeld = codeOf(error) === WRITE_CONFLICT || isLostRace(error)
      if (!isHeld && !isPassing(error)) throw error
      if (performance.now() >= deadline) {
        if (isHeld) return held(request)
        throw error
      }
    }
    await new Promise<void>((resolve) => systemClock.schedule(retryMs, resolve))
  }
}

/** The server itself says that the same again may well succeed: a failover, mostly. */
function isPassing(error: unknown): boolean {
  return codeOf(error) !== 0 && hasLabel(error, 'TransientTransactionError')
}

/** The other one has not committed, so nobody can see what it claimed; it is the same id at least. */
function held({ fingerprint, leaseMs }: ClaimRequest): Claim {
  return { state: 'running', fingerprint, leaseLeftMs: leaseMs }
}

async function settleInside(
  session: MongodbSession,
  call: TransactionSettings['call'],
  settle: () => Promise<boolean>,
): Promise<void> {
  let isSettled = false
  try {
    isSettled = session.inTransaction() && (await call(settle))
  } catch (error) {
    if (codeOf(error) !== NO_SUCH_TRANSACTION) throw error
    throw new OncekeyError(
      'store-unavailable',
      'MongoDB has ended the transaction before its commit: a command in it failed and work returned an answer all the ' +
        'same, or it took longer than transactionLifetimeLimitSeconds. Everything was rolled back.',
      { cause: error },
    )
  }
  if (isSettled) return
  throw new OncekeyError(
    'config-invalid',
    'work has ended the transaction by itself, or removed the record: what it did is not tied to the record. Leave the ' +
      'end of the transaction to oncekey.',
  )
}

async function commit(session: MongodbSession, call: TransactionSettings['call']): Promise<void> {
  for (let commits = 1; ; commits++) {
    try {
      await call(() => session.commitTransaction())
      return
    } catch (error) {
      // The commit is idempotent: asked again, it tells what came of it.
      if (hasLabel(error, 'UnknownTransactionCommitResult') && commits < COMMITS_MAX) continue
      throw new OncekeyError(
        'store-unavailable',
        hasLabel(error, 'TransientTransactionError')
          ? 'MongoDB refused the commit, mostly because of a conflict with another transaction. Nothing took place.'
          : 'The commit was not acknowledged. Either all of it took place or nothing; asking again with the same key tells.',
        { cause: error },
      )
    }
  }
}

/** What the server can no longer hear of it ends by itself. */
async function abort(session: MongodbSession, call: TransactionSettings['call']): Promise<void> {
  if (session.inTransaction()) await call(() => session.abortTransaction()).catch(() => {})
}

const WRITE_CONFLICT = 112
const NO_SUCH_TRANSACTION = 251
/** IllegalOperation, FailedToParse, NotImplemented: a standalone server, or one that only speaks the protocol. */
const NO_TRANSACTIONS_CODES: readonly number[] = [9, 20, 238]

function noTransactions(cause: unknown): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    'This MongoDB server has no transactions, for it is not a member of a replica set. Nothing was done. Start it with ' +
      '--replSet, one member is enough, or use the operation without a transaction.',
    { cause },
  )
}
