import { hash, randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Clock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import { type AuditEntry, type Content, FORMAT, follow, isEntry, link } from './chain.ts'
import { lock } from './lock.ts'
import { linesOf, type Place, walk } from './verify.ts'

/** The file of one log, open for its one writer. What `append` has answered is on the disk. */
export class ChainFile {
  readonly file: string
  readonly #handle: FileHandle
  readonly #clock: Clock
  readonly #visit: Visit
  readonly #unlock: () => void
  #last: AuditEntry | undefined
  #endBytes = 0
  #failure: unknown

  private constructor(file: string, handle: FileHandle, clock: Clock, visit: Visit, unlock: () => void) {
    this.file = file
    this.#handle = handle
    this.#clock = clock
    this.#visit = visit
    this.#unlock = unlock
  }

  /** `visit` is told of every entry, those that are there and those to come. */
  static async open(file: string, clock: Clock, visit: Visit): Promise<ChainFile> {
    const unlock = lock(file)
    let handle: FileHandle | undefined
    try {
      handle = await open(file, constants.O_RDWR | constants.O_CREAT, FILE_MODE)
      const chain = new ChainFile(file, handle, clock, visit, unlock)
      await chain.#resume()
      return chain
    } catch (error) {
      await handle?.close()
      unlock()
      throw error
    }
  }

  get last(): AuditEntry {
    // Never without: `open` writes the first line of a new log.
    return this.#last as AuditEntry
  }

  /** Adds the lines in one write and one sync. All of them are on the disk, or none is acknowledged. */
  async append(contents: readonly Content[]): Promise<readonly AuditEntry[]> {
    if (this.#failure !== undefined) throw unwritable(this.file, this.#failure)
    if (contents.length === 0) return []
    const time = new Date(this.#clock.now()).toISOString()
    const entries: AuditEntry[] = []
    const places: Place[] = []
    const lines: Buffer[] = []
    let last = this.#last
    let offset = this.#endBytes
    for (const content of contents) {
      const { entry, line } = link(last, time, content)
      const bytes = Buffer.from(`${line}\n`)
      entries.push(entry)
      places.push({ offset, bytes: bytes.length - 1 })
      lines.push(bytes)
      last = entry
      offset += bytes.length
    }
    await this.#write(Buffer.concat(lines))
    this.#last = last
    this.#endBytes = offset
    entries.forEach((entry, i) => {
      this.#visit(entry, places[i] as Place)
    })
    return entries
  }

  async read({ offset, bytes }: Place): Promise<AuditEntry> {
    const buffer = Buffer.alloc(bytes)
    await this.#handle.read(buffer, 0, bytes, offset)
    return JSON.parse(buffer.toString('utf8'))
  }

  async find(requestHash: string, limit: number): Promise<readonly AuditEntry[]> {
    const found: AuditEntry[] = []
    for await (const { bytes } of linesOf(this.#handle, this.#endBytes)) {
      if (found.length >= limit) break
      if (!bytes.includes(requestHash)) continue
      const entry: AuditEntry = JSON.parse(bytes.toString('utf8'))
      if (entry.request_hash === requestHash) found.push(entry)
    }
    return found
  }

  async close(): Promise<void> {
    await this.#handle.close()
    this.#unlock()
  }

  async #write(bytes: Buffer): Promise<void> {
    try {
      for (let done = 0; done < bytes.length; ) {
        const { bytesWritten } = await this.#handle.write(bytes, done, bytes.length - done, this.#endBytes + done)
        done += bytesWritten
      }
    } catch (error) {
      // A full disk: what did fit is taken away again, and the log goes on when there is room.
      await this.#handle.truncate(this.#endBytes).catch((final) => {
        this.#failure = final
      })
      throw unwritable(this.file, error)
    }
    try {
      await this.#handle.datasync()
    } catch (error) {
      // Nobody can say what is on the disk now, and a second sync would not tell: only reading it anew does.
      this.#failure = error
      throw unwritable(this.file, error)
    }
  }

  /** Finds the end of the chain, mends what a crash has left there, or begins a new one. */
  async #resume(): Promise<void> {
    const { last, endBytes, broken, torn } = await walk(this.#handle, {}, this.#visit)
    this.#last = last
    this.#endBytes = endBytes
    if (broken && broken.problem !== 'torn') {
      throw new OncekeyError(
        'store-incompatible',
        `The audit log ${this.file} is broken at line ${broken.line}: ${broken.reason}. Nothing was changed or written. Keep the file for those who look into it, and begin a new log under another name.`,
      )
    }
    const isCut = torn.length > 0 && !(await this.#mend(torn))
    if (this.#last === undefined) await this.#begin()
    if (isCut) await this.#note(torn)
  }

  async #begin(): Promise<void> {
    await this.append([{ ...OWN, kind: 'genesis', data: { format: FORMAT, log: randomUUID() } }])
    // The name of a new file is in its directory, which has a sync of its own.
    const directory = await open(dirname(this.file), 'r')
    await directory.sync().finally(() => directory.close())
  }

  /** A line that is whole but for its line feed is kept. `false`: it was not, and is gone. */
  async #mend(torn: Buffer): Promise<boolean> {
    const entry = follow(this.#last, torn)
    if (isEntry(entry)) {
      const place = { offset: this.#endBytes, bytes: torn.length }
      await this.#write(Buffer.concat([torn, Buffer.from('\n')]))
      this.#last = entry
      this.#endBytes += torn.length + 1
      this.#visit(entry, place)
      return true
    }
    const text = torn.toString('latin1')
    if (this.#last === undefined && !text.startsWith(BEGINNING) && !BEGINNING.startsWith(text)) {
      throw new OncekeyError(
        'store-incompatible',
        `${this.file} is not an audit log: its first line is another one. Nothing was changed; name another file.`,
      )
    }
    await this.#handle.truncate(this.#endBytes)
    return false
  }

  async #note(cut: Buffer): Promise<void> {
    const data = { cut_bytes: cut.length, cut_sha256: hash('sha256', cut, 'hex') }
    await this.append([{ ...OWN, kind: 'repair', data }])
  }
}

type Visit = (entry: AuditEntry, place: Place) => void

/** It may name people and payments: nobody else on the machine reads it unless its owner says so. */
const FILE_MODE = 0o600
const OWN = { operation: '', requestHash: '' } as const
/** How the first line of every log begins. */
const BEGINNING = `{"data":{"format":"${FORMAT}"`

function unwritable(file: string, cause: unknown): OncekeyError {
  const why = cause instanceof Error ? cause.message : String(cause)
  return new OncekeyError(
    'store-unavailable',
    `The audit log ${file} cannot be written: ${why}. Nothing was acknowledged. See to the disk; if this goes on, open the log anew.`,
    { cause },
  )
}
