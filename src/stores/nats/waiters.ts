import { AwaitedRecords } from '../../awaited-records.ts'
import { systemClock } from '../../clock.ts'
import type { Bucket } from './bucket.ts'

const LOOK_EVERY_MS = 1_000
const BEHIND_MS = 5
const WATCH_IDLE_MS = 5_000
const CLOSE_MS_MAX = 1_000

/** What the leader knows of the record now. `leaseLeftMs` 0: it is not running. */
type Look = (id: string) => Promise<{ readonly revision: number; readonly leaseLeftMs: number }>

/**
 * While anybody waits, one consumer of the bucket, without the values, tells what was stored; a record that is awaited
 * is then looked at. It is also looked at when its lease ends, and every second: so a consumer that was lost with its
 * server delays a waiter, and never loses it.
 */
export class Waiters extends AwaitedRecords {
  readonly #bucket: Bucket
  readonly #look: Look
  /** The last revision of awaited records that the consumer told of. */
  readonly #told = new Map<string, number>()

  constructor(bucket: Bucket, look: Look) {
    super({
      look: (id) => this.#nextLookMs(id),
      subscription: {
        open: (onLost) => {
          const consuming = this.#consume(onLost)
          return { ready: consuming, close: async () => (await consuming).close() }
        },
        lingerMs: WATCH_IDLE_MS,
        pauseMs: { failed: 0, lost: 0 },
      },
    })
    this.#bucket = bucket
    this.#look = look
  }

  override async wait(id: string, signal: AbortSignal): Promise<void> {
    try {
      await super.wait(id, signal)
    } finally {
      if (!this.has(id)) this.#told.delete(id)
    }
  }

  /** A connection that is down would close the consumer when it is up again; whoever closes the store does not wait. */
  override async close(): Promise<void> {
    await Promise.race([super.close(), new Promise<void>((resolve) => systemClock.schedule(CLOSE_MS_MAX, resolve))])
  }

  /** Soon, until the record is seen as the consumer saw it: the leader may be a moment behind the consumer's replica. */
  async #nextLookMs(id: string): Promise<number> {
    const { revision, leaseLeftMs } = await this.#look(id)
    if (leaseLeftMs <= 0) return 0
    return revision < (this.#told.get(id) ?? 0) ? BEHIND_MS : Math.min(leaseLeftMs + 1, LOOK_EVERY_MS)
  }

  async #consume(onLost: () => void): Promise<{ close(): Promise<unknown> }> {
    const { js, stream, subjects } = this.#bucket
    const options = { filter_subjects: subjects, deliver_policy: 'new', headers_only: true } as const
    const consumer = await js.consumers.getPushConsumer(stream, options)
    const messages = await consumer.consume({
      callback: ({ subject, seq }) => this.#stored(this.#bucket.idOf(subject), seq),
    })
    messages.closed().then(onLost, onLost)
    return messages
  }

  #stored(id: string | undefined, revision: number): void {
    if (id === undefined || !this.has(id)) return
    this.#told.set(id, revision)
    this.lookAt(id)
  }
}
