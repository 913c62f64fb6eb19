import { type Collection, type Db, MongoServerError } from 'mongodb'
import { Spool } from './spool.ts'

export interface Trace {
  /** Made from the operation: another run of it writes the same document. */
  readonly _id: string
  /** The operation's id, by which it is metered. */
  readonly operation: string
  readonly organizationId: string
  readonly agentId: string
  readonly decision: string
  /** What the agent sent, to the letter. */
  readonly body: string
  readonly keySource: 'client' | 'auto' | 'none'
  readonly receivedAt: Date
}

export interface PipelineOptions {
  readonly db: Db
  readonly spoolFile: string
  readonly storeMsMax?: number
  readonly log?: (line: string) => void
}

/**
 * Where traces go: into MongoDB; and while that is away, into a file on this machine's disk, from where they are brought
 * to MongoDB when it is back, also after a restart. A trace is acknowledged when it is in one of the two.
 */
export class Pipeline {
  readonly #traces: Collection<Trace>
  readonly #spool: Spool<Trace>
  readonly #landMsMax: number
  readonly #log: (line: string) => void
  readonly #landed: Landed
  #retry: NodeJS.Timeout | undefined
  #flushing: Promise<void> | undefined
  #isClosed = false

  private constructor(options: PipelineOptions, spool: Spool<Trace>, landed: Landed) {
    const { db, storeMsMax = LAND_MS_MAX, log = console.error } = options
    this.#traces = db.collection<Trace>('traces')
    this.#spool = spool
    this.#landMsMax = storeMsMax
    this.#log = log
    this.#landed = landed
  }

  /** `landed` is called for every trace that is in MongoDB, at least once. */
  static async open(options: PipelineOptions, landed: Landed): Promise<Pipeline> {
    const spool = await Spool.open<Trace>(options.spoolFile, BUFFERED_MAX)
    const pipeline = new Pipeline(options, spool, landed)
    if (spool.size > 0) pipeline.#flushLater(0)
    return pipeline
  }

  /** `false`: it could be put nowhere. */
  async take(trace: Trace): Promise<boolean> {
    // While traces wait, all others go the same way: nobody tries a database for them that is known to be away.
    if (this.#retry === undefined) {
      try {
        await within(this.#landMsMax, this.#land(trace, 'request'))
        return true
      } catch (error) {
        this.#log(`traces go to the disk: ${(error as Error).message}`)
      }
    }
    const isTaken = await this.#spool.put(trace._id, trace)
    if (isTaken) this.#flushLater(FLUSH_EVERY_MS)
    return isTaken
  }

  get buffered(): number {
    return this.#spool.size
  }

  list(organizationId: string): Promise<Trace[]> {
    return this.#traces.find({ organizationId }).sort({ receivedAt: 1 }).limit(LIST_MAX).toArray()
  }

  async #land(trace: Trace, from: 'request' | 'disk'): Promise<void> {
    try {
      await this.#traces.insertOne(trace)
    } catch (error) {
      // Another run of the same operation was here before.
      if (!(error instanceof MongoServerError) || error.code !== DUPLICATE_KEY) throw error
    }
    await this.#landed(trace, from)
  }

  #flushLater(delayMs: number): void {
    if (this.#isClosed) return
    this.#retry ??= setTimeout(() => {
      this.#flushing = this.#flush()
    }, delayMs)
  }

  async #flush(): Promise<void> {
    const before = this.#spool.size
    try {
      await this.#spool.drain((trace) => this.#land(trace, 'disk'))
      this.#retry = undefined
      if (this.#spool.size > 0) this.#flushLater(FLUSH_EVERY_MS)
      this.#log(`${before} traces were brought from the disk to MongoDB`)
    } catch {
      this.#retry = undefined
      this.#flushLater(FLUSH_EVERY_MS)
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true
    clearTimeout(this.#retry)
    await this.#flushing
    await this.#spool.close()
  }
}

type Landed = (trace: Trace, from: 'request' | 'disk') => Promise<void>

async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`MongoDB did not take a trace within ${ms} ms`)), ms)
  })
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

const DUPLICATE_KEY = 11_000
const BUFFERED_MAX = 100_000
const LAND_MS_MAX = 250
const FLUSH_EVERY_MS = 250
const LIST_MAX = 1_000
