import { OncekeyError } from '../../error.ts'
import { isSessionGood, toOncekeyError } from './faults.ts'

/** The part of a connection of `mysql2/promise` that is used. */
export interface MysqlConnection {
  query(options: MysqlQuery): Promise<[result: unknown, fields: unknown]>
  release(): void
  destroy(): void
}

export interface MysqlQuery {
  readonly sql: string
  readonly rowsAsArray: true
  readonly typeCast: (field: MysqlField) => Buffer | null
}

export interface MysqlField {
  buffer(): Buffer | null
}

/** The part of a pool of `mysql2/promise` that is used. `Connection` is what `work` of a transaction gets. */
export interface MysqlPool<Connection extends MysqlConnection = MysqlConnection> {
  getConnection(): Promise<Connection>
}

/** Every value comes as the bytes that the server wrote: the casts that a program sets for itself do not matter. */
export type Row = ReadonlyArray<Buffer | null>

export interface Written {
  /** Of an INSERT that met a record, and of an UPDATE of nothing, this depends on the connection's flags. */
  readonly affectedRows: number
  /** What the statement gave to LAST_INSERT_ID(…) on its way; 0 when it never came there. */
  readonly mark: number
}

/** Of the server's status in its reply. */
const IN_TRANSACTION = 1

/** Connections borrowed from the caller's pool, one at a time for each task, and given back in a good state. */
export class Sessions<Connection extends MysqlConnection = MysqlConnection> {
  readonly #pool: MysqlPool<Connection>
  readonly #callMsMax: number

  constructor(pool: MysqlPool<Connection>, callMsMax: number) {
    this.#pool = pool
    this.#callMsMax = callMsMax
  }

  async use<T>(task: (session: Session<Connection>) => Promise<T>): Promise<T> {
    const connection = await this.#connect()
    const session = new Session(connection, this.#callMsMax)
    try {
      return await task(session)
    } finally {
      if (session.isGood) connection.release()
      else connection.destroy()
    }
  }

  async #connect(): Promise<Connection> {
    const connecting = this.#pool.getConnection()
    try {
      const connection = await inTime(connecting, this.#callMsMax)
      if (connection !== LATE) return connection
    } catch (error) {
      throw toOncekeyError(error, false)
    }
    connecting.then((connection) => connection.release(), ignore)
    throw new OncekeyError(
      'store-unavailable',
      `The pool gave no connection within ${this.#callMsMax} ms: MySQL does not answer, or all connections of the pool ` +
        'are in use by others. Nothing was recorded. Do not hold a connection of this pool while waiting for oncekey, ' +
        'make the pool larger, or give the store a pool of its own.',
    )
  }
}

/** One borrowed connection. */
export class Session<Connection extends MysqlConnection = MysqlConnection> {
  readonly connection: Connection
  /** `false`: the connection must not be used again. */
  isGood = true
  /** Whether the store itself has opened a transaction here. */
  isInTransaction = false
  /** How much longer a statement may take because it was told to wait for a lock. */
  lockMsMax = 0
  readonly #callMsMax: number

  constructor(connection: Connection, callMsMax: number) {
    this.connection = connection
    this.#callMsMax = callMsMax
  }

  /** Throws what the driver threw, or a `store-unavailable` when no reply came in time. */
  async rows(sql: string): Promise<readonly Row[]> {
    return (await this.#send(sql)) as readonly Row[]
  }

  /** Acknowledges nothing that is not committed, unless the transaction is the store's own. */
  async write(sql: string): Promise<Written> {
    const header = (await this.#send(sql)) as { affectedRows: number; insertId: number; serverStatus?: number }
    if (!this.isInTransaction && ((header.serverStatus ?? 0) & IN_TRANSACTION) !== 0) {
      // The connection goes, and with it what is not committed.
      this.isGood = false
      throw new OncekeyError(
        'config-invalid',
        'A connection of this pool has a transaction open: autocommit is off, or somebody gave it back without COMMIT ' +
          'or ROLLBACK. Nothing was recorded. Leave autocommit on, and end every transaction before its release.',
      )
    }
    return { affectedRows: Number(header.affectedRows), mark: Number(header.insertId) }
  }

  async rollBack(): Promise<void> {
    if (!this.isGood) return
    try {
      await this.#send('ROLLBACK')
    } catch {
      // The connection goes, and with it the transaction.
      this.isGood = false
    } finally {
      this.isInTransaction = false
    }
  }

  async #send(sql: string): Promise<unknown> {
    const msMax = this.#callMsMax + this.lockMsMax
    const reply = this.connection.query({ sql, rowsAsArray: true, typeCast: asBytes })
    try {
      const result = await inTime(reply, msMax)
      if (result !== LATE) return result[0]
    } catch (error) {
      if (!isSessionGood(error)) this.isGood = false
      throw error
    }
    this.isGood = false
    reply.catch(ignore)
    throw new OncekeyError(
      'store-unavailable',
      `MySQL gave no reply within ${msMax} ms. Whether this operation was recorded is not certain; asking ` +
        'again with the same token tells.',
    )
  }
}

const asBytes = (field: MysqlField): Buffer | null => field.buffer()

const LATE: unique symbol = Symbol('late')

async function inTime<T>(promise: Promise<T>, msMax: number): Promise<T | typeof LATE> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<typeof LATE>((resolve) => {
    timer = setTimeout(resolve, msMax, LATE)
  })
  try {
    return await Promise.race([promise, timeout])
  } finally {
    clearTimeout(timer)
  }
}

function ignore(): void {}
