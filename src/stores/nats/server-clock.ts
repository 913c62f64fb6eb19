import type { Bucket } from './bucket.ts'

/**
 * The server's time, never ahead of it.
 *
 * NATS tells no time but the one at which it stored a message. So a message is stored and read back: at the moment its
 * acknowledgement came, the server's clock showed at least that message's time. From then on the local clock, which
 * only runs forward, counts; what it might run too fast is taken off. What is decided by this clock is decided late by
 * the time of a request and the drift, and never early.
 */
export class ServerClock {
  readonly #bucket: Bucket
  readonly #skewMs: () => Promise<number>
  #sample: Sample | undefined
  #next: Promise<Sample> | undefined
  #underWay: Promise<Sample> | undefined

  constructor(bucket: Bucket, skewMs: () => Promise<number>) {
    this.#bucket = bucket
    this.#skewMs = skewMs
  }

  /** Good enough to say in what state a record is. */
  async now(): Promise<number> {
    const isFresh = this.#sample !== undefined && performance.now() - this.#sample.localMs < SAMPLE_AGE_MS_MAX
    return nowBy(isFresh && this.#sample ? this.#sample : await this.#newSample())
  }

  /**
   * By a message that is stored after this call: good enough to take a record from its owner. A leader elected since the
   * last sample may have another clock.
   */
  async fresh(): Promise<number> {
    return nowBy(await this.#newSample())
  }

  /** Those who ask while a sample is under way share the next one: theirs must start after they asked. */
  #newSample(): Promise<Sample> {
    if (this.#underWay === undefined) return this.#start()
    this.#next ??= this.#underWay.then(
      () => this.#start(),
      () => this.#start(),
    )
    return this.#next
  }

  #start(): Promise<Sample> {
    this.#next = undefined
    const sample = this.#take()
    this.#underWay = sample
    const done = (): void => {
      if (this.#underWay === sample) this.#underWay = undefined
    }
    sample.then(done, done)
    return sample
  }

  async #take(): Promise<Sample> {
    const skewMs = await this.#skewMs()
    const revision = await this.#bucket.touch(CLOCK_KEY)
    const ackedMs = performance.now()
    const message = await this.#bucket.lastOfKey(CLOCK_KEY)
    // Somebody else's later message is as good, but it is only known to be older than this reading of it.
    const localMs = message?.seq === revision ? ackedMs : performance.now()
    this.#sample = { serverMs: (message?.time.getTime() ?? 0) - skewMs, localMs }
    return this.#sample
  }
}

interface Sample {
  readonly serverMs: number
  readonly localMs: number
}

function nowBy({ serverMs, localMs }: Sample): number {
  return Math.floor(serverMs + (performance.now() - localMs) * (1 - DRIFT_MAX))
}

const CLOCK_KEY = 'clock'
const SAMPLE_AGE_MS_MAX = 10_000
/** 500 ppm: what an undisciplined quartz may be off, several times over. */
const DRIFT_MAX = 0.0005
