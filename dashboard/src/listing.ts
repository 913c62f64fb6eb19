import { signal } from '@preact/signals'
import { type ApiError, get, type OperationView } from './api.ts'
import type { Spot } from './parts/virtual-list.tsx'
import { asApiError } from './polled.ts'

/** What one call brings at most. */
const PAGE = 1_000
/** A search that finds little goes on by itself for so many calls; then somebody must want it to. */
const CALLS_MAX = 20
const FOUND_ENOUGH = 50
/** As many are loaded before the first is shown: what is there as a whole can be shown newest first. */
const SORTED_MAX = 5_000
/** More than that nobody reads, and a tab should not hold. */
export const ROWS_MAX = 200_000

interface Page {
  readonly operations: OperationView[]
  readonly next: string | null
  readonly scanned: number
}

interface Progress {
  readonly rows: readonly OperationView[]
  readonly scanned: number
  readonly isNewestFirst?: boolean
  readonly state: 'loading' | 'more' | 'paused' | 'complete' | 'full'
  readonly error?: ApiError
}

/** The operations that a search finds, loaded from the store page by page as somebody wants to see them. */
export class Listing {
  readonly query: string
  readonly progress = signal<Progress>({ rows: [], scanned: 0, state: 'more' })
  readonly spot: Spot = { top: 0, selected: -1 }
  #after: string | null = ''
  #loading: Promise<void> | undefined
  readonly #abort = new AbortController()

  constructor(query: string) {
    this.query = query
  }

  /** Nobody wants to see it any more: the store is not asked on. */
  stop(): void {
    this.#abort.abort()
  }

  /** The next page, if there is one; a call during a call waits for that one. */
  more(): Promise<void> {
    this.#loading ??= this.#load().finally(() => {
      this.#loading = undefined
    })
    return this.#loading
  }

  async all(): Promise<void> {
    while (['more', 'loading'].includes(this.progress.peek().state)) {
      await this.more()
      if (this.progress.peek().error !== undefined) return
    }
  }

  /** The store lists by id, which is a hash. A part in any other order would only look like one. */
  async #begin(): Promise<void> {
    const rows: OperationView[] = []
    let scanned = 0
    this.progress.value = { rows: [], scanned, state: 'loading' }
    try {
      for (let call = 1; call <= CALLS_MAX && this.#after !== null && rows.length < SORTED_MAX; call++) {
        const page = await this.#page(this.#after)
        rows.push(...page.operations)
        scanned += page.scanned
        this.#after = page.next
        this.progress.value = { rows: [], scanned, state: 'loading' }
      }
    } catch (error) {
      this.#after = ''
      this.progress.value = { rows: [], scanned: 0, state: 'paused', error: asApiError(error) }
      return
    }
    const isNewestFirst = this.#after === null
    if (isNewestFirst) rows.sort((a, b) => b.createdAt - a.createdAt)
    const state = isNewestFirst ? 'complete' : rows.length < FOUND_ENOUGH ? 'paused' : 'more'
    this.progress.value = { rows, scanned, state, isNewestFirst }
  }

  async #load(): Promise<void> {
    if (this.#after === '') return this.#begin()
    const before = this.progress.peek().rows.length
    for (let call = 1; call <= CALLS_MAX && this.#after !== null; call++) {
      const { rows, scanned } = this.progress.peek()
      this.progress.value = { rows, scanned, state: 'loading' }
      try {
        const page = await this.#page(this.#after)
        const found = rows.concat(page.operations)
        const isFull = found.length >= ROWS_MAX
        this.#after = isFull ? null : page.next
        const state = isFull ? 'full' : page.next === null ? 'complete' : 'more'
        this.progress.value = { rows: found, scanned: scanned + page.scanned, state }
        if (found.length - before >= FOUND_ENOUGH) return
      } catch (error) {
        this.progress.value = { rows, scanned, state: 'paused', error: asApiError(error) }
        return
      }
    }
    if (this.#after !== null) this.progress.value = { ...this.progress.peek(), state: 'paused' }
  }

  #page(after: string): Promise<Page> {
    return get(`/api/operations?${this.query}&limit=${PAGE}&after=${encodeURIComponent(after)}`, this.#abort.signal)
  }
}
