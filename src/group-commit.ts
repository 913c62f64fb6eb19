import { OncekeyError } from './error.ts'

/** An operation that alone was at fault has its error for a reply; its batch mates have theirs. */
export type Reply<T> = T | OncekeyError

/** A batch of operations in one round trip: the replies come in the order of the operations. */
export type WriteBatch<Op, T> = (batch: readonly Op[]) => Promise<ReadonlyArray<Reply<T>>>

export interface GroupCommitOptions {
  /** Most operations in one batch. */
  readonly batchMax: number
  /** Most operations that may wait; one more is refused with `store-full`. */
  readonly queueMax: number
  /** Most batches under way at once. */
  readonly inFlightMax: number
}

/**
 * Shares the cost of a durable write. While a batch is being written, the next one gathers; when nothing is under way,
 * an operation is sent at once, so that a lone request waits for nobody.
 */
export class GroupCommit<Op, T> {
  readonly #write: WriteBatch<Op, T>
  readonly #options: GroupCommitOptions
  readonly #queue: Array<Waiting<Op, T>> = []
  #inFlight = 0
  #scheduled = false

  constructor(write: WriteBatch<Op, T>, options: GroupCommitOptions) {
    this.#write = write
    this.#options = options
  }

  submit(op: Op): Promise<T> {
    if (this.#queue.length >= this.#options.queueMax) {
      return Promise.reject(
        new OncekeyError(
          'store-full',
          `${this.#queue.length} operations already wait for the store; it is slower than what is asked of it`,
        ),
      )
    }
    return new Promise((resolve, reject) => {
      this.#queue.push({ op, resolve, reject })
      // What the same turn of the event loop submits goes together.
      if (!this.#scheduled && this.#inFlight < this.#options.inFlightMax) {
        this.#scheduled = true
        queueMicrotask(() => {
          this.#scheduled = false
          this.#flush()
        })
      }
    })
  }

  /** Resolves when everything submitted so far has its reply. */
  async drain(): Promise<void> {
    while (this.#queue.length > 0 || this.#inFlight > 0) {
      await new Promise<void>((resolve) => this.#drained.push(resolve))
    }
  }

  readonly #drained: Array<() => void> = []

  #flush(): void {
    while (this.#queue.length > 0 && this.#inFlight < this.#options.inFlightMax) {
      this.#send(this.#queue.splice(0, this.#options.batchMax))
    }
  }

  async #send(batch: ReadonlyArray<Waiting<Op, T>>): Promise<void> {
    this.#inFlight++
    try {
      const replies = await this.#write(batch.map(({ op }) => op))
      batch.forEach(({ resolve, reject }, i) => {
        const reply = replies[i] as Reply<T>
        if (reply instanceof OncekeyError) reject(reply)
        else resolve(reply)
      })
    } catch (error) {
      for (const { reject } of batch) reject(error)
    } finally {
      this.#inFlight--
      this.#flush()
      if (this.#queue.length === 0 && this.#inFlight === 0) for (const wake of this.#drained.splice(0)) wake()
    }
  }
}

interface Waiting<Op, T> {
  readonly op: Op
  readonly resolve: (reply: T) => void
  readonly reject: (error: unknown) => void
}
