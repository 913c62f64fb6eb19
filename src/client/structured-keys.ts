import type { DatabaseSync } from 'node:sqlite'
import { OncekeyError } from '../error.ts'

export interface StructuredKeysOptions {
  /** The state's file; made when absent, in a directory that exists. One process at a time has it. */
  readonly file: string
  /** Who this client is. Default: made at the first start. Kept in the file, so it is the same after every restart. */
  readonly clientId?: string
  /** How many sequence numbers one write to the disk reserves. A crash skips those that were not used. Default 1,000. */
  readonly reserve?: number
}

/** Makes keys `{client_id}:{sequence}:{nonce}`. */
export interface StructuredKeys {
  readonly clientId: string
  /** New at each start: should the file ever be restored from an old copy, keys made since then still do not come again. */
  readonly nonce: string
  /** The next key. Its number is greater than that of any key ever made with this file, also before a crash. */
  readonly next: () => string
  /** Lets another process have the file. */
  close(): void
}

export interface StructuredKey {
  readonly clientId: string
  readonly sequence: number
  readonly nonce: string
}

export type ParsedStructuredKey =
  | ({ readonly state: 'valid' } & StructuredKey)
  /** `reason` is a whole sentence, written for whoever sent the key. */
  | { readonly state: 'invalid'; readonly reason: string }

/**
 * Keys that say who made them and in which order, for Node. A sequence number is on the disk, synced, before it is given
 * out, so kill -9 and a loss of power skip numbers but never repeat one. The state is a small SQLite file, whose lock
 * ends with its process: a second user is refused while the first lives, and never because one died.
 */
export function structuredKeys(options: StructuredKeysOptions): StructuredKeys {
  const { file, clientId, reserve = RESERVE_DEFAULT } = options
  if (typeof file !== 'string' || file === '' || file.includes('\0') || file === ':memory:') {
    throw invalid('file must name the file that keeps the sequence, such as "./client-state.db"')
  }
  if (!Number.isSafeInteger(reserve) || reserve < 1 || reserve > RESERVE_MAX) {
    throw invalid(`reserve is ${reserve}; write a whole number from 1 to ${RESERVE_MAX}`)
  }
  if (clientId !== undefined) assertClientId(clientId)
  const state = new State(file, clientId)
  const nonce = [...crypto.getRandomValues(new Uint8Array(NONCE_BYTES))]
    .map((byte) => byte.toString(16).padStart(2, '0'))
    .join('')
  let sequence = 0
  let reservedEnd = 0
  return {
    clientId: state.clientId,
    nonce,
    next() {
      if (sequence >= reservedEnd) {
        reservedEnd = state.reserve(reserve)
        sequence = reservedEnd - reserve
      }
      sequence += 1
      return formatStructuredKey({ clientId: state.clientId, sequence, nonce })
    },
    close() {
      sequence = reservedEnd
      state.close()
    },
  }
}

/** Reads a key from its right end: a client id may have colons in it, such as `host1.dc1:12345`. */
export function parseStructuredKey(text: string): ParsedStructuredKey {
  if (typeof text !== 'string') return malformed(`is not text but ${text === null ? 'null' : `a ${typeof text}`}`)
  const nonceAt = text.lastIndexOf(':')
  const sequenceAt = text.lastIndexOf(':', nonceAt - 1)
  if (nonceAt <= 0 || sequenceAt === -1) return malformed('has fewer than three parts')
  const clientId = text.slice(0, sequenceAt)
  const digits = text.slice(sequenceAt + 1, nonceAt)
  const nonce = text.slice(nonceAt + 1)
  const wrong = wrongClientId(clientId)
  if (wrong !== undefined) return malformed(`has a client id that ${wrong}`)
  // One spelling for each number: a key is compared as text.
  if (!/^(?:0|[1-9][0-9]*)$/.test(digits)) return malformed('has a sequence that is not a plain whole number')
  const sequence = Number(digits)
  if (!Number.isSafeInteger(sequence)) return malformed(`has a sequence above ${Number.MAX_SAFE_INTEGER}`)
  if (!NONCE.test(nonce)) return malformed('has a nonce that is not 8 bytes as 16 lower-case hex digits')
  return { state: 'valid', clientId, sequence, nonce }
}

/** The text of a key. Throws on parts that `parseStructuredKey` would not give back. */
export function formatStructuredKey({ clientId, sequence, nonce }: StructuredKey): string {
  const text = `${clientId}:${sequence}:${nonce}`
  const parsed = parseStructuredKey(text)
  if (parsed.state === 'invalid') throw invalid(parsed.reason)
  if (parsed.clientId !== clientId || parsed.nonce !== nonce) throw invalid('The parts do not make a structured key')
  return text
}

const RESERVE_DEFAULT = 1_000
const RESERVE_MAX = 1_000_000_000
const NONCE_BYTES = 8
const NONCE = /^[0-9a-f]{16}$/
/** Leaves room for sequence and nonce in the 255 characters that a key may have. */
const CLIENT_ID_LENGTH_MAX = 200

function wrongClientId(clientId: string): string | undefined {
  if (clientId === '') return 'is empty'
  if (clientId.length > CLIENT_ID_LENGTH_MAX) return `is longer than ${CLIENT_ID_LENGTH_MAX} characters`
  if (!/^[\x21\x23-\x7e]+$/.test(clientId)) return 'has other characters than visible ASCII without double quotes'
  return undefined
}

function assertClientId(clientId: string): void {
  const wrong = typeof clientId === 'string' ? wrongClientId(clientId) : 'is not text'
  if (wrong !== undefined) throw invalid(`clientId ${wrong}; write a name such as "host1.dc1:12345"`)
}

function malformed(what: string): ParsedStructuredKey {
  return { state: 'invalid', reason: `The key ${what}; it must be {client_id}:{sequence}:{nonce}.` }
}

const OPEN = `
  PRAGMA locking_mode = EXCLUSIVE;
  PRAGMA synchronous = EXTRA;
  BEGIN EXCLUSIVE;
  CREATE TABLE IF NOT EXISTS client_sequence (
    one INTEGER PRIMARY KEY CHECK (one = 1), client_id TEXT NOT NULL, reserved_end INTEGER NOT NULL) STRICT;`
const START = 'INSERT INTO client_sequence VALUES (1, ?, 0) ON CONFLICT DO NOTHING'
const READ = 'SELECT client_id FROM client_sequence'
const RESERVE = 'UPDATE client_sequence SET reserved_end = reserved_end + ? RETURNING reserved_end'

/** The file: who the client is, and the end of what is reserved. Locked from the first moment until it is closed. */
class State {
  readonly clientId: string
  readonly #db: DatabaseSync
  #isClosed = false

  constructor(file: string, given: string | undefined) {
    this.#db = open(file)
    try {
      this.#db.exec(OPEN)
      this.#db.prepare(START).run(given ?? crypto.randomUUID())
      this.clientId = String(this.#db.prepare(READ).get()?.client_id)
      this.#db.exec('COMMIT')
    } catch (error) {
      this.#db.close()
      throw unusable(file, error)
    }
    if (given === undefined || given === this.clientId) return
    this.#db.close()
    throw invalid(
      `clientId is ${given}, but ${file} belongs to the client ${this.clientId}; leave clientId out, or give each client its own file`,
    )
  }

  /** The new end, once it is on the disk. */
  reserve(count: number): number {
    if (this.#isClosed)
      throw new OncekeyError('store-closed', 'These structured keys were closed; open the file again.')
    const end = this.#db.prepare(RESERVE).get(count)?.reserved_end
    if (typeof end === 'number' && Number.isSafeInteger(end)) return end
    throw new OncekeyError('store-incompatible', 'The sequence of this client is used up. Give it a new file and id.')
  }

  close(): void {
    if (!this.#isClosed) this.#db.close()
    this.#isClosed = true
  }
}

/** Asked for at the call, not imported: a browser that never makes structured keys has no use for it. */
function open(file: string): DatabaseSync {
  const sqlite = globalThis.process?.getBuiltinModule?.('node:sqlite')
  if (!sqlite)
    throw invalid('structuredKeys() keeps a file, which needs node:sqlite; make keys with crypto.randomUUID()')
  try {
    return new sqlite.DatabaseSync(file)
  } catch (error) {
    throw unusable(file, error)
  }
}

const SQLITE_BUSY = 5

function unusable(file: string, cause: unknown): OncekeyError {
  const { errcode } = cause as { errcode?: number }
  if (errcode === SQLITE_BUSY) {
    return new OncekeyError(
      'config-invalid',
      `${file} is in use by another process or generator. Two of them would give out the same numbers: close the other, or give each its own file.`,
      { cause },
    )
  }
  return new OncekeyError(
    'store-incompatible',
    `${file} cannot be used for the keys' sequence: ${(cause as Error).message}. No key was made. Use a file of its own in a directory that exists; a damaged one must be replaced under a new client id.`,
    { cause },
  )
}

function invalid(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}
