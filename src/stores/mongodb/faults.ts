import { OncekeyError } from '../../error.ts'
import { tooLarge } from './document.ts'

const ASK_AGAIN = 'Whether it was recorded is not certain; asking again with the same token tells.'

/** By the server's own error codes. */
const TEXTS: Readonly<Record<number, readonly [code: OncekeyError['code'], text: string]>> = {
  13: [
    'store-unavailable',
    'does not allow this user to do that. Nothing was recorded. Grant the role readWrite on the database, or make the ' +
      'indexes yourself and set migrate to false.',
  ],
  18: [
    'store-unavailable',
    'refused the login. Nothing was recorded. Check user, password and authSource of the client.',
  ],
  26: ['store-unavailable', `does not find the collection. ${ASK_AGAIN}`],
  50: [
    'store-unavailable',
    `gave up after callMsMax: it is overloaded, or a transaction holds the record. ${ASK_AGAIN}`,
  ],
  64: [
    'store-unavailable',
    `has written it, but not on as many members as the write concern asks for: a failover may take it back. ${ASK_AGAIN}`,
  ],
  79: ['config-invalid', 'does not know the mode that writeConcern.w names. Use "majority" or a number of members.'],
  85: ['store-incompatible', indexText()],
  86: ['store-incompatible', indexText()],
  100: [
    'config-invalid',
    'has fewer members than writeConcern.w asks for, so that nothing can ever be acknowledged. Use "majority".',
  ],
  14031: [
    'store-full',
    'has no disk space left. Nothing was recorded. Free some; no restart of this process is needed.',
  ],
}

function indexText(): string {
  return (
    'has an index in this collection that stands where one of oncekey’s must be (see mongodbIndexes). Drop that index, ' +
    'or give oncekey a collection of its own.'
  )
}

export const DUPLICATE_KEY = 11_000
const TOO_LARGE_CODES: readonly number[] = [10_334, 17_280, 17_419, 17_420]

export function toOncekeyError(error: unknown): OncekeyError {
  if (error instanceof OncekeyError) return error
  const code = codeOf(error)
  const known = TEXTS[code]
  if (known !== undefined)
    return new OncekeyError(known[0], `MongoDB ${known[1]} (${messageOf(error)})`, { cause: error })
  if (TOO_LARGE_CODES.includes(code)) return tooLarge('The record with its answer is too large', error)
  if (code === DUPLICATE_KEY) return foreignIndex(error)
  if (code !== 0) {
    const text = `MongoDB refused the command: ${messageOf(error)} (code ${code}). ${ASK_AGAIN}`
    return new OncekeyError('store-unavailable', text, { cause: error })
  }
  const text = isClientClosed(error)
    ? `The MongoDB client is closed: ${messageOf(error)}. Nothing was recorded. A client whose first connection failed ` +
      'closes itself: call its connect() again, or pass { client } to mongodbStore, which then does so.'
    : isNeverSent(error)
      ? `MongoDB cannot be reached: ${messageOf(error)}. Nothing was recorded. Check that it runs and has a primary, and ` +
        'that the address of the client is right; no restart of this process is needed.'
      : `No reply came from MongoDB: ${messageOf(error)}. ${ASK_AGAIN}`
  return new OncekeyError('store-unavailable', text, { cause: error })
}

function foreignIndex(error: unknown): OncekeyError {
  return new OncekeyError(
    'store-incompatible',
    `A unique index that is not oncekey’s refuses the record: ${messageOf(error)}. Nothing was recorded. Drop that index, ` +
      'or give oncekey a collection of its own.',
    { cause: error },
  )
}

export function noReply(callMsMax: number): OncekeyError {
  return new OncekeyError(
    'store-unavailable',
    `MongoDB gave no reply in time (callMsMax is ${callMsMax}). ${ASK_AGAIN} Check the server, and that the client’s ` +
      'pool is large enough.',
  )
}

/** Another upsert of this id was faster. */
export function isLostRace(error: unknown): boolean {
  if (error instanceof OncekeyError) return isLostRace(error.cause)
  if (codeOf(error) !== DUPLICATE_KEY) return false
  const pattern = typeof error === 'object' && error !== null && 'keyPattern' in error ? error.keyPattern : undefined
  return typeof pattern !== 'object' || pattern === null || '_id' in pattern
}

/** 0 for what did not come from the server. */
export function codeOf(error: unknown): number {
  if (error instanceof OncekeyError) return codeOf(error.cause)
  if (!(error instanceof Error)) return 0
  if ('code' in error && typeof error.code === 'number') return error.code
  // The driver puts its own words in place of some errors, and keeps the server's here.
  return 'originalError' in error ? codeOf(error.originalError) : 0
}

export function hasLabel(error: unknown, label: string): boolean {
  if (error instanceof OncekeyError) return hasLabel(error.cause, label)
  if (!(error instanceof Error) || !('hasErrorLabel' in error) || typeof error.hasErrorLabel !== 'function')
    return false
  return error.hasErrorLabel(label) === true
}

const NEVER_SENT: readonly string[] = [
  'MongoServerSelectionError',
  'MongoWaitQueueTimeoutError',
  'WaitQueueTimeoutError',
  'PoolClosedError',
  'MongoPoolClosedError',
  'MongoPoolClearedError',
]

const CLIENT_CLOSED: readonly string[] = [
  'MongoTopologyClosedError',
  'MongoNotConnectedError',
  'MongoClientClosedError',
]

export function isClientClosed(error: unknown): boolean {
  if (error instanceof OncekeyError) return isClientClosed(error.cause)
  return error instanceof Error && CLIENT_CLOSED.includes(error.name)
}

function isNeverSent(error: unknown): boolean {
  return error instanceof Error && NEVER_SENT.includes(error.name)
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message || error.name : String(error)
}
