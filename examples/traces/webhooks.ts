import { type Collection, type Db, MongoServerError } from 'mongodb'
import { systemClock } from '../../src/clock.ts'
import type { Clock } from '../../src/index.ts'
import type { Trace } from './pipeline.ts'

const MINUTE_MS = 60_000

/** After a first attempt that failed: one more after each of these. */
export const RETRY_SCHEDULE_MS: readonly number[] = [
  MINUTE_MS,
  5 * MINUTE_MS,
  30 * MINUTE_MS,
  120 * MINUTE_MS,
  480 * MINUTE_MS,
]

export interface Delivery {
  /** The trace's id: one webhook for each, however often its ingestion ran. */
  readonly _id: string
  readonly url: string
  readonly event: 'trace.created'
  readonly trace: { readonly traceId: string; readonly organizationId: string; readonly agentId: string }
  readonly state: 'waiting' | 'delivered' | 'given-up'
  readonly attempts: number
  /** By the injected clock. */
  readonly dueAt: number
  readonly lastError?: string
}

export interface WebhookOptions {
  readonly webhookUrls?: ReadonlyMap<string, string>
  readonly clock?: Clock
}

/**
 * Tells organizations of their new traces, at least once each, on a schedule of its own. It starts where ingestion has
 * ended: nothing that happens here can reach the trace or its recorded answer.
 */
export class Webhooks {
  readonly #deliveries: Collection<Delivery>
  readonly #urls: ReadonlyMap<string, string>
  readonly #clock: Clock
  #cancel: (() => void) | undefined
  #working: Promise<void> | undefined
  #isClosed = false

  constructor(db: Db, { webhookUrls = new Map(), clock = systemClock }: WebhookOptions) {
    this.#deliveries = db.collection<Delivery>('webhooks')
    this.#urls = webhookUrls
    this.#clock = clock
  }

  /** Goes on with what an earlier process has left. */
  async start(): Promise<void> {
    await this.#deliveries.createIndex({ state: 1, dueAt: 1 })
    this.#wake(0)
  }

  async enqueue({ _id, organizationId, agentId }: Trace): Promise<void> {
    const url = this.#urls.get(organizationId)
    if (url === undefined) return
    const trace = { traceId: _id, organizationId, agentId }
    const dueAt = this.#clock.now()
    try {
      await this.#deliveries.insertOne({
        _id,
        url,
        event: 'trace.created',
        trace,
        state: 'waiting',
        attempts: 0,
        dueAt,
      })
    } catch (error) {
      if (!(error instanceof MongoServerError) || error.code !== DUPLICATE_KEY) throw error
    }
    this.#wake(0)
  }

  close(): void {
    this.#isClosed = true
    this.#cancel?.()
  }

  #wake(delayMs: number): void {
    if (this.#isClosed) return
    this.#cancel?.()
    this.#cancel = this.#clock.schedule(delayMs, () => {
      this.#working = (this.#working ?? Promise.resolve()).then(() => this.#deliverDue())
    })
  }

  async #deliverDue(): Promise<void> {
    try {
      for (let i = 0; i < BATCH_MAX && !this.#isClosed; i++) {
        const now = this.#clock.now()
        // Taken for a while, so that two instances do not both send it; should this one die, it is due again after that.
        const due = await this.#deliveries.findOneAndUpdate(
          { state: 'waiting', dueAt: { $lte: now } },
          { $set: { dueAt: now + TAKEN_MS } },
          { sort: { dueAt: 1 } },
        )
        if (!due) break
        await this.#attempt(due)
      }
      const next = await this.#deliveries.findOne({ state: 'waiting' }, { sort: { dueAt: 1 } })
      if (next) this.#wake(Math.max(0, next.dueAt - this.#clock.now()))
    } catch {
      // MongoDB is away: the queue is there when it is back.
      this.#wake(STORE_RETRY_MS)
    }
  }

  async #attempt({ _id, url, event, trace, attempts: before }: Delivery): Promise<void> {
    const attempts = before + 1
    const lastError = await send(url, _id, { event, trace })
    if (lastError === undefined) {
      await this.#deliveries.updateOne({ _id }, { $set: { state: 'delivered', attempts }, $unset: { lastError: '' } })
      return
    }
    const delayMs = RETRY_SCHEDULE_MS[before]
    const next =
      delayMs === undefined
        ? { state: 'given-up' as const, attempts, lastError }
        : { attempts, lastError, dueAt: this.#clock.now() + delayMs }
    await this.#deliveries.updateOne({ _id }, { $set: next })
  }
}

/** What went wrong, or nothing. */
async function send(url: string, id: string, body: object): Promise<string | undefined> {
  try {
    const response = await fetch(url, {
      method: 'POST',
      // The receiver tells a second delivery of one event by this.
      headers: { 'content-type': 'application/json', 'webhook-id': id },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(SEND_MS_MAX),
    })
    await response.arrayBuffer()
    return response.ok ? undefined : `status ${response.status}`
  } catch (error) {
    return String(error)
  }
}

const DUPLICATE_KEY = 11_000
const BATCH_MAX = 100
const TAKEN_MS = 60_000
const SEND_MS_MAX = 5_000
const STORE_RETRY_MS = 1_000
