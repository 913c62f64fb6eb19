import type { DatabaseSync } from 'node:sqlite'
import { OncekeyError } from '../../error.ts'
import { faultOf, isBusy, isHandleGood } from './faults.ts'
import { Records } from './records.ts'
import { openDatabase, rollback } from './schema.ts'
import type { ClaimFields, Reply, Row, SettleFields, Stamp, WorkerSettings } from './wire.ts'

/** How long a transaction waits for its turn, in this process and against others, before it is refused. */
const TURN_MS_MAX = 10_000
const BUSY_PAUSE_MS = 2
const QUEUE_MAX = 1_000

/** What the work of a transaction leaves to be recorded with it. */
export interface Kept {
  readonly fields: SettleFields
  readonly body: Uint8Array | null
}

/** How a transaction ended: a row says that the work did not run. */
export type TransactionReply = 'committed' | 'rolled-back' | Row

/**
 * Transactions in which records and the application's own rows commit together, on a connection of their own. It lives
 * in this thread, because the application's statements do; SQLite has one writer at a time, so they take turns, and
 * every other writer of the file waits as long as one of them is open.
 */
export class Transactions {
  readonly #settings: WorkerSettings
  readonly #now: () => Stamp
  #open: { readonly db: DatabaseSync; readonly records: Records } | undefined
  #last: Promise<unknown> = Promise.resolve()
  #waiting = 0

  constructor(settings: WorkerSettings, now: () => Stamp) {
    this.#settings = settings
    this.#now = now
  }

  async run(
    id: string,
    claim: ClaimFields,
    work: (db: DatabaseSync, attempt: number) => Promise<Kept | undefined>,
  ): Promise<TransactionReply> {
    if (this.#waiting >= QUEUE_MAX) {
      throw new OncekeyError(
        'store-full',
        `${this.#waiting} transactions already wait for ${this.#settings.path}. Nothing ran.`,
      )
    }
    this.#waiting++
    const turn = this.#last.then(() => this.#inTurn(id, claim, work))
    this.#last = turn.catch(() => {})
    try {
      return await turn
    } finally {
      this.#waiting--
    }
  }

  async close(): Promise<void> {
    await this.#last
    this.#open?.db.close()
    this.#open = undefined
  }

  async #inTurn(
    id: string,
    claim: ClaimFields,
    work: (db: DatabaseSync, attempt: number) => Promise<Kept | undefined>,
  ): Promise<TransactionReply> {
    const { db, records } = await this.#begin()
    let isWorking = false
    try {
      const reply = records.write(['claim', null, id, claim], this.#time(), null)
      if (typeof reply !== 'number') {
        rollback(db)
        return reply as Row
      }
      isWorking = true
      const kept = await work(db, reply)
      isWorking = false
      if (kept === undefined) {
        rollback(db)
        return 'rolled-back'
      }
      this.#settle(records, id, claim[0], kept)
      db.exec('COMMIT')
      return 'committed'
    } catch (error) {
      rollback(db)
      // What the work threw is the application's own, and goes on as it is.
      throw isWorking ? error : this.#failure(error)
    }
  }

  #settle(records: Records, id: string, token: string, { fields, body }: Kept): void {
    const settled: Reply = records.write(['settle', null, id, token, fields], this.#time(), body)
    if (settled === 1) return
    throw new OncekeyError(
      'store-unavailable',
      'The record of this transaction was removed by the transaction itself. Nothing was committed.',
    )
  }

  /** Waits for the write lock without holding up the event loop. */
  async #begin(): Promise<{ readonly db: DatabaseSync; readonly records: Records }> {
    const deadline = performance.now() + TURN_MS_MAX
    for (;;) {
      try {
        this.#open ??= this.#connect()
        this.#open.db.exec('BEGIN IMMEDIATE')
        return this.#open
      } catch (error) {
        if (!isBusy(error) || performance.now() >= deadline) throw this.#failure(error)
      }
      await new Promise((resolve) => setTimeout(resolve, BUSY_PAUSE_MS))
    }
  }

  #connect(): { readonly db: DatabaseSync; readonly records: Records } {
    const { path, synchronous } = this.#settings
    const db = openDatabase(path, synchronous)
    return { db, records: new Records(db) }
  }

  #time(): number {
    return this.#now() ?? Date.now()
  }

  #failure(error: unknown): OncekeyError {
    if (error instanceof OncekeyError) return error
    if (!isHandleGood(error)) {
      this.#open?.db.close()
      this.#open = undefined
    }
    const { fault, message, cause } = faultOf(error, this.#settings.path)
    return new OncekeyError(fault, message, { cause })
  }
}
