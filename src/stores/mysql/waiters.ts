import { systemClock } from '../../clock.ts'

/** How soon the end of an operation in another process is seen. */
const POLL_MS = 50
/** Records that one statement looks at. */
const LOOK_MAX = 500

/** Those of these ids that run. */
export type Look = (ids: readonly string[]) => Promise<ReadonlySet<string>>

/**
 * Those who wait for the end of an operation. MySQL announces nothing, so whoever ends it in this process wakes them at
 * once, and for all others one statement every 50 ms looks at everything that is waited for. That costs less than each
 * of them looking for itself.
 */
export class Waiters {
  readonly #look: Look
  readonly #waiting = new Map<string, Set<() => void>>()
  #isPolling = false
  #isClosed = false

  constructor(look: Look) {
    this.#look = look
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted || this.#isClosed) return
    const wakers = this.#waiting.get(id) ?? new Set()
    this.#waiting.set(id, wakers)
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        signal.removeEventListener('abort', wake)
        wakers.delete(wake)
        if (wakers.size === 0 && this.#waiting.get(id) === wakers) this.#waiting.delete(id)
        resolve()
      }
      wakers.add(wake)
      signal.addEventListener('abort', wake)
      // In place first, looked at second: a change in between is not missed.
      void this.#lookAt([id])
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#waiting.get(id) ?? [])]) wake()
  }

  close(): void {
    this.#isClosed = true
    for (const id of [...this.#waiting.keys()]) this.wake(id)
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  async #lookAt(ids: readonly string[]): Promise<void> {
    let running: ReadonlySet<string> = new Set()
    try {
      running = await this.#look(ids)
    } catch {
      // Nobody can say: everybody looks for himself.
    }
    for (const id of ids) if (!running.has(id)) this.wake(id)
    void this.#poll()
  }

  async #poll(): Promise<void> {
    if (this.#isPolling) return
    this.#isPolling = true
    while (this.#waiting.size > 0) {
      await new Promise<void>((resolve) => systemClock.schedule(POLL_MS, resolve))
      const ids = [...this.#waiting.keys()]
      for (let at = 0; at < ids.length; at += LOOK_MAX) await this.#lookAt(ids.slice(at, at + LOOK_MAX))
    }
    this.#isPolling = false
  }
}
