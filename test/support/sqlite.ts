import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { onTestFinished } from 'vitest'
import type { Store } from '../../src/store.ts'
import type { SqliteStoreOptions } from '../../src/stores/sqlite.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'

export { answered, claimOf, HOUR_MS } from './requests.ts'

/** A database file in a directory of its own; both go when the test is over. */
export function tempFile(): string {
  const directory = mkdtempSync(join(tmpdir(), 'oncekey-'))
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }))
  return join(directory, 'once.db')
}

/** A store that is closed when the test is over. */
export function open(path: string, options: Partial<SqliteStoreOptions> = {}): Store {
  const store = sqliteStore({ path, sweepEveryMs: 0, ...options })
  onTestFinished(() => store.close())
  return store
}

/** A second connection, for looking at the file from outside. */
export function connect(path: string): DatabaseSync {
  const db = new DatabaseSync(path)
  onTestFinished(() => db.close())
  return db
}

const LOG_HEADER_BYTES = 32
const FRAME_HEADER_BYTES = 24

/** How many transactions SQLite has written to its log: every one ends with a frame that says so. */
export function commitsIn(path: string): number {
  const log = readFileSync(`${path}-wal`)
  const frameBytes = FRAME_HEADER_BYTES + log.readUInt32BE(8)
  const salts = log.subarray(16, 24)
  let commits = 0
  for (let at = LOG_HEADER_BYTES; at + frameBytes <= log.length; at += frameBytes) {
    if (!log.subarray(at + 8, at + 16).equals(salts)) break
    if (log.readUInt32BE(at + 4) > 0) commits += 1
  }
  return commits
}
