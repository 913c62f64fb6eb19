import { type FileHandle, open } from 'node:fs/promises'
import { type AuditBreak, type AuditEntry, follow, isEntry, LINE_BYTES_MAX } from './chain.ts'

export interface VerifyOptions {
  /**
   * A hash that the chain must contain: the log's head as somebody noted it elsewhere, at whatever time. Without it the
   * loss of the last lines cannot be seen, nor a chain that was written anew from some line on: see `verifyAudit`.
   */
  readonly head?: string
  /** Called after every few megabytes. */
  readonly onProgress?: (readBytes: number, totalBytes: number) => void
}

export type AuditVerdict =
  | { readonly state: 'intact'; readonly lines: number; readonly head: string; readonly time: string }
  /** `lines` were read and found whole before the break. */
  | ({ readonly state: 'broken'; readonly lines: number } & AuditBreak)

/**
 * Reads an audit log from its first line to its last and finds the first broken link: a changed byte, a line that was
 * removed, inserted, moved or replaced. Takes a few hundred kilobytes of memory, however long the log is. It changes
 * nothing, and the log may be in use.
 *
 * What a chain alone cannot show: that its last lines are gone, or that somebody who can write the file has made all
 * lines anew from one on. Both change the head. So note the head (`log.head`) where the writer of the file cannot
 * reach it, from time to time, and give it here.
 */
export async function verifyAudit(file: string, options: VerifyOptions = {}): Promise<AuditVerdict> {
  const handle = await open(file, 'r')
  try {
    let hasHead = options.head === undefined
    const walked = await walk(handle, options, (entry) => {
      hasHead ||= entry.hash === options.head
    })
    const { lines, last, broken } = walked
    if (broken) return { state: 'broken', lines, ...broken }
    if (last === undefined) return { state: 'broken', lines, line: 1, problem: 'empty', reason: 'the file is empty' }
    if (hasHead) return { state: 'intact', lines, head: last.hash, time: last.time }
    const reason = `every link is whole, but the head ${options.head} is not in the chain: lines after seq ${last.seq} were cut off, or lines before it were written anew`
    return { state: 'broken', lines, line: lines + 1, problem: 'truncated', reason }
  } finally {
    await handle.close()
  }
}

interface Walked {
  /** How many lines are whole and linked. */
  readonly lines: number
  /** Where they end in the file. */
  readonly endBytes: number
  readonly last: AuditEntry | undefined
  readonly broken: AuditBreak | undefined
  /** What stands after the last line feed. */
  readonly torn: Buffer
}

/** Where an entry stands in the file. */
export interface Place {
  readonly offset: number
  readonly bytes: number
}

/** Follows the chain to its end, or to its first broken link. */
export async function walk(
  handle: FileHandle,
  { onProgress }: Pick<VerifyOptions, 'onProgress'>,
  visit: (entry: AuditEntry, place: Place) => void,
): Promise<Walked> {
  const { size } = await handle.stat()
  let [lines, endBytes, nextProgress] = [0, 0, PROGRESS_BYTES]
  let last: AuditEntry | undefined
  for await (const { bytes, offset, isWhole } of linesOf(handle, size)) {
    const broken = (rest: Omit<AuditBreak, 'line'>, torn: Buffer = EMPTY): Walked => {
      return { lines, endBytes, last, torn, broken: { line: lines + 1, ...rest } }
    }
    if (bytes.length > LINE_BYTES_MAX) return broken({ problem: 'changed', reason: TOO_LONG })
    if (!isWhole) return broken({ problem: 'torn', reason: TORN }, bytes)
    const followed = follow(last, bytes)
    if (!isEntry(followed)) return broken(followed)
    visit(followed, { offset, bytes: bytes.length })
    last = followed
    lines++
    endBytes = offset + bytes.length + 1
    if (endBytes < nextProgress) continue
    onProgress?.(endBytes, size)
    nextProgress = endBytes + PROGRESS_BYTES
  }
  return { lines, endBytes, last, torn: EMPTY, broken: undefined }
}

const EMPTY = Buffer.alloc(0)
const TOO_LONG = `it is longer than ${LINE_BYTES_MAX} bytes, which no line of a log is`
const TORN =
  'it has no end: the writer was stopped in the middle of it, or the file was cut. Opening the log repairs it and notes that; if the log is in use, verify again'

export interface Line {
  readonly bytes: Buffer
  readonly offset: number
  /** It ends with a line feed, which is not in `bytes`. */
  readonly isWhole: boolean
}

/** The lines of a file up to `endBytes`. Of a line that is too long only the beginning is given, and nothing after it. */
export async function* linesOf(handle: FileHandle, endBytes: number): AsyncGenerator<Line> {
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES)
  let carry: Buffer = EMPTY
  let offset = 0
  for (let at = 0; at < endBytes; ) {
    const { bytesRead } = await handle.read(chunk, 0, Math.min(CHUNK_BYTES, endBytes - at), at)
    if (bytesRead === 0) break
    at += bytesRead
    const bytes = Buffer.concat([carry, chunk.subarray(0, bytesRead)])
    let start = 0
    for (let end = bytes.indexOf(LINE_FEED); end !== -1; end = bytes.indexOf(LINE_FEED, start)) {
      yield { bytes: bytes.subarray(start, end), offset, isWhole: true }
      offset += end + 1 - start
      start = end + 1
    }
    carry = bytes.subarray(start)
    if (carry.length > LINE_BYTES_MAX) break
  }
  if (carry.length > 0) yield { bytes: carry, offset, isWhole: false }
}

const LINE_FEED = 0x0a
const CHUNK_BYTES = 256 * 1024
const PROGRESS_BYTES = 16 * 1024 * 1024
