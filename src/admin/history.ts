import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { OncekeyEvent } from '../events.ts'

/** What this process has seen, in bounded memory: the story of each recent operation, rates, and the last events. */
export interface SeenEvent {
  /** Counts up by one; what a stream was cut off at. */
  readonly seq: number
  readonly at: number
  readonly type: string
  readonly id: string
  readonly contract?: string
  readonly store?: string
  readonly labels?: Readonly<Record<string, string>>
  readonly status?: number
  readonly detail?: string
  readonly changes?: readonly Change[]
}

/** Which part of a request differs from the one that had the key before. Values are hashes, never themselves. */
export interface Change {
  readonly path: string
  readonly was: string | null
  readonly is: string | null
}

export const SERIES = ['executed', 'replayed', 'conflict', 'inFlight', 'unknown', 'refused', 'unprotected'] as const
export type SeriesName = (typeof SERIES)[number]

export interface Rates {
  readonly stepMs: number
  readonly from: number
  readonly series: Readonly<Record<SeriesName, number[]>>
}

const SERIES_OF: Readonly<Record<string, SeriesName>> = {
  claimed: 'executed',
  takeover: 'executed',
  replayed: 'replayed',
  conflict: 'conflict',
  'in-flight': 'inFlight',
  unknown: 'unknown',
  expired: 'unknown',
  'not-kept': 'unknown',
  refused: 'refused',
  shed: 'refused',
  unprotected: 'unprotected',
}

const EVENTS_MAX = 5_000
const OPERATIONS_MAX = 20_000
const ENTRIES_PER_OPERATION_MAX = 100
/** Conflicts whose differences are remembered: up to some 20 KB each. */
const EXPLAINED_MAX = 1_000
/** One bucket a second, for a quarter of an hour. */
const STEP_MS = 1_000
const BUCKETS = 900

export class History {
  readonly counters: Map<string, number> = new Map()
  readonly #events: SeenEvent[] = []
  readonly #operations = new Map<string, SeenEvent[]>()
  readonly #explained: Array<{ readonly id: string; readonly seq: number }> = []
  readonly #buckets = new Map<number, Record<SeriesName, number>>()
  readonly #listeners = new Set<(event: SeenEvent) => void>()
  readonly #now: () => number
  #seq = 0

  constructor(now: () => number = Date.now) {
    this.#now = now
    subscribe('oncekey', this.#onEngine)
    subscribe('oncekey:gate', this.#onGate)
  }

  close(): void {
    unsubscribe('oncekey', this.#onEngine)
    unsubscribe('oncekey:gate', this.#onGate)
    this.#listeners.clear()
  }

  /** Oldest first. */
  of(id: string): readonly SeenEvent[] {
    return this.#operations.get(id) ?? []
  }

  /** What came after `seq`, as far as it is still there. */
  since(seq: number): readonly SeenEvent[] {
    const missed = this.#seq - seq
    return missed <= 0 ? [] : this.#events.slice(-missed)
  }

  get lastSeq(): number {
    return this.#seq
  }

  listen(listener: (event: SeenEvent) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** What an operator did, which no engine tells. */
  note(type: string, id: string, detail?: string): void {
    this.#add({ type, id, ...(detail !== undefined && { detail }) })
  }

  /** Whoever removes a person's traces from the store does not want them told from here. */
  redact(id: string): void {
    const bare = ({ labels: _labels, changes: _changes, detail: _detail, ...event }: SeenEvent): SeenEvent => event
    const story = this.#operations.get(id)
    if (story !== undefined) this.#operations.set(id, story.map(bare))
    for (const [i, event] of this.#events.entries()) if (event.id === id) this.#events[i] = bare(event)
  }

  rates(windowMs: number): Rates {
    const count = Math.min(BUCKETS, Math.max(1, Math.ceil(windowMs / STEP_MS)))
    const last = Math.floor(this.#now() / STEP_MS)
    const first = last - count + 1
    const series = Object.fromEntries(
      SERIES.map((name) => [name, Array.from({ length: count }, (_, i) => this.#buckets.get(first + i)?.[name] ?? 0)]),
    ) as Record<SeriesName, number[]>
    return { stepMs: STEP_MS, from: first * STEP_MS, series }
  }

  readonly #onEngine = (message: unknown): void => {
    const { type, id, contract, store, labels, status, error } = message as OncekeyEvent
    this.#add({
      type,
      id,
      contract,
      store,
      ...(labels !== undefined && { labels }),
      ...(status !== undefined && { status }),
      ...(error !== undefined && { detail: textOf(error) }),
    })
  }

  /** What the gate tells beside the engine: what it shed, what broke, what shadow mode would have done. */
  readonly #onGate = (message: unknown): void => {
    const { type, id = '', changes, labels, status, ...rest } = message as GateMessage
    if (type === 'conflict-paths') return this.#explain(id, changes ?? [])
    const detail = Object.entries(rest)
      .map(([name, value]) => `${name} ${textOf(value)}`)
      .join(', ')
    this.#add({
      type,
      id,
      // Not in the detail: keys and principals are hidden where labels are shown.
      ...(labels !== undefined && { labels }),
      ...(status !== undefined && { status }),
      ...(detail !== '' && { detail }),
    })
  }

  /** The conflict itself came a moment before. */
  #explain(id: string, changes: readonly Change[]): void {
    const story = this.#operations.get(id)
    const at = story?.findLastIndex(({ type }) => type === 'conflict') ?? -1
    const conflict = story?.[at]
    if (story === undefined || conflict === undefined) return
    story[at] = { ...conflict, changes }
    this.#explained.push({ id, seq: conflict.seq })
    const oldest = this.#explained.length > EXPLAINED_MAX ? this.#explained.shift() : undefined
    if (oldest !== undefined) this.#unexplain(oldest.id, oldest.seq)
  }

  #unexplain(id: string, seq: number): void {
    const story = this.#operations.get(id)
    const at = story?.findIndex((event) => event.seq === seq) ?? -1
    if (story === undefined || at < 0) return
    const { changes: _, ...conflict } = story[at] as SeenEvent
    story[at] = conflict
  }

  #add(seen: Omit<SeenEvent, 'seq' | 'at'>): void {
    const event: SeenEvent = { seq: ++this.#seq, at: this.#now(), ...seen }
    this.counters.set(event.type, (this.counters.get(event.type) ?? 0) + 1)
    this.#events.push(event)
    if (this.#events.length > 2 * EVENTS_MAX) this.#events.splice(0, EVENTS_MAX)
    if (event.id !== '') this.#remember(event)
    this.#count(event)
    for (const listener of this.#listeners) listener(event)
  }

  #remember(event: SeenEvent): void {
    const story = this.#operations.get(event.id) ?? []
    // Put at the end again: the operation that was quiet for longest is forgotten first.
    this.#operations.delete(event.id)
    this.#operations.set(event.id, story)
    story.push(event)
    // The beginning is worth more than the middle of a retry storm.
    if (story.length > ENTRIES_PER_OPERATION_MAX) story.splice(ENTRIES_PER_OPERATION_MAX / 2, 1)
    if (this.#operations.size <= OPERATIONS_MAX) return
    for (const oldest of this.#operations.keys()) {
      this.#operations.delete(oldest)
      break
    }
  }

  #count({ type, at }: SeenEvent): void {
    const name = SERIES_OF[type]
    if (name === undefined) return
    const key = Math.floor(at / STEP_MS)
    let bucket = this.#buckets.get(key)
    if (bucket === undefined) {
      bucket = Object.fromEntries(SERIES.map((series) => [series, 0])) as Record<SeriesName, number>
      this.#buckets.set(key, bucket)
      for (const old of this.#buckets.keys()) {
        if (old > key - BUCKETS) break
        this.#buckets.delete(old)
      }
    }
    bucket[name] += 1
  }
}

/** As much of what the gate says as has a meaning here; the rest is shown as it comes. */
interface GateMessage {
  readonly type: string
  readonly id?: string
  readonly labels?: Readonly<Record<string, string>>
  readonly status?: number
  readonly changes?: readonly Change[]
}

const TEXT_CHARS_MAX = 300

function textOf(value: unknown): string {
  if (typeof value === 'number' && !Number.isInteger(value)) return value.toFixed(1)
  const text = value instanceof Error ? value.message : typeof value === 'string' ? value : JSON.stringify(value)
  return String(text).slice(0, TEXT_CHARS_MAX)
}
