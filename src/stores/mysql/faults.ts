import type { ErrorCode } from '../../error.ts'
import { OncekeyError } from '../../error.ts'

export const DEADLOCK = 1213
export const LOCK_TIMEOUT = 1205
export const NO_SUCH_TABLE = 1146
export const NO_SUCH_SAVEPOINT = 1305
const PACKET_TOO_LARGE = 1153

const READ_ONLY = 'is read-only here: a replica, or read_only is on. Connect the pool to the primary.'
const RIGHTS =
  'does not give this user the rights it needs. Grant SELECT, INSERT, UPDATE and DELETE on the table; to make it, run ' +
  'the migration once as a user who may create tables.'
const CONNECTIONS =
  'takes no more connections. Lower the sizes of the pools, or raise max_connections or the limit of this user.'
const NO_SPACE = 'has no space left for this table. Free some; no restart of this process is needed.'
const TIMEOUT =
  'interrupted the statement: its time limit passed, or somebody killed it. A limit of less than a second is too short ' +
  'for a durable write on a busy server.'

/** What the server's error number means for the user, where it means something of its own. */
const TEXTS: Readonly<Record<number, readonly [code: ErrorCode, text: string]>> = {
  1045: ['store-unavailable', 'refused the password. Correct the credentials of the pool.'],
  1044: ['store-unavailable', 'does not let this user into the database. Check user, database and grants.'],
  1049: ['store-unavailable', 'has no database of this name. Create it, or correct the name in the pool.'],
  1046: ['store-unavailable', 'was given no database. Name one in the pool, or in the option "table".'],
  [NO_SUCH_TABLE]: [
    'store-unavailable',
    'has no such table (any more). Records of a table that was dropped are lost: operations answered before can run ' +
      'again. The next operation makes the table anew, unless migrate is false.',
  ],
  1054: ['store-incompatible', 'has this table with other columns: it was changed by hand. Restore its columns.'],
  1142: ['store-unavailable', RIGHTS],
  1143: ['store-unavailable', RIGHTS],
  1290: ['store-unavailable', READ_ONLY],
  1792: ['store-unavailable', READ_ONLY],
  1836: ['store-unavailable', READ_ONLY],
  1040: ['store-unavailable', CONNECTIONS],
  1203: ['store-unavailable', CONNECTIONS],
  1226: ['store-unavailable', CONNECTIONS],
  1129: ['store-unavailable', 'has blocked this host after many failed connections. Run FLUSH HOSTS there.'],
  1130: ['store-unavailable', 'does not let this host in. Check the host part of the user.'],
  1021: ['store-full', NO_SPACE],
  1114: ['store-full', NO_SPACE],
  1041: ['store-unavailable', 'is out of memory.'],
  1053: ['store-unavailable', 'is shutting down.'],
  1317: ['store-unavailable', TIMEOUT],
  1969: ['store-unavailable', TIMEOUT],
  3024: ['store-unavailable', TIMEOUT],
  [LOCK_TIMEOUT]: ['store-unavailable', 'made this operation wait too long for a row that another transaction holds.'],
  [DEADLOCK]: ['store-unavailable', 'broke up a deadlock with other sessions, several times in a row.'],
  [PACKET_TOO_LARGE]: [
    'body-too-large',
    'takes no statement of this size: max_allowed_packet was lowered since this store was opened. Raise it again, or ' +
      'keep large results elsewhere.',
  ],
}

/**
 * Nothing was changed, and the same again may succeed. 1020: somebody changed the row since this transaction's snapshot.
 * 3101: another member of the cluster was faster.
 */
const RECOVERABLE = [DEADLOCK, 1020, 3101]
/** The server says it, and then ends the connection. */
const FATAL = [1053, 1153, 1158, 1159, 1160, 1161, 1927, 4031]

/** `sent`: whether the server may have carried it out. */
export function toOncekeyError(error: unknown, sent: boolean): OncekeyError {
  if (error instanceof OncekeyError) return error
  const number = errorNumber(error)
  const known = TEXTS[number]
  if (known !== undefined) {
    return new OncekeyError(known[0], `MySQL ${known[1]} Nothing was recorded.`, { cause: error })
  }
  if (isOfOneOperation(error)) {
    const text = `MySQL cannot hold a value of this operation: ${messageOf(error)}. Nothing of it was recorded.`
    return new OncekeyError('config-invalid', text, { cause: error })
  }
  if (number !== 0) {
    const text = `MySQL refused the statement: ${messageOf(error)} (error ${number}). Nothing was recorded.`
    return new OncekeyError('store-unavailable', text, { cause: error })
  }
  const text = sent
    ? `The connection to MySQL failed before its reply came: ${messageOf(error)}. Whether this operation was recorded ` +
      'is not certain; asking again with the same token tells.'
    : `MySQL cannot be reached: ${messageOf(error)}. Nothing was recorded. Check that it runs and that the pool's host ` +
      'and port are right; no restart of this process is needed.'
  return new OncekeyError('store-unavailable', text, { cause: error })
}

export function isRecoverable(error: unknown): boolean {
  return RECOVERABLE.includes(errorNumber(error))
}

/** Whether one operation alone is at fault, so that its batch mates can go on without it. */
export function isOfOneOperation(error: unknown): boolean {
  return errorNumber(error) !== 0 && sqlStateOf(error).startsWith('22')
}

/** Whether the session can go on: the server itself has answered, and did not end the connection with it. */
export function isSessionGood(error: unknown): boolean {
  const number = errorNumber(error)
  return number !== 0 && !FATAL.includes(number)
}

/** 0 for what did not come from the server. */
export function errorNumber(error: unknown): number {
  if (error instanceof OncekeyError) return errorNumber(error.cause)
  if (!(error instanceof Error) || !('errno' in error) || sqlStateOf(error) === '') return 0
  return typeof error.errno === 'number' && error.errno > 0 ? error.errno : 0
}

function sqlStateOf(error: unknown): string {
  return error instanceof Error && 'sqlState' in error && typeof error.sqlState === 'string' ? error.sqlState : ''
}

function messageOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === '') return error.errors.map(messageOf).join('; ')
  return error instanceof Error ? error.message || error.name : String(error)
}
