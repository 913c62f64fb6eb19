import type { DatabaseSync } from 'node:sqlite'
import { isBusy, SqliteFault } from './faults.ts'

/**
 * Everything of ours in the file is called oncekey_…, and its version is in a table of its own: the file may be the
 * application's, with its own tables and its own `user_version`, so that both can commit in one transaction.
 *
 * Step n takes a file from version n to n + 1. A step that was released is never edited: files out there have run it.
 *
 * The table is in the order of arrival and the id has an index of its own: a claim then writes to the table's last page
 * and to one page of a small index, and its settle to the same last pages again. Keyed by the id itself, a random hash,
 * every claim and every settle would each write a page of their own, and cost twice as much. The index over `gone_at`
 * costs about 5 % and lets the sweeper find what is gone without looking at the rest; the one over `expires_at` holds only
 * records that outlive their answer.
 *
 * `id` is a BLOB of 32 bytes for the hashes that the engine makes.
 */
export const MIGRATIONS: readonly string[] = [
  `CREATE TABLE oncekey_record (
     seq         INTEGER PRIMARY KEY,
     id          ANY     NOT NULL UNIQUE,
     token       TEXT    NOT NULL,
     fingerprint TEXT    NOT NULL,
     attempt     INTEGER NOT NULL,
     created_at  INTEGER NOT NULL,
     lease_until INTEGER NOT NULL,
     gone_at     INTEGER NOT NULL,
     outcome     TEXT,
     expires_at  INTEGER,
     status      INTEGER,
     labels      TEXT,
     headers     TEXT,
     body        BLOB
   ) STRICT;
   CREATE INDEX oncekey_record_gone_at ON oncekey_record (gone_at);
   CREATE INDEX oncekey_record_expires_at ON oncekey_record (expires_at) WHERE headers IS NOT NULL AND expires_at < gone_at;`,

  // For operators at a database shell: states by name, times as text, no bodies.
  `CREATE VIEW oncekey_operation AS
     SELECT
       CASE typeof(id) WHEN 'blob' THEN lower(hex(id)) ELSE id END AS id,
       CASE
         WHEN gone_at <= now THEN 'absent'
         WHEN outcome IS NULL THEN iif(lease_until > now, 'running', 'unknown')
         ELSE iif(expires_at > now, 'settled', 'expired')
       END AS state,
       outcome, status, attempt, labels, fingerprint, length(body) AS body_bytes,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created,
       strftime('%Y-%m-%dT%H:%M:%fZ', lease_until / 1000.0, 'unixepoch') AS leased_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch') AS expires,
       strftime('%Y-%m-%dT%H:%M:%fZ', gone_at / 1000.0, 'unixepoch') AS gone
     FROM oncekey_record, (SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS now);`,
]

/** How long one batch, or the opening of the file, waits for other processes to let go of it. */
const BUSY_WAIT_MS_MAX = 10_000
/** Between two attempts, at random up to this: many processes that wait for one lock must not march in step. */
const BUSY_PAUSE_MS_MAX = 1
/** A checkpoint runs in the commit that brings the log to this many pages (32 MB). */
const CHECKPOINT_PAGES = 8_000
/** After a burst the log shrinks to this again. */
const LOG_BYTES_KEPT = 64 * 1024 * 1024
/** A larger one costs more than it saves: SQLite walks through it at every commit. */
const CACHE_KIB = 8 * 1024

/** Makes or migrates the schema; refuses a newer one before it changes anything. */
function prepareDatabase(db: DatabaseSync, path: string, synchronous: 'full' | 'normal'): void {
  if (retryWhileBusy(() => versionInOneSnapshot(db, path)) < MIGRATIONS.length) {
    retryWhileBusy(() => db.exec('PRAGMA journal_mode = WAL'))
    retryWhileBusy(() => db.exec('BEGIN IMMEDIATE'))
    try {
      migrate(db, path)
      db.exec('COMMIT')
    } catch (error) {
      rollback(db)
      throw error
    }
  }
  retryWhileBusy(() => db.exec('PRAGMA journal_mode = WAL'))
  db.exec(`PRAGMA synchronous = ${synchronous}`)
  db.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES}`)
  db.exec(`PRAGMA journal_size_limit = ${LOG_BYTES_KEPT}`)
  db.exec(`PRAGMA cache_size = -${CACHE_KIB}`)
}

/** Inside the transaction the version is read again: of fifty processes that open a new file, one migrates it. */
function migrate(db: DatabaseSync, path: string): void {
  for (const step of MIGRATIONS.slice(versionOf(db, path))) db.exec(step)
  db.exec('CREATE TABLE IF NOT EXISTS oncekey_schema (version INTEGER NOT NULL) STRICT')
  db.exec(`DELETE FROM oncekey_schema; INSERT INTO oncekey_schema VALUES (${MIGRATIONS.length})`)
}

/** Between two reads without a transaction, another process could make the schema. */
function versionInOneSnapshot(db: DatabaseSync, path: string): number {
  db.exec('BEGIN')
  try {
    return versionOf(db, path)
  } finally {
    rollback(db)
  }
}

function versionOf(db: DatabaseSync, path: string): number {
  if (numberOf(db, "SELECT count(*) FROM sqlite_schema WHERE name = 'oncekey_schema'") === 0) return 0
  const version = numberOf(db, 'SELECT version FROM oncekey_schema')
  if (version > MIGRATIONS.length) {
    throw new SqliteFault(
      'store-incompatible',
      `The SQLite database ${path} was written by a newer oncekey (schema ${version}; this one knows up to ` +
        `${MIGRATIONS.length}). It was left as it is; update oncekey in this process too.`,
    )
  }
  return version
}

/**
 * SQLite's own busy handler sleeps up to 100 ms at a time and is not asked in every case (a switch to WAL, a recovery),
 * so the waiting is done here: short, at random, and bounded.
 */
export function retryWhileBusy<T>(attempt: () => T): T {
  const deadline = performance.now() + BUSY_WAIT_MS_MAX
  for (;;) {
    try {
      return attempt()
    } catch (error) {
      if (!isBusy(error) || performance.now() >= deadline) throw error
      Atomics.wait(NEVER_NOTIFIED, 0, 0, Math.random() * BUSY_PAUSE_MS_MAX)
    }
  }
}

const NEVER_NOTIFIED = new Int32Array(new SharedArrayBuffer(4))

export function rollback(db: DatabaseSync): void {
  try {
    db.exec('ROLLBACK')
  } catch {
    // SQLite has rolled back already: it does so by itself for a full disk or an I/O error.
  }
}

/** Loaded by hand, for loading it prints a warning on some releases of Node; other warnings still come through. */
export function openDatabase(path: string, synchronous: 'full' | 'normal'): DatabaseSync {
  const db = new (sqlite().DatabaseSync)(path)
  try {
    prepareDatabase(db, path, synchronous)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

function sqlite(): typeof import('node:sqlite') {
  const { emitWarning } = process
  process.emitWarning = () => {}
  try {
    return process.getBuiltinModule('node:sqlite')
  } finally {
    process.emitWarning = emitWarning
  }
}

function numberOf(db: DatabaseSync, sql: string): number {
  return Number(Object.values(db.prepare(sql).get() ?? {})[0])
}
