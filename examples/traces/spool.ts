import { existsSync } from 'node:fs'
import { type FileHandle, open, readFile } from 'node:fs/promises'

/** A bounded buffer on disk: one line of JSON for each entry, each on the disk before it is acknowledged. */
export class Spool<T> {
  readonly #file: FileHandle
  readonly #max: number
  readonly #entries: Map<string, Entry<T>>
  #writing: Promise<unknown> = Promise.resolve()

  private constructor(file: FileHandle, max: number, entries: Map<string, Entry<T>>) {
    this.#file = file
    this.#max = max
    this.#entries = entries
  }

  /** With what an earlier process has left in it. */
  static async open<T>(path: string, max: number): Promise<Spool<T>> {
    const entries = new Map<string, Entry<T>>()
    const text = existsSync(path) ? await readFile(path, 'utf8') : ''
    for (const line of text.split('\n')) {
      const entry = parsed<T>(line)
      if (entry) entries.set(entry[0], { entry: entry[1], written: Promise.resolve() })
    }
    const file = await open(path, 'a')
    // What a cut-off line was is not acknowledged; it must not spoil the next one.
    if (text !== '' && !text.endsWith('\n')) await file.appendFile('\n')
    return new Spool(file, max, entries)
  }

  get size(): number {
    return this.#entries.size
  }

  /** `false`: it is full. An entry that is there already is not put again. */
  async put(id: string, entry: T): Promise<boolean> {
    const known = this.#entries.get(id)
    if (known) {
      await known.written
      return true
    }
    if (this.#entries.size >= this.#max) return false
    const written = this.#writing.then(() => this.#append(id, entry))
    this.#entries.set(id, { entry, written })
    this.#writing = written.catch(() => this.#entries.delete(id))
    await written
    return true
  }

  async #append(id: string, entry: T): Promise<void> {
    await this.#file.appendFile(`${JSON.stringify([id, entry])}\n`)
    await this.#file.datasync()
  }

  /** Takes every entry out in order, and forgets it when `take` is done. Throws on the first that fails. */
  async drain(take: (entry: T) => Promise<void>): Promise<void> {
    for (const [id, { entry }] of this.#entries) {
      await take(entry)
      this.#entries.delete(id)
    }
    this.#writing = this.#writing.then(async () => {
      if (this.#entries.size === 0) await this.#file.truncate(0)
    })
    await this.#writing
  }

  async close(): Promise<void> {
    await this.#writing
    await this.#file.close()
  }
}

interface Entry<T> {
  readonly entry: T
  readonly written: Promise<void>
}

function parsed<T>(line: string): [string, T] | undefined {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}
