import { OncekeyError } from '../../error.ts'
import { contested, heldByTransaction } from '../../sql/operations.ts'
import type { TransactionSettings, TransactionSteps } from '../../sql/transaction.ts'
import { CLAIMS_MAX } from '../../sql/transaction.ts'
import type { Claim, ClaimRequest, Settlement } from '../../store.ts'
import { isRecoverable, isSessionGood, LOCK_TIMEOUT, sqlState, toOncekeyError } from './faults.ts'
import type { Records } from './records.ts'
import type { PostgresClient, Session } from './sessions.ts'

const LOCK_TIMEOUT_NOW = "SELECT current_setting('lock_timeout')"
const SET_LOCK_TIMEOUT = "SELECT set_config('lock_timeout', $1, true)"

export function transactionOn<Client extends PostgresClient>(
  session: Session<Client>,
  records: Records,
  request: ClaimRequest,
  settings: TransactionSettings,
): TransactionSteps<Client> {
  return {
    tx: session.client,
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
  for (let claims = 0; claims < CLAIMS_MAX; claims++) {
    try {
      await session.send(isolation === undefined ? 'BEGIN' : `BEGIN ISOLATION LEVEL ${isolation.toUpperCase()}`)
      const [[lockTimeout] = []] = await session.send(LOCK_TIMEOUT_NOW)
      const [claim] = await records.claimOnce(session, [request], waitMsMax, true)
      if (claim?.state === 'acquired') {
        // The user's own statements wait for as long as the user has set.
        await session.send(SET_LOCK_TIMEOUT, [lockTimeout ?? '0'])
        return claim
      }
      await session.rollBack()
      // Otherwise somebody has committed the record since the statement began to look: a new snapshot shows it.
      if (claim !== undefined) return claim
    } catch (error) {
      await session.rollBack()
      if (sqlState(error) === LOCK_TIMEOUT) return heldByTransaction(request)
      if (!isRecoverable(error)) throw toOncekeyError(error, false)
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
  let isSettled: boolean | undefined
  try {
    const op = { verb: 'settle', id, token, settlement } as const
    ;[isSettled] = await records.settleOnce(session, [op], 'own-transaction')
  } catch (error) {
    await session.rollBack()
    if (sqlState(error) !== FAILED_TRANSACTION) throw toOncekeyError(error, false)
    throw new OncekeyError(
      'config-invalid',
      'A statement failed inside the transaction, and work returned an answer all the same. Everything was rolled ' +
        'back. Let the error be thrown on, or run the statement inside a savepoint.',
      { cause: error },
    )
  }
  if (isSettled) return
  await session.rollBack()
  throw new OncekeyError(
    'config-invalid',
    'work has ended the transaction by itself (COMMIT or ROLLBACK): what it did is not tied to the record. Leave the ' +
      'end of the transaction to oncekey.',
  )
}

const FAILED_TRANSACTION = '25P02'

async function commit(session: Session): Promise<void> {
  try {
    await session.send('COMMIT')
  } catch (error) {
    session.isGood = false
    if (isRecoverable(error)) throw toOncekeyError(error, false)
    // The server refused: a deferred constraint of the user's own. Nothing was committed.
    if (isSessionGood(error)) throw error
    throw new OncekeyError(
      'store-unavailable',
      'The connection to PostgreSQL failed before the reply to COMMIT came. Either all of it took place or nothing; ' +
        'asking again with the same key tells.',
      { cause: error },
    )
  }
}
