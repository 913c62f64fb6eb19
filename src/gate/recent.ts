/** The last so many, and of those as many as fit into so many bytes. No entry moves when another comes. */
export class Recent<K, V> {
  readonly #entries = new Map<K, Entry<K, V>>()
  /** The entries in the order of their coming, in a ring: number n is at n modulo `max`. */
  readonly #ring: Array<Entry<K, V> | undefined> = []
  readonly #max: number
  readonly #bytesMax: number
  #first = 0
  #next = 0
  #bytes = 0

  constructor(max: number, bytesMax: number) {
    this.#max = max
    this.#bytesMax = bytesMax
  }

  get bytes(): number {
    return this.#bytes
  }

  get(key: K): V | undefined {
    return this.#entries.get(key)?.value
  }

  /** `bytes`: what the value takes, as well as that can be told. */
  put(key: K, value: V, bytes: number): void {
    const known = this.#entries.get(key)
    if (known) {
      this.#bytes += bytes - known.bytes
      known.value = value
      known.bytes = bytes
    } else {
      if (this.#next - this.#first >= this.#max) this.#dropFirst()
      const entry = { key, value, bytes }
      this.#entries.set(key, entry)
      this.#ring[this.#next++ % this.#max] = entry
      this.#bytes += bytes
    }
    while (this.#bytes > this.#bytesMax && this.#first < this.#next) this.#dropFirst()
  }

  #dropFirst(): void {
    const at = this.#first++ % this.#max
    const entry = this.#ring[at]
    this.#ring[at] = undefined
    if (entry === undefined) return
    this.#entries.delete(entry.key)
    this.#bytes -= entry.bytes
  }
}

interface Entry<K, V> {
  readonly key: K
  value: V
  bytes: number
}
