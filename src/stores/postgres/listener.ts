import { OncekeyError } from '../../error.ts'
import type { PostgresClient, PostgresNotification, Sessions } from './sessions.ts'
import { isDirect, Session } from './sessions.ts'

/** Opens a connection that is the store's alone. */
export type OwnConnection = () => Promise<PostgresClient & { end(): Promise<void> }>

/** A connection that may be kept for as long as somebody waits, and how to let go of it. */
interface ListenConnection {
  readonly client: PostgresClient
  end(): void
}

/** A smaller pool has no connection to spare for listening: waiters poll. */
const POOL_MIN = 4
/** How long the proof may take that a notification from another connection arrives here. */
const PROOF_MS_MAX = 2_000

/** How to listen, or `undefined` where that is not wanted, or not to be had. */
export function listening(
  wanted: false | OwnConnection | undefined,
  sessions: Sessions,
  table: string,
  callMsMax: number,
): ((onId: (id: string) => void, onEnded: () => void) => Promise<Listener>) | undefined {
  if (wanted === false || (typeof wanted !== 'function' && sessions.poolMax < POOL_MIN)) return undefined
  return async (onId, onEnded) => {
    const listener = new Listener(await connectionOf(wanted, sessions), onId, onEnded)
    try {
      await listener.start(table, sessions, callMsMax)
      return listener
    } catch (error) {
      listener.end()
      throw error
    }
  }
}

async function connectionOf(own: OwnConnection | undefined, sessions: Sessions): Promise<ListenConnection> {
  if (typeof own === 'function') {
    const client = await own()
    return { client, end: () => void client.end().catch(ignore) }
  }
  const client = await sessions.connect()
  // Not given back to the pool but ended: it would go on to hear.
  return { client, end: () => client.release(true) }
}

/**
 * One connection that hears which records are no longer running, from whatever process. `onEnded` is called once, when
 * the connection is lost.
 */
export class Listener {
  readonly #connection: ListenConnection
  readonly #onId: (id: string) => void
  readonly #onEnded: () => void
  #onProof: ((payload: string) => void) | undefined
  #isEnded = false

  constructor(connection: ListenConnection, onId: (id: string) => void, onEnded: () => void) {
    this.#connection = connection
    this.#onId = onId
    this.#onEnded = onEnded
    const { client } = connection
    client.on('error', this.#lost)
    client.on('end', this.#lost)
    client.on('notification', this.#heard)
  }

  /**
   * Behind a proxy that changes connections between transactions LISTEN succeeds, and nothing is ever heard. So nothing
   * is trusted before a notification that was sent through another connection has arrived.
   */
  async start(table: string, sessions: Sessions, callMsMax: number): Promise<void> {
    const session = new Session(this.#connection.client, callMsMax)
    const [row] = await session.send('SELECT pg_backend_pid(), $1::regclass::oid', [table])
    if (!isDirect(this.#connection.client, row)) throw unheard()
    const channel = `oncekey_${row?.[1]}`
    await session.send(`LISTEN ${channel}`)
    const proof = `proof ${Math.random()}`
    const heard = new Promise<boolean>((resolve) => {
      const timer = setTimeout(resolve, PROOF_MS_MAX, false)
      this.#onProof = (payload) => {
        if (payload !== proof) return
        clearTimeout(timer)
        resolve(true)
      }
    })
    await sessions.use((other) => other.send('SELECT pg_notify($1, $2)', [channel, proof]))
    // The connection may have been lost after the proof came, while the reply to it was still on its way.
    if (!(await heard) || this.#isEnded) throw unheard()
  }

  end(): void {
    if (this.#isEnded) return
    this.#isEnded = true
    const { client } = this.#connection
    client.removeListener('notification', this.#heard)
    client.removeListener('end', this.#lost)
    // The listener for errors stays: a connection that is being ended may still report one.
    this.#connection.end()
  }

  readonly #heard = (message: PostgresNotification): void => {
    this.#onProof?.(message.payload ?? '')
    this.#onId(message.payload ?? '')
  }

  readonly #lost = (): void => {
    if (this.#isEnded) return
    this.end()
    this.#onEnded()
  }
}

function unheard(): OncekeyError {
  return new OncekeyError('store-unavailable', 'Notifications do not come through: a proxy stands in between.')
}

function ignore(): void {}
