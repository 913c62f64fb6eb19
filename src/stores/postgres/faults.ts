import type { ErrorCode } from '../../error.ts'
import { OncekeyError } from '../../error.ts'

/** What PostgreSQL's SQLSTATE means for the user, where it means something of its own. */
const TEXTS: Readonly<Record<string, readonly [code: ErrorCode, text: string]>> = {
  '28P01': ['store-unavailable', 'refused the password. Correct the credentials of the pool.'],
  '28000': ['store-unavailable', 'refused this user. Check user, database and pg_hba.conf.'],
  '3D000': ['store-unavailable', 'has no database of this name. Create it, or correct the name in the pool.'],
  '3F000': ['store-unavailable', 'has no schema of this name. Create it, or correct the option "table".'],
  '25006': [
    'store-unavailable',
    'is read-only here: a standby, or default_transaction_read_only is on. Connect the pool to the primary.',
  ],
  '42P01': [
    'store-unavailable',
    'has no such table (any more). Records of a table that was dropped are lost: operations answered before can run ' +
      'again. The next operation makes the table anew, unless migrate is false.',
  ],
  '42703': ['store-incompatible', 'has this table with other columns: it was changed by hand. Restore its columns.'],
  '42501': [
    'store-unavailable',
    'does not give this user the rights it needs. Grant SELECT, INSERT, UPDATE and DELETE on the table; to make it, ' +
      'run the migration once as a user who may create tables.',
  ],
  '53100': ['store-unavailable', 'has no space left on its disk. Free some; no restart of this process is needed.'],
  '53200': ['store-unavailable', 'is out of memory.'],
  '53300': [
    'store-unavailable',
    'takes no more connections. Lower the sizes of the pools, raise max_connections, or put PgBouncer in between.',
  ],
  '55P03': ['store-unavailable', 'made this operation wait too long for a lock that another session holds.'],
  '57014': [
    'store-unavailable',
    'cancelled the statement: statement_timeout passed, or somebody cancelled it. A timeout of less than a second is ' +
      'too short for a durable write on a busy server.',
  ],
  '57P01': ['store-unavailable', 'is shutting down.'],
  '57P02': ['store-unavailable', 'crashed and recovers.'],
  '57P03': ['store-unavailable', 'is starting up or recovering, and takes no connections yet.'],
  '40001': ['store-unavailable', 'found too many concurrent changes of the same records.'],
  '40P01': ['store-unavailable', 'broke up a deadlock with other sessions, several times in a row.'],
}

const RECOVERABLE = ['40001', '40P01']
/** Data exceptions, constraint violations and exceeded limits: one value is at fault, not the server. */
const OF_ONE_OPERATION = ['22', '23', '54']
export const LOCK_TIMEOUT = '55P03'
export const UNDEFINED_TABLE = '42P01'
/** A prepared statement that is not there, or that somebody else has made: a proxy has changed the connection. */
const FOREIGN_STATEMENT = ['26000', '42P05']

const UNCERTAIN = 'Whether this operation was recorded is not certain; asking again with the same token tells.'

/** `sent`: whether the server may have carried it out. */
export function toOncekeyError(error: unknown, sent: boolean): OncekeyError {
  if (error instanceof OncekeyError) return error
  const state = sqlState(error)
  const known = TEXTS[state]
  if (known !== undefined) {
    const recorded = sent && !isSessionGood(error) ? UNCERTAIN : 'Nothing was recorded.'
    return new OncekeyError(known[0], `PostgreSQL ${known[1]} ${recorded}`, { cause: error })
  }
  if (isOfOneOperation(error)) {
    const text = `PostgreSQL cannot hold a value of this operation: ${messageOf(error)}. Nothing of it was recorded.`
    return new OncekeyError('config-invalid', text, { cause: error })
  }
  if (state !== '') {
    const text = `PostgreSQL refused the statement: ${messageOf(error)} (SQLSTATE ${state}). Nothing was recorded.`
    return new OncekeyError('store-unavailable', text, { cause: error })
  }
  const text = sent
    ? `The connection to PostgreSQL failed before its reply came: ${messageOf(error)}. ${UNCERTAIN}`
    : `PostgreSQL cannot be reached: ${messageOf(error)}. Nothing was recorded. Check that it runs and that the pool's ` +
      'host and port are right; no restart of this process is needed.'
  return new OncekeyError('store-unavailable', text, { cause: error })
}

/** The transaction was rolled back whole, and the same again may well succeed. */
export function isRecoverable(error: unknown): boolean {
  return RECOVERABLE.includes(sqlState(error))
}

/** Whether one operation alone is at fault, so that its batch mates can go on without it. */
export function isOfOneOperation(error: unknown): boolean {
  return OF_ONE_OPERATION.includes(sqlState(error).slice(0, 2))
}

export function isForeignStatement(error: unknown): boolean {
  return FOREIGN_STATEMENT.includes(sqlState(error))
}

/** Whether the session can go on: the server itself has answered, and did not end the connection with it. */
export function isSessionGood(error: unknown): boolean {
  const state = sqlState(error)
  return state !== '' && !state.startsWith('57P') && !state.startsWith('08')
}

/** Empty for what did not come from the server. */
export function sqlState(error: unknown): string {
  if (error instanceof OncekeyError) return sqlState(error.cause)
  if (!(error instanceof Error) || !('code' in error) || !('severity' in error)) return ''
  return typeof error.code === 'string' ? error.code : ''
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return error.errors.map(messageOf).join('; ')
  return error instanceof Error ? error.message || error.name : String(error)
}
