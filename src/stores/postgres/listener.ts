import { OncekeyError } from '../../error.ts'
import type { PostgresClient, PostgresNotification, Sessions } from './sessions.ts'
import { isDirect, Session } from './sessions.ts'

/** A connection that may be kept for as long as somebody waits, and how to let go of it. */
export interface ListenConnection {
  readonly client: PostgresClient
  end(): void
}

/** How long the proof may take that a notification from another connection arrives here. */
const PROOF_MS_MAX = 2_000

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
