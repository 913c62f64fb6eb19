import type { Bucket } from './bucket.ts'

/**
 * Those who wait for a record to be no longer running. While anybody waits, one consumer of the bucket, without the
 * values, tells what was stored; a record that is awaited is then looked at. It is also looked at when its lease ends,
 * and every second: so a consumer that was lost with its server delays a waiter, and never loses it.
 */
export class Waiters {
  readonly #bucket: Bucket
  readonly #look: Look
  readonly #waiting = new Map<string, Awaited>()
  #watch: Promise<Watch> | undefined
  #cancelUnwatch: (() => void) | undefined

  constructor(bucket: Bucket, look: Look) {
    this.#bucket = bucket
    this.#look = look
  }

  async wait(id: string, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return
    const awaited = this.#awaited(id)
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        signal.removeEventListener('abort', wake)
        awaited.wakers.delete(wake)
        if (awaited.wakers.size === 0) this.#drop(id, awaited)
      }
      const wake = (): void => {
        leave()
        resolve()
      }
      awaited.wakers.add(wake)
      signal.addEventListener('abort', wake)
      // Watched first, looked at second: a change in between is not missed.
      this.#watched()
        .catch(() => {})
        .then(() => this.#check(id, awaited))
        .catch((error: unknown) => {
          if (awaited.wakers.has(wake)) leave()
          reject(error)
        })
    })
  }

  wake(id: string): void {
    for (const wake of [...(this.#waiting.get(id)?.wakers ?? [])]) wake()
  }

  wakeAll(): void {
    for (const id of [...this.#waiting.keys()]) this.wake(id)
  }

  async close(): Promise<void> {
    this.wakeAll()
    this.#cancelUnwatch?.()
    await this.#unwatch()
  }

  /** Looks until the record is seen as the watch saw it: the leader may be a moment behind the consumer's replica. */
  async #check(id: string, awaited: Awaited): Promise<void> {
    if (awaited.isBeingLookedAt) return
    awaited.isBeingLookedAt = true
    try {
      do {
        if (awaited.wakers.size === 0) return
        awaited.cancelLook?.()
        const { revision, leaseLeftMs } = await this.#look(id)
        if (leaseLeftMs <= 0) return this.wake(id)
        const isBehind = revision < awaited.seenRevision
        awaited.cancelLook = after(isBehind ? BEHIND_MS : Math.min(leaseLeftMs + 1, LOOK_EVERY_MS), () => {
          // A waiter may be woken for nothing: whatever failed here, it will meet when it asks.
          this.#check(id, awaited).catch(() => this.wake(id))
        })
        awaited.lookedAtRevision = revision
      } while (awaited.seenRevision > awaited.lookedAtRevision && awaited.looks++ < LOOKS_AT_ONCE_MAX)
      awaited.looks = 0
    } finally {
      awaited.isBeingLookedAt = false
      if (awaited.wakers.size === 0) awaited.cancelLook?.()
    }
  }

  #stored(id: string | undefined, revision: number): void {
    const awaited = id === undefined ? undefined : this.#waiting.get(id)
    if (id === undefined || awaited === undefined || revision <= awaited.seenRevision) return
    awaited.seenRevision = revision
    this.#check(id, awaited).catch(() => this.wake(id))
  }

  #awaited(id: string): Awaited {
    const awaited = this.#waiting.get(id) ?? new Awaited()
    this.#waiting.set(id, awaited)
    return awaited
  }

  #drop(id: string, awaited: Awaited): void {
    awaited.cancelLook?.()
    if (this.#waiting.get(id) === awaited) this.#waiting.delete(id)
    if (this.#waiting.size > 0) return
    this.#cancelUnwatch?.()
    this.#cancelUnwatch = after(WATCH_IDLE_MS, () => {
      if (this.#waiting.size === 0) void this.#unwatch()
    })
  }

  #watched(): Promise<Watch> {
    this.#watch ??= this.#open().catch((error: unknown) => {
      this.#watch = undefined
      throw error
    })
    return this.#watch
  }

  async #open(): Promise<Watch> {
    const { js, stream, subjects } = this.#bucket
    const options = { filter_subjects: subjects, deliver_policy: 'new', headers_only: true } as const
    const consumer = await js.consumers.getPushConsumer(stream, options)
    const watch = await consumer.consume({
      callback: ({ subject, seq }) => this.#stored(this.#bucket.idOf(subject), seq),
    })
    const gone = (): void => {
      this.#watch = undefined
    }
    watch.closed().then(gone, gone)
    return watch
  }

  async #unwatch(): Promise<void> {
    const watch = this.#watch
    this.#watch = undefined
    const closed = watch?.then((open) => open.close()).catch(() => {})
    // A connection that is down would close it when it is up again; whoever closes the store does not wait for that.
    await Promise.race([closed, new Promise<void>((resolve) => after(CLOSE_MS_MAX, resolve))])
  }
}

/** What the leader knows of the record now. `leaseLeftMs` 0: it is not running. */
type Look = (id: string) => Promise<{ readonly revision: number; readonly leaseLeftMs: number }>

interface Watch {
  close(): Promise<unknown>
}

class Awaited {
  readonly wakers = new Set<() => void>()
  isBeingLookedAt = false
  seenRevision = 0
  lookedAtRevision = 0
  looks = 0
  cancelLook: (() => void) | undefined
}

function after(delayMs: number, callback: () => void): () => void {
  const timer = setTimeout(callback, delayMs)
  timer.unref()
  return () => clearTimeout(timer)
}

const LOOK_EVERY_MS = 1_000
const BEHIND_MS = 5
const LOOKS_AT_ONCE_MAX = 3
const WATCH_IDLE_MS = 5_000
const CLOSE_MS_MAX = 1_000
