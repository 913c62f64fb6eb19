import type { Clock } from './clock.ts'
import type { Store, StoredRecord } from './store.ts'
import type { StoreAccess } from './store-access.ts'

/** `changed`: the record is no longer running (`undefined`: it is absent). `timeout`: it still is. `full`: too many wait. */
export type Waited =
  | { readonly state: 'changed'; readonly record: StoredRecord | undefined }
  | { readonly state: 'timeout' | 'full' }

/**
 * The duplicates in this process that wait for somebody's answer. All that wait for one operation share one watch of
 * the store: a thousand of them cost what one costs.
 */
export class Waiters {
  readonly #store: Store
  readonly #access: StoreAccess
  readonly #clock: Clock
  readonly #watches = new Map<string, Watch>()
  #count = 0

  constructor(store: Store, access: StoreAccess, clock: Clock) {
    this.#store = store
    this.#access = access
    this.#clock = clock
  }

  async wait(id: string, untilMs: number): Promise<Waited> {
    if (this.#count >= WAITERS_MAX) return { state: 'full' }
    const leftMs = untilMs - this.#clock.now()
    if (leftMs <= 0) return { state: 'timeout' }
    this.#count++
    const watch = this.#watches.get(id) ?? this.#watch(id)
    watch.waiters++
    let cancel: (() => void) | undefined
    const timeout = new Promise<Waited>((resolve) => {
      cancel = this.#clock.schedule(leftMs, () => resolve({ state: 'timeout' }))
    })
    try {
      return await Promise.race([watch.changed, timeout])
    } catch {
      // A store that fails while it is watched is no reason to claim: the wait just ends early.
      return { state: 'timeout' }
    } finally {
      cancel?.()
      this.#count--
      if (--watch.waiters === 0) {
        watch.ended.abort()
        if (this.#watches.get(id) === watch) this.#watches.delete(id)
      }
    }
  }

  #watch(id: string): Watch {
    const ended = new AbortController()
    const changed = this.#untilChanged(id, ended.signal)
    const watch: Watch = { waiters: 0, ended, changed }
    // Whoever comes from then on starts a new watch: this one has seen its change.
    const over = () => void (this.#watches.get(id) === watch && this.#watches.delete(id))
    changed.then(over, over)
    this.#watches.set(id, watch)
    return watch
  }

  async #untilChanged(id: string, signal: AbortSignal): Promise<Waited> {
    let pollMs = POLL_MS_MIN
    for (;;) {
      await this.#nudge(id, this.#store.waitFor ? PUSH_POLL_MS : pollMs, signal)
      if (signal.aborted) return { state: 'timeout' }
      pollMs = Math.min(pollMs * 2, POLL_MS_MAX)
      const record = await this.#access.read(id)
      if (record?.state === 'running') continue
      return { state: 'changed', record }
    }
  }

  /** Until the store pushes, or it is time to look anyway: a push that was lost must not cost the whole wait. */
  async #nudge(id: string, pollMs: number, signal: AbortSignal): Promise<void> {
    const pushed = new AbortController()
    const stop = () => pushed.abort()
    signal.addEventListener('abort', stop, { once: true })
    let cancel: (() => void) | undefined
    const poll = new Promise<void>((resolve) => {
      cancel = this.#clock.schedule(pollMs, resolve)
      pushed.signal.addEventListener('abort', () => resolve(), { once: true })
    })
    try {
      await (this.#store.waitFor ? Promise.race([this.#store.waitFor(id, pushed.signal), poll]) : poll)
    } finally {
      cancel?.()
      signal.removeEventListener('abort', stop)
      pushed.abort()
    }
  }
}

interface Watch {
  waiters: number
  readonly ended: AbortController
  readonly changed: Promise<Waited>
}

const WAITERS_MAX = 10_000
const POLL_MS_MIN = 10
const POLL_MS_MAX = 500
/** A push can be lost with its connection; this is what that costs a waiter at most. */
const PUSH_POLL_MS = 250
