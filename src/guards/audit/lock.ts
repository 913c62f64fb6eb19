import { DatabaseSync } from 'node:sqlite'
import { OncekeyError } from '../../error.ts'

/**
 * One writer for each log, in whatever process. The lock is the operating system's own, by way of SQLite, in a file beside
 * the log: it ends with the process, however that ends. A file with a process id in it would outlive a kill -9, and in a
 * container the next process has the same id again.
 */
export function lock(file: string): () => void {
  const path = `${file}.lock`
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    // Two steps: the id of the process is committed, to be read by others, and then the lock is held without an end.
    db.exec(`BEGIN IMMEDIATE; PRAGMA user_version = ${process.pid}; COMMIT; BEGIN IMMEDIATE`)
    return () => db.close()
  } catch (cause) {
    const holder = (cause as { errcode?: number }).errcode === SQLITE_BUSY ? holderOf(db) : undefined
    db.close()
    if (holder === undefined) throw cause
    throw new OncekeyError(
      'store-unavailable',
      `The audit log ${file} is open for writing in process ${holder} already. A chain has one writer: end that one, or give each process a log of its own.`,
      { cause },
    )
  }
}

const SQLITE_BUSY = 5

function holderOf(db: DatabaseSync): string {
  try {
    return String(db.prepare('PRAGMA user_version').get()?.user_version)
  } catch {
    // It is just writing its id down.
    return 'another'
  }
}
