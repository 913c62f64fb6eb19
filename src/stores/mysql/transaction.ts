import { OncekeyError } from '../../error.ts'
import { contested, heldByTransaction } from '../../sql/operations.ts'
import type { Isolation, TransactionSettings, TransactionSteps } from '../../sql/transaction.ts'
import { CLAIMS_MAX } from '../../sql/transaction.ts'
import type { Claim, ClaimRequest, Settlement } from '../../store.ts'
import { errorNumber, isRecoverable, isSessionGood, LOCK_TIMEOUT, NO_SUCH_SAVEPOINT, toOncekeyError } from './faults.ts'
import type { Records } from './records.ts'
import type { MysqlConnection, Session } from './sessions.ts'

const setWait = (seconds: number): string =>
  `SET @oncekey_wait = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = ${seconds}`
/** The user's own statements wait for as long as the user has set. */
const RESTORE_WAIT = 'SET SESSION innodb_lock_wait_timeout = @oncekey_wait'

/** A savepoint ends with its transaction: whether it is still there tells whether this still is the same one. */
const MARK = 'SAVEPOINT oncekey_claim'
const CHECK_MARK = 'RELEASE SAVEPOINT oncekey_claim'

export function transactionOn<Connection extends MysqlConnection>(
  session: Session<Connection>,
  records: Records,
  request: ClaimRequest,
  settings: TransactionSettings,
): TransactionSteps<Connection> {
  return {
    tx: session.connection,
    claim: () => claimInside(session, records, request, settings),
    settle: (settlement) => settleInside(session, records, request, settlement),
    commit: () => commit(session),
    rollBack: () => session.rollBack(),
  }
}

async function claimInside(
  session: Session,
  records: Records,
  request: ClaimRequest,
  { isolation, waitMsMax }: TransactionSettings,
): Promise<Claim> {
  try {
    await session.write(setWait(Math.ceil(waitMsMax / 1_000)))
    session.lockMsMax = Math.ceil(waitMsMax / 1_000) * 1_000
    const claim = await claimOpen(session, records, request, isolation)
    session.lockMsMax = 0
    await session.write(RESTORE_WAIT)
    if (claim.state === 'acquired') await session.write(MARK)
    return claim
  } catch (error) {
    await session.rollBack()
    // It may still wait for as long as the claim was to.
    session.isGood = false
    throw toOncekeyError(error, false)
  }
}

async function claimOpen(
  session: Session,
  records: Records,
  request: ClaimRequest,
  isolation: Isolation | undefined,
): Promise<Claim> {
  for (let claims = 0; claims < CLAIMS_MAX; claims++) {
    try {
      if (isolation !== undefined) await session.write(`SET TRANSACTION ISOLATION LEVEL ${isolation.toUpperCase()}`)
      session.isInTransaction = true
      await session.write('START TRANSACTION')
      const [claim] = await records.claimOnce(session, [request], 'as-set')
      if (claim?.state === 'acquired') return claim
      await session.rollBack()
      // Otherwise the record has changed since the claim was decided: it is asked again.
      if (claim !== undefined) return claim
    } catch (error) {
      await session.rollBack()
      if (errorNumber(error) === LOCK_TIMEOUT) return heldByTransaction(request)
      if (!isRecoverable(error)) throw error
    }
  }
  throw contested()
}

async function settleInside(
  session: Session,
  records: Records,
  { id, token }: ClaimRequest,
  settlement: Settlement,
): Promise<void> {
  let isSettled = false
  try {
    await session.write(CHECK_MARK)
    isSettled = await records.settleOwn(session, { verb: 'settle', id, token, settlement })
  } catch (error) {
    await session.rollBack()
    if (errorNumber(error) !== NO_SUCH_SAVEPOINT) throw toOncekeyError(error, false)
  }
  if (isSettled) return
  await session.rollBack()
  throw new OncekeyError(
    'config-invalid',
    'The transaction had ended before work returned: by COMMIT or ROLLBACK, by a statement that changes tables (MySQL ' +
      'commits with it), or by a deadlock whose error work did not throw on. What work did is not tied to the record. ' +
      'Leave the end of the transaction to oncekey.',
  )
}

async function commit(session: Session): Promise<void> {
  try {
    await session.write('COMMIT')
    session.isInTransaction = false
  } catch (error) {
    session.isGood = false
    // The server refused, as a cluster does that cannot agree. Nothing was committed.
    if (isSessionGood(error)) throw toOncekeyError(error, false)
    throw new OncekeyError(
      'store-unavailable',
      'The connection to MySQL failed before the reply to COMMIT came. Either all of it took place or nothing; asking ' +
        'again with the same key tells.',
      { cause: error },
    )
  }
}
