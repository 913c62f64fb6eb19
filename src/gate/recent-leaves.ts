import { keyedHash } from './keyed-hash.ts'

/** What is kept of one body: which names it has, as a number, and two words for each value. */
export interface Leaves {
  readonly shape: number
  readonly hashes: Uint32Array
}

/** 4 MiB: of 60,000 operations with six values each, of which about two thirds are found. */
const RING_WORDS = 1024 * 1024
const SLOTS = 64 * 1024
/** Two words of the id's hash, two of the shape, one for how many follow. */
const HEAD_WORDS = 5
const WORD = 0x1_0000_0000

/**
 * The leaves of the last operations, as numbers in one ring. Every request puts an entry here, and as objects they would
 * live just long enough for the garbage collector to move each of them twice. An id has one slot, shared with others:
 * whoever came last is found there, unless the ring has come round since.
 */
export class RecentLeaves {
  readonly #ring = new Uint32Array(RING_WORDS)
  /** Of each slot's entry, 1 + the number of words that were written before it. 0: there is none. */
  readonly #starts = new Float64Array(SLOTS)
  readonly #id = new Uint32Array(2)
  #written = 0

  get bytes(): number {
    return this.#ring.byteLength + this.#starts.byteLength
  }

  /** The hashes are the first `count` words of `words`. */
  put(id: string, shape: number, words: Uint32Array, count: number): void {
    const ring = this.#ring
    const length = HEAD_WORDS + count
    let at = this.#written % RING_WORDS
    if (at + length > RING_WORDS) {
      this.#written += RING_WORDS - at
      at = 0
    }
    this.#starts[this.#slotOf(id)] = this.#written + 1
    ring[at] = this.#id[0] ?? 0
    ring[at + 1] = this.#id[1] ?? 0
    ring[at + 2] = shape % WORD
    ring[at + 3] = shape / WORD
    ring[at + 4] = count
    for (let word = 0; word < count; word++) ring[at + HEAD_WORDS + word] = words[word] ?? 0
    this.#written += length
  }

  get(id: string): Leaves | undefined {
    const start = (this.#starts[this.#slotOf(id)] ?? 0) - 1
    if (start < 0 || this.#written - start > RING_WORDS) return undefined
    const at = start % RING_WORDS
    const [low, high, shapeLow = 0, shapeHigh = 0, count = 0] = this.#ring.subarray(at, at + HEAD_WORDS)
    if (low !== this.#id[0] || high !== this.#id[1]) return undefined
    const hashes = this.#ring.slice(at + HEAD_WORDS, at + HEAD_WORDS + count)
    return { shape: shapeHigh * WORD + shapeLow, hashes }
  }

  /** Leaves the hash of the id in `#id`. */
  #slotOf(id: string): number {
    keyedHash(id, this.#id, 0)
    return (this.#id[0] ?? 0) % SLOTS
  }
}
