import type { ErrorCode } from '../../error.ts'
import type { Fault } from './wire.ts'

/** SQLite's primary result codes that mean something of their own to the user. */
const [BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, TOOBIG, CONSTRAINT, MISMATCH, RANGE, NOTADB] = [
  5, 6, 8, 10, 11, 13, 14, 18, 19, 20, 25, 26,
]
/** Codes that concern one statement and leave its transaction whole. */
const OF_ONE_STATEMENT = [TOOBIG, CONSTRAINT, MISMATCH, RANGE]

const TEXTS: Readonly<Record<number, readonly [code: ErrorCode, text: string]>> = {
  [BUSY]: [
    'store-unavailable',
    'is locked by another process, and stayed so for the whole time allowed. Look for a program that holds a ' +
      'transaction open on it (a database shell, a backup).',
  ],
  [LOCKED]: ['store-unavailable', 'is locked within this process by another statement.'],
  [READONLY]: [
    'store-unavailable',
    'cannot be written: the file, its directory or the file system is read-only for this user. Give write permission ' +
      'to the file and to its directory; SQLite keeps two more files beside it.',
  ],
  [IOERR]: ['store-unavailable', 'could not be read or written: the disk or the file system reported an error.'],
  [CORRUPT]: [
    'store-unavailable',
    'is damaged. Stop all writers, keep a copy, and restore a backup or rescue it with the `.recover` command of the ' +
      'sqlite3 shell.',
  ],
  [FULL]: ['store-unavailable', 'could not grow: the disk is full. Free some space; no restart is needed.'],
  [CANTOPEN]: [
    'store-unavailable',
    'could not be opened: its directory is missing, it is a directory itself, or this user has no permission. ' +
      'The directory must exist; the file is made when it is absent.',
  ],
  [TOOBIG]: ['body-too-large', 'cannot hold a value of this size.'],
  [NOTADB]: ['store-incompatible', 'is not a SQLite database. It was left as it is; give another path.'],
}

/** Thrown where the text is already known. */
export class SqliteFault extends Error {
  readonly fault: ErrorCode

  constructor(fault: ErrorCode, message: string) {
    super(message)
    this.fault = fault
  }
}

export function faultOf(error: unknown, path: string): Fault {
  if (error instanceof SqliteFault) return { fault: error.fault, message: error.message, cause: error.cause }
  const isOfOne = isOfOneOperation(error)
  const [fault, text] = TEXTS[primaryCode(error)] ?? [
    isOfOne ? ('config-invalid' as const) : ('store-unavailable' as const),
    isOfOne ? `cannot hold a value of this operation: ${messageOf(error)}.` : `failed: ${messageOf(error)}.`,
  ]
  return { fault, message: `The SQLite database ${path} ${text} ${recorded(error)}`, cause: error }
}

function recorded(error: unknown): string {
  if (isOfOneOperation(error)) return 'Nothing of this operation was recorded.'
  if (primaryCode(error) !== IOERR) return 'Nothing of this operation or of its batch was recorded.'
  return 'Whether this operation was recorded is not certain; asking again with the same token tells.'
}

export function isBusy(error: unknown): boolean {
  return [BUSY, LOCKED].includes(primaryCode(error))
}

/** Whether the operation alone is at fault, so that its batch mates go on: the transaction is whole. */
export function isOfOneOperation(error: unknown): boolean {
  const code = primaryCode(error)
  return code === 0 || OF_ONE_STATEMENT.includes(code)
}

/** Whether the open handle is still good. If not it is closed, and the next batch opens the file anew. */
export function isHandleGood(error: unknown): boolean {
  return isOfOneOperation(error) || [BUSY, LOCKED, FULL].includes(primaryCode(error))
}

/** 0 for what did not come from SQLite itself, such as a value that cannot be bound. */
function primaryCode(error: unknown): number {
  const code = error instanceof Error && 'errcode' in error ? error.errcode : 0
  return typeof code === 'number' ? code & 0xff : 0
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
