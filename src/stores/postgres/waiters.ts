import { systemClock } from '../../clock.ts'
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
  readonly #parts: WaiterParts
  readonly #waiting = new Map<string, Awaited>()
  #listener: Listener | undefined
  #opening: Promise<void> | undefined
  #listenNotBefore = 0
  #isPolling = false
  #cancelIdle: (() => void) | undefined
  #isClosed = false

  constructor(parts: WaiterParts) {
    this.#parts = parts
  }

  /** How a change of another process is noticed now. */
  get mode(): 'push' | 'poll' {
    return this.#listener === undefined ? 'poll' : 'push'
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    this.#cancelIdle?.()
    const key = toText(id)
    const awaited = this.#waiting.get(key) ?? new Awaited()
    this.#waiting.set(key, awaited)
    this.#openListener()
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        signal.removeEventListener('abort', wake)
        awaited.wakers.delete(wake)
        if (awaited.wakers.size === 0) this.#drop(key, awaited)
        resolve()
      }
      awaited.wakers.add(wake)
      signal.addEventListener('abort', wake)
      // In place first, looked at second: a change in between is not missed.
      if (awaited.wakers.size === 1) this.#look([key])
    })
  }

  wake(id: string): void {
    this.#wakeKey(toText(id))
  }

  wakeAll(): void {
    for (const key of [...this.#waiting.keys()]) this.#wakeKey(key)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.wakeAll()
    await this.#opening
    this.#endListener()
  }

  #wakeKey(key: string): void {
    for (const wake of [...(this.#waiting.get(key)?.wakers ?? [])]) wake()
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  async #look(keys: readonly string[]): Promise<void> {
    if (keys.length === 0) return
    const isPush = this.mode === 'push'
    let running: ReadonlyMap<string, number>
    try {
      running = await this.#parts.look(keys.map(fromText), isPush)
    } catch {
      for (const key of keys) this.#wakeKey(key)
      return
    }
    for (const key of keys) {
      const leftMs = running.get(key)
      const awaited = this.#waiting.get(key)
      if (leftMs === undefined) this.#wakeKey(key)
      else if (awaited !== undefined) {
        // The lease may lapse with nobody writing anything.
        awaited.cancelLook?.()
        awaited.cancelLook = systemClock.schedule(leftMs + 1, () => void this.#look([key]))
      }
    }
    void this.#poll()
  }

  async #poll(): Promise<void> {
    if (this.#isPolling) return
    this.#isPolling = true
    while (this.mode === 'poll' && this.#waiting.size > 0) {
      await new Promise<void>((resolve) => systemClock.schedule(POLL_MS, resolve))
      if (this.mode === 'poll') await this.#look([...this.#waiting.keys()])
    }
    this.#isPolling = false
  }

  #openListener(): void {
    const { listen } = this.#parts
    const isDue = performance.now() >= this.#listenNotBefore
    if (listen === undefined || !isDue || this.#listener || this.#opening || this.#isClosed) return
    this.#opening = listen(
      (key) => this.#wakeKey(key),
      () => this.#endListener(),
    )
      .then((listener) => {
        this.#listener = listener
        this.#listenNotBefore = 0
        // Looked at again, for the first look did not ask for an announcement.
        if (this.#waiting.size > 0) void this.#look([...this.#waiting.keys()])
        else this.#planIdle()
      })
      .catch(() => {
        this.#listenNotBefore = performance.now() + LISTEN_RETRY_MS
      })
      .finally(() => {
        this.#opening = undefined
        if (this.#isClosed) this.#endListener()
      })
  }

  /** Nobody can say what was missed: everybody looks for himself. */
  #endListener(): void {
    this.#cancelIdle?.()
    this.#listener?.end()
    this.#listener = undefined
    this.wakeAll()
  }

  #planIdle(): void {
    this.#cancelIdle?.()
    this.#cancelIdle = systemClock.schedule(LISTEN_IDLE_MS, () => {
      if (this.#waiting.size === 0) this.#endListener()
    })
  }

  #drop(key: string, awaited: Awaited): void {
    awaited.cancelLook?.()
    if (this.#waiting.get(key) === awaited) this.#waiting.delete(key)
    if (this.#waiting.size > 0) return
    if (this.#listener !== undefined) this.#planIdle()
  }
}

class Awaited {
  readonly wakers = new Set<() => void>()
  cancelLook: (() => void) | undefined
}
