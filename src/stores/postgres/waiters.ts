import { AwaitedRecords, lookTogether } from '../../awaited-records.ts'
import type { Subscription } from '../../shared-subscription.ts'
import { fromText, toText } from './encoding.ts'
import type { Listener } from './listener.ts'

/** How often the awaited records are looked at, all in one statement, where the server cannot push. */
const POLL_MS = 25
/** How long the listening connection is kept when nobody waits any more. */
const LISTEN_IDLE_MS = 10_000
/** After listening failed, polling serves for this long before it is tried again. */
const LISTEN_RETRY_MS = 60_000

export interface WaiterParts {
  /** Whether each record is running, and for how many more ms; with `flag` their end will be announced. */
  readonly look: (ids: readonly string[], flag: boolean) => Promise<ReadonlyMap<string, number>>
  /** Opens a listener that is heard, or rejects. `undefined`: there must be none. */
  readonly listen: ((onId: (id: string) => void, onEnded: () => void) => Promise<Listener>) | undefined
}

/**
 * Those who wait for a record to be no longer running. What this store changes wakes them at once; other processes'
 * changes are heard over one connection, shared by all, that is open only while somebody waits. Until it is heard from,
 * and where it cannot be, the records are polled.
 */
export class Waiters {
  /** By the ids as they are kept. */
  readonly #records: AwaitedRecords

  constructor({ look, listen }: WaiterParts) {
    const open = listen && ((onLost: () => void) => this.#open(listen, onLost))
    this.#records = new AwaitedRecords({
      // Looked at again once the listener is heard, for the looks before it did not ask for an announcement.
      look: lookTogether((keys) => look(keys.map(fromText), this.#records.isHeard)),
      subscription: open && { open, lingerMs: LISTEN_IDLE_MS, pauseMs: { failed: LISTEN_RETRY_MS, lost: 0 } },
      pollMs: POLL_MS,
    })
  }

  wait(id: string, signal: AbortSignal): Promise<void> {
    return this.#records.wait(toText(id), signal)
  }

  wake(id: string): void {
    this.#records.wake(toText(id))
  }

  close(): Promise<void> {
    return this.#records.close()
  }

  #open(listen: NonNullable<WaiterParts['listen']>, onLost: () => void): Subscription {
    const listening = listen(
      (key) => this.#records.wake(key),
      () => {
        // Nobody can say what was missed: everybody looks for himself, and whoever waits on has another listener.
        this.#records.wakeAll()
        onLost()
      },
    )
    return { ready: listening, close: async () => (await listening).end() }
  }
}
