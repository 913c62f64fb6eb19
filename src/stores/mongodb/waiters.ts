import { systemClock } from '../../clock.ts'
import type { MongodbChangeStream } from './client.ts'

/** How often the awaited records are looked at, all in one command, where the server cannot push. */
const POLL_MS = 25
/** How long the change stream is kept when nobody waits any more. */
const STREAM_IDLE_MS = 10_000
/** After a change stream failed, polling serves for this long before another is tried. */
const STREAM_RETRY_MS = 60_000

/** All that can end a wait: an update of outcome or lease, and a removal. New records and their bodies are not sent. */
export const CHANGES: readonly object[] = [
  {
    $match: {
      $or: [
        { operationType: { $in: ['delete', 'replace'] } },
        { 'updateDescription.updatedFields.outcome': { $exists: true } },
        { 'updateDescription.updatedFields.leaseUntil': { $exists: true } },
      ],
    },
  },
  { $project: { operationType: 1, documentKey: 1 } },
]

export interface WaiterParts {
  /** Which of these records are running, and for how many more ms. */
  readonly look: (ids: readonly string[]) => Promise<ReadonlyMap<string, number>>
  readonly watch: () => MongodbChangeStream
}

/**
 * Those who wait for a record to be no longer running. What this store changes wakes them at once; other processes'
 * changes come by one change stream, shared by all, that is open only while somebody waits. Until it is heard from, and
 * on a server that has none (it is not a replica set), the records are polled.
 */
export class Waiters {
  readonly #parts: WaiterParts
  readonly #waiting = new Map<string, Awaited>()
  #stream: MongodbChangeStream | undefined
  #isHeard = false
  #watchNotBefore = 0
  #isPolling = false
  #cancelIdle: (() => void) | undefined
  #isClosed = false

  constructor(parts: WaiterParts) {
    this.#parts = parts
  }

  /** How a change of another process is noticed now. */
  get mode(): 'push' | 'poll' {
    return this.#isHeard ? 'push' : 'poll'
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted || this.#isClosed) return
    this.#cancelIdle?.()
    const awaited = this.#waiting.get(id) ?? new Awaited()
    this.#waiting.set(id, awaited)
    this.#openStream()
    await new Promise<void>((resolve) => {
      const wake = (): void => {
        signal.removeEventListener('abort', wake)
        awaited.wakers.delete(wake)
        if (awaited.wakers.size === 0) this.#drop(id, awaited)
        resolve()
      }
      awaited.wakers.add(wake)
      signal.addEventListener('abort', wake)
      // In place first, looked at second: a change in between is not missed.
      if (awaited.wakers.size === 1) void this.#look([id])
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#waiting.get(id)?.wakers ?? [])]) wake()
  }

  wakeAll(): void {
    for (const id of [...this.#waiting.keys()]) this.wake(id)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    this.wakeAll()
    await this.#endStream()
  }

  /** A waiter may be woken for nothing: whatever failed here, it will meet when it asks. */
  async #look(ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return
    let running: ReadonlyMap<string, number>
    try {
      running = await this.#parts.look(ids)
    } catch {
      for (const id of ids) this.wake(id)
      return
    }
    for (const id of ids) {
      const leftMs = running.get(id)
      const awaited = this.#waiting.get(id)
      if (leftMs === undefined) this.wake(id)
      else if (awaited !== undefined) {
        // The lease may lapse with nobody writing anything.
        awaited.cancelLook?.()
        awaited.cancelLook = systemClock.schedule(Math.min(leftMs + 1, LOOK_MS_MAX), () => void this.#look([id]))
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

  #openStream(): void {
    if (this.#stream || this.#isClosed || performance.now() < this.#watchNotBefore) return
    const stream = this.#parts.watch()
    this.#stream = stream
    // The first token comes with the reply that opened the stream: from that moment on nothing is missed.
    stream.on('resumeTokenChanged', () => {
      if (this.#isHeard || this.#stream !== stream) return
      this.#isHeard = true
      void this.#look([...this.#waiting.keys()])
      if (this.#waiting.size === 0) this.#planIdle()
    })
    stream.on('change', (change: Change) => {
      const id = change.documentKey?._id
      if (id !== undefined && this.#waiting.has(id)) void this.#look([id])
    })
    const fail = (): void => {
      if (this.#stream !== stream) return
      this.#watchNotBefore = performance.now() + STREAM_RETRY_MS
      void this.#endStream()
    }
    stream.on('error', fail)
    stream.on('close', fail)
    stream.on('end', fail)
  }

  /** Nobody can say what was missed: everybody is looked at, and polled from now on. */
  async #endStream(): Promise<void> {
    this.#cancelIdle?.()
    const stream = this.#stream
    this.#stream = undefined
    this.#isHeard = false
    void this.#look([...this.#waiting.keys()])
    await stream?.close().catch(() => {})
  }

  #planIdle(): void {
    this.#cancelIdle?.()
    this.#cancelIdle = systemClock.schedule(STREAM_IDLE_MS, () => {
      if (this.#waiting.size === 0) void this.#endStream()
    })
  }

  #drop(id: string, awaited: Awaited): void {
    awaited.cancelLook?.()
    if (this.#waiting.get(id) === awaited) this.#waiting.delete(id)
    if (this.#waiting.size === 0 && this.#stream !== undefined) this.#planIdle()
  }
}

/** A timer's longest, nearly: 20 days. A longer lease is looked at again then. */
const LOOK_MS_MAX = 20 * 24 * 3_600_000

interface Change {
  readonly documentKey?: { readonly _id?: string }
}

class Awaited {
  readonly wakers = new Set<() => void>()
  cancelLook: (() => void) | undefined
}
