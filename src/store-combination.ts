import type { Clock } from './clock.ts'
import { OncekeyError } from './error.ts'
import type { Answer, Awaitable, RecordState, Store } from './store.ts'
import { isPromise } from './store-access.ts'
import { UnderWay } from './under-way.ts'

/** What the stores that are made of stores have in common. */

/** The calls under way in a combination: refused after close, and finished before it is done. */
export class Calls {
  readonly #name: string
  readonly #clock: Clock
  readonly #underWay = new UnderWay()
  #closing: Promise<void> | undefined

  constructor(name: string, clock: Clock) {
    this.#name = name
    this.#clock = clock
  }

  assertOpen(): void {
    if (this.#closing === undefined) return
    throw new OncekeyError('store-closed', `This store, ${this.#name}, was closed. Open another.`)
  }

  /** A wait that close cuts short has come to its end like every other. */
  async wait(waiting: () => Promise<void> | undefined): Promise<void> {
    this.assertOpen()
    try {
      await waiting()
    } catch (error) {
      if (this.#closing === undefined) throw error
    }
  }

  run<T>(call: () => Promise<T>): Promise<T> {
    this.assertOpen()
    return this.alsoAwait(call())
  }

  /** Work behind an answer that was given: close waits for it, and nobody else does. */
  alsoAwait<T>(work: Promise<T>): Promise<T> {
    return this.#underWay.during(work)
  }

  /** The stores were handed over, so they are closed, too; a store never closes its own caller's connection. */
  close(stores: readonly Store[], last: () => Promise<unknown> = async () => {}): Promise<void> {
    this.#closing ??= (async () => {
      // A store that hangs must not keep a process from ending.
      const enough = Promise.withResolvers<void>()
      const cancel = this.#clock.schedule(CLOSE_MS_MAX, enough.resolve)
      const finish = async () => {
        await this.#underWay.idle()
        await last()
      }
      await Promise.race([finish(), enough.promise])
      cancel()
      await Promise.all(stores.map((store) => store.close()))
    })()
    return this.#closing
  }
}

/** A reply that does not come in time counts as one that failed; whether the call arrived is not known. */
export function within<T>(clock: Clock, msMax: number, name: string, call: () => Awaitable<T>): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const reply = call()
    if (!isPromise(reply)) return resolve(reply)
    const cancel = clock.schedule(msMax, () => {
      reject(
        new OncekeyError(
          'store-unavailable',
          `${name} gave no reply within ${msMax} ms. Check that it can be reached.`,
        ),
      )
    })
    reply.then(resolve, reject).finally(cancel)
  })
}

/** The store cannot be reached. Anything else that it throws is an answer: full, closed, misused. */
export function isAway(error: unknown): boolean {
  return !(error instanceof OncekeyError) || error.code === 'store-unavailable'
}

export type Settled = Extract<RecordState, { state: 'settled' }>

/** For work that goes on after the caller may have used its buffers for something else. */
export function copyOf({ status, headers, body }: Answer): Answer {
  return {
    status,
    headers: headers.map(([name, value]) => [name, value]),
    body: body === null ? null : new Uint8Array(body),
  }
}

export function assertBound(field: string, value: number, least = 1): void {
  if (Number.isSafeInteger(value) && value >= least) return
  throw new OncekeyError('config-invalid', `${field} is ${value}; it must be a whole number of at least ${least}.`)
}

const CLOSE_MS_MAX = 5_000
