import { createHash } from 'node:crypto'
import { OncekeyError } from '../../error.ts'
import { UnderWay } from '../../under-way.ts'
import { isForeignStatement, isSessionGood, toOncekeyError } from './faults.ts'

/** The part of a `pg` client that is used. */
export interface PostgresClient {
  query(config: PostgresQuery, callback: (error: Error | null, result: { readonly rows: unknown[] }) => void): void
  on(event: 'error', listener: (error: Error) => void): unknown
  on(event: 'end', listener: () => void): unknown
  on(event: 'notification', listener: (message: PostgresNotification) => void): unknown
  removeListener(event: 'error', listener: (error: Error) => void): unknown
  removeListener(event: 'end', listener: () => void): unknown
  removeListener(event: 'notification', listener: (message: PostgresNotification) => void): unknown
}

export interface PostgresNotification {
  readonly payload?: string | undefined
}

export interface PostgresQuery {
  readonly name?: string
  readonly text: string
  values?: unknown[]
  readonly rowMode: 'array'
  readonly types: { getTypeParser: () => (value: string) => string }
}

export interface PostgresPoolClient extends PostgresClient {
  release(destroy?: Error | boolean): void
}

/** The part of a `pg` pool that is used. `Client` is what `work` of a transaction gets: the pool's own class. */
export interface PostgresPool<Client extends PostgresPoolClient = PostgresPoolClient> {
  connect(): Promise<Client>
  readonly options?: { readonly max?: number | undefined }
  on(event: 'error', listener: (error: Error) => void): unknown
  removeListener(event: 'error', listener: (error: Error) => void): unknown
}

/** The other way in which a `pg` pool gives out a connection. */
type ConnectWithCallback<Client> = (
  this: unknown,
  callback: (error: Error | undefined, client: Client | undefined) => void,
) => void

/** Every value comes as the text that PostgreSQL wrote: the parsers that a program sets for itself do not matter. */
export type Row = ReadonlyArray<string | null>

const AS_TEXT = { getTypeParser: () => (value: string) => value }

/** Connections borrowed from the caller's pool, one at a time for each task, and given back in a good state. */
export class Sessions<Client extends PostgresPoolClient = PostgresPoolClient> {
  readonly #pool: PostgresPool<Client>
  readonly #callMsMax: number
  readonly #givingBack = new UnderWay()

  constructor(pool: PostgresPool<Client>, callMsMax: number) {
    this.#pool = pool
    this.#callMsMax = callMsMax
  }

  /** Most connections that the pool opens; 10 is what `pg` does when nothing is said. */
  get poolMax(): number {
    return this.#pool.options?.max ?? 10
  }

  async use<T>(task: (session: Session<Client>) => Promise<T>): Promise<T> {
    const client = await this.connect()
    const session = new Session(client, this.#callMsMax)
    try {
      return await task(session)
    } finally {
      this.#givingBack.during(giveBack(session))
    }
  }

  /** Resolves when every connection has been given back that is not in use any more. */
  async idle(): Promise<void> {
    await this.#givingBack.idle()
  }

  /**
   * Bounded; whoever takes one gives it back by its `release`.
   *
   * A connection that breaks while it is borrowed says so by an event; unheard, it would end the process. It can break in
   * the very packet that says it is ready, so the listener is there before a promise could have told of it.
   */
  connect(): Promise<Client> {
    const connect = this.#pool.connect as unknown as ConnectWithCallback<Client>
    return new Promise((resolve, reject) => {
      let isLate = false
      const timer = setTimeout(() => {
        isLate = true
        reject(this.#noConnection())
      }, this.#callMsMax)
      const fail = (error: unknown): void => {
        clearTimeout(timer)
        reject(toOncekeyError(error, false))
      }
      try {
        connect.call(this.#pool, (error, client) => {
          if (client === undefined) return fail(error)
          clearTimeout(timer)
          if (isLate) return client.release()
          client.on('error', ignore)
          resolve(client)
        })
      } catch (error) {
        fail(error)
      }
    })
  }

  #noConnection(): OncekeyError {
    return new OncekeyError(
      'store-unavailable',
      `The pool gave no connection within ${this.#callMsMax} ms: PostgreSQL does not answer, or all ${this.poolMax} ` +
        'connections are in use by others. Nothing was recorded. Do not hold a connection of this pool while waiting ' +
        'for oncekey, make the pool larger, or give the store a pool of its own.',
    )
  }
}

async function giveBack(session: Session<PostgresPoolClient>): Promise<void> {
  const { client } = session
  await session.tidy()
  client.removeListener('error', ignore)
  try {
    client.release(!session.isGood)
  } catch (error) {
    // Whoever has given it back already may have let two share it: that must not stay unheard.
    process.emitWarning(`A connection of PostgreSQL could not be given back: ${String(error)}`, 'OncekeyWarning')
  }
}

/** One borrowed connection. */
export class Session<Client extends PostgresClient = PostgresClient> {
  readonly client: Client
  /** `false`: the connection must not be used again. */
  isGood = true
  readonly #callMsMax: number
  readonly #plans: Plans
  readonly #outdated: string[] = []

  constructor(client: Client, callMsMax: number) {
    this.client = client
    this.#callMsMax = callMsMax
    this.#plans = PLANS.get(client) ?? new Plans()
    PLANS.set(client, this.#plans)
  }

  /** Prepared where that is safe. Throws what the driver threw, or a `store-unavailable` when no reply came in time. */
  async run(text: string, values: unknown[]): Promise<Row[]> {
    if (!this.#plans.isKnown) await this.#learn()
    const { name, outdated } = this.#plans.nameOf(text)
    if (outdated !== undefined) this.#outdated.push(outdated)
    if (name === undefined) return this.send(text, values)
    try {
      return await this.send(text, values, { name })
    } catch (error) {
      if (!isForeignStatement(error)) throw error
      this.#plans.isDirect = false
      return this.send(text, values)
    }
  }

  /**
   * Never prepared. Several statements, separated by semicolons, when there are no values.
   *
   * By the callback of `pg`, not by its promise: what hangs on that one often stays alive until the next full collection,
   * all rows and parameters of thousands of statements.
   */
  send(text: string, values?: unknown[], how: { name?: string; extraMs?: number } = {}): Promise<Row[]> {
    const { name, extraMs = 0 } = how
    const msMax = this.#callMsMax + extraMs
    const query: PostgresQuery = { text, rowMode: 'array', types: AS_TEXT, ...(name && { name }) }
    if (values !== undefined) query.values = values
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.isGood = false
        reject(noReply(msMax))
      }, msMax)
      const fail = (error: unknown): void => {
        clearTimeout(timer)
        if (!isSessionGood(error)) this.isGood = false
        reject(error)
      }
      try {
        this.client.query(query, (error, result) => {
          if (error) return fail(error)
          clearTimeout(timer)
          // Of several statements `pg` gives several results, and their rows are not wanted.
          resolve((result.rows ?? []) as Row[])
        })
      } catch (error) {
        fail(error)
      }
    })
  }

  /** Never throws: the transaction may end with its connection. */
  async rollBack(): Promise<void> {
    if (!this.isGood) return
    try {
      await this.send('ROLLBACK')
    } catch {
      this.isGood = false
    }
  }

  /** What can wait until the reply is out. */
  async tidy(): Promise<void> {
    for (const name of this.#outdated) {
      if (!this.isGood) return
      await this.send(`DEALLOCATE ${name}`).catch(ignore)
    }
  }

  /**
   * Behind a proxy that changes connections between transactions (PgBouncer in transaction mode) a prepared statement
   * may be another client's. Such a proxy does not know the server's process id when a client connects.
   */
  async #learn(): Promise<void> {
    const [row] = await this.send('SELECT pg_backend_pid()', [])
    this.#plans.isKnown = true
    this.#plans.isDirect = isDirect(this.client, row)
  }
}

function noReply(msMax: number): OncekeyError {
  return new OncekeyError(
    'store-unavailable',
    `PostgreSQL gave no reply within ${msMax} ms. Whether this operation was recorded is not certain; ` +
      'asking again with the same token tells.',
  )
}

export function isDirect(client: PostgresClient, pidRow: Row | undefined): boolean {
  const processId = 'processID' in client ? client.processID : undefined
  return typeof processId === 'number' && String(processId) === pidRow?.[0]
}

/** How long the first plan of a statement is used; each further one is used for twice as long. */
const PLAN_MS_MIN = 1_000
const PLAN_RUNS_MIN = 32

/**
 * The statements that are prepared on one connection: planning costs more than running them. A plan is made for the
 * table as it is: one that is all but empty is best read as a whole, and may hold a million records a minute later. So
 * a statement is prepared anew from time to time, ever more rarely.
 */
class Plans {
  isKnown = false
  isDirect = false
  readonly #plans = new Map<string, Plan>()

  nameOf(text: string): { readonly name?: string; readonly outdated?: string } {
    if (!this.isDirect) return {}
    const plan = this.#plans.get(text)
    if (plan !== undefined && plan.runs++ < plan.runsMax && performance.now() < plan.until) return { name: plan.name }
    const version = plan === undefined ? 0 : plan.version + 1
    const hash = createHash('sha256').update(text).digest('hex').slice(0, HASH_CHARS)
    const name = `oncekey_${hash}_${version}`
    const [runsMax, msMax] = [PLAN_RUNS_MIN * 2 ** version, PLAN_MS_MIN * 2 ** version]
    this.#plans.set(text, { name, version, runs: 1, runsMax, until: performance.now() + msMax })
    return plan === undefined ? { name } : { name, outdated: plan.name }
  }
}

interface Plan {
  readonly name: string
  readonly version: number
  runs: number
  readonly runsMax: number
  readonly until: number
}

const HASH_CHARS = 16

/** Of all stores in this process: several may use one pool. */
const PLANS = new WeakMap<PostgresClient, Plans>()

function ignore(): void {}
