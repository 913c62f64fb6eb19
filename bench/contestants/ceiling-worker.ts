/** The other side of the SQLite ceiling: each message is one durable transaction of one tiny row for each key. */
import { DatabaseSync } from 'node:sqlite'
import { parentPort, workerData } from 'node:worker_threads'

const db = new DatabaseSync(String(workerData))
db.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL')
db.exec('CREATE TABLE ceiling (key TEXT PRIMARY KEY, state INTEGER NOT NULL) WITHOUT ROWID')
const put = db.prepare('INSERT INTO ceiling VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET state = state + 1')

parentPort?.on('message', (keys: readonly string[]) => {
  db.exec('BEGIN IMMEDIATE')
  for (const key of keys) put.run(key)
  db.exec('COMMIT')
  parentPort?.postMessage(keys.length)
})
