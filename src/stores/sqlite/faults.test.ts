import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import type { Worker } from 'node:worker_threads'
import { describe, expect, it, onTestFinished } from 'vitest'
import { answered, claimOf, connect, open, tempFile } from '../../../test/support/sqlite.ts'
import { faultOf } from './faults.ts'
import { MIGRATIONS } from './schema.ts'

const refusal = (code: string, message: RegExp) => ({
  name: 'OncekeyError',
  code,
  message: expect.stringMatching(message),
})

describe('a file that cannot be used', () => {
  it('a missing directory is named, and the store works as soon as it is there', async () => {
    const path = join(dirname(tempFile()), 'missing', 'once.db')
    const store = open(path)
    await expect(store.claim(claimOf('a'))).rejects.toMatchObject(refusal('store-unavailable', /directory is missing/))
    mkdirSync(dirname(path))
    expect(await store.claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
  })

  it('a directory is not a file', async () => {
    const store = open(dirname(tempFile()))
    await expect(store.read('a')).rejects.toMatchObject(refusal('store-unavailable', /is a directory itself/))
  })

  it('something else than a database is refused and left as it is', async () => {
    const path = tempFile()
    const text = 'These are the minutes of the meeting. '.repeat(200)
    writeFileSync(path, text)
    await expect(open(path).claim(claimOf('a'))).rejects.toMatchObject(
      refusal('store-incompatible', /not a SQLite database/),
    )
    expect(readFileSync(path, 'utf8')).toBe(text)
  })

  it('the database of an application is shared: ours stands beside its tables, and its version is its own', async () => {
    const path = tempFile()
    connect(path).exec(
      'CREATE TABLE invoice (id INTEGER PRIMARY KEY); PRAGMA user_version = 7; PRAGMA application_id = 5',
    )
    expect(await open(path).claim(claimOf('a'))).toMatchObject({ state: 'acquired' })
    const db = connect(path)
    const names = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").all()
    expect(names.map(({ name }) => name)).toEqual(['invoice', 'oncekey_record', 'oncekey_schema'])
    expect(db.prepare('PRAGMA user_version').get()).toEqual({ user_version: 7 })
    expect(db.prepare('PRAGMA application_id').get()).toEqual({ application_id: 5 })
  })

  it('a damaged file is reported as such', async () => {
    const path = tempFile()
    const store = open(path)
    await Promise.all(Array.from({ length: 500 }, (_, index) => store.claim(claimOf(`id-${index}`))))
    await store.close()
    const bytes = readFileSync(path)
    writeFileSync(path, bytes.fill(0x5a, 4_096))
    await expect(open(path).claim(claimOf('a'))).rejects.toMatchObject(refusal('store-unavailable', /is damaged/))
  })

  it('a full disk is reported as such', () => {
    const path = tempFile()
    const db = connect(path)
    db.exec('CREATE TABLE t (b); PRAGMA max_page_count = 4')
    let error: unknown
    try {
      db.exec('INSERT INTO t VALUES (zeroblob(100000))')
    } catch (thrown) {
      error = thrown
    }
    expect(faultOf(error, path)).toMatchObject({
      fault: 'store-unavailable',
      message: expect.stringMatching(/disk is full/),
    })
  })

  it.each([
    ['deleted', (path: string) => rmSync(path)],
    ['moved', (path: string) => renameSync(path, `${path}.old`)],
  ])('a file that was %s is noticed before anything is acknowledged on it', async (_how, remove) => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('a'))
    remove(path)
    await expect(store.claim(claimOf('b'))).rejects.toMatchObject(
      refusal('store-unavailable', /moved, replaced or deleted/),
    )
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
    expect(connect(path).prepare('SELECT count(*) AS n FROM oncekey_record').get()).toEqual({ n: 1 })
  })
})

describe('versions of the schema', () => {
  /** Version 1 as it was: frozen here, whatever the source says today. */
  const VERSION_1 = `
    CREATE TABLE oncekey_record (seq INTEGER PRIMARY KEY, id ANY NOT NULL UNIQUE, token TEXT NOT NULL, fingerprint TEXT NOT NULL,
      attempt INTEGER NOT NULL, created_at INTEGER NOT NULL, lease_until INTEGER NOT NULL, gone_at INTEGER NOT NULL,
      outcome TEXT, expires_at INTEGER, status INTEGER, labels TEXT, headers TEXT, body BLOB) STRICT;
    CREATE INDEX oncekey_record_gone_at ON oncekey_record (gone_at);
    CREATE INDEX oncekey_record_expires_at ON oncekey_record (expires_at) WHERE headers IS NOT NULL AND expires_at < gone_at;
    INSERT INTO oncekey_record VALUES (1, x'${'ab'.repeat(32)}', 'old', 'print', 1, 1000, 2000, 9000000000000, 'committed',
      9000000000000, 201, '{"route":"/pay"}', '[["a","b"]]', x'00ff');
    CREATE TABLE oncekey_schema (version INTEGER NOT NULL) STRICT;
    INSERT INTO oncekey_schema VALUES (1);`

  it('an older file is brought up to date by one of many that open it, and keeps its records', async () => {
    const path = tempFile()
    connect(path).exec(VERSION_1)
    const stores = Array.from({ length: 8 }, () => open(path))
    const records = await Promise.all(stores.map((store) => store.read('ab'.repeat(32))))
    for (const record of records) {
      expect(record).toMatchObject({
        id: 'ab'.repeat(32),
        state: 'settled',
        labels: { route: '/pay' },
        answer: { status: 201, headers: [['a', 'b']], body: new Uint8Array([0x00, 0xff]) },
      })
    }
    const db = connect(path)
    expect(db.prepare('SELECT version FROM oncekey_schema').all()).toEqual([{ version: MIGRATIONS.length }])
    expect(db.prepare('SELECT id, state, status FROM oncekey_operation').all()).toEqual([
      { id: 'ab'.repeat(32), state: 'settled', status: 201 },
    ])
  })

  it('of many that make a new file at once, one makes the schema', async () => {
    const path = tempFile()
    const stores = Array.from({ length: 16 }, () => open(path))
    const claims = await Promise.all(stores.map((store, index) => store.claim(claimOf('a', { token: `${index}` }))))
    expect(claims.map((claim) => claim.state).sort()).toEqual(['acquired', ...Array(15).fill('running')])
  })

  it('a newer file is refused and left as it is', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('a'))
    await store.close()
    connect(path).exec(`UPDATE oncekey_schema SET version = ${MIGRATIONS.length + 1}`)
    await expect(open(path).claim(claimOf('b'))).rejects.toMatchObject(refusal('store-incompatible', /newer oncekey/))
    expect(connect(path).prepare('SELECT count(*) AS n FROM oncekey_record').get()).toEqual({ n: 1 })
  })

  it('keeps its promises on disk: a write-ahead log', async () => {
    const path = tempFile()
    await open(path).claim(claimOf('a'))
    const db = connect(path)
    expect(db.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' })
  })
})

describe('the worker', () => {
  function workers(): Worker[] {
    const seen: Worker[] = []
    const onWorker = (message: unknown): void => {
      seen.push((message as { worker: Worker }).worker)
    }
    subscribe('worker_threads', onWorker)
    onTestFinished(() => {
      unsubscribe('worker_threads', onWorker)
    })
    return seen
  }

  it('when it ends, what it had is rejected, and the next operation has a new one', async () => {
    const path = tempFile()
    const seen = workers()
    const store = open(path)
    await store.claim(claimOf('a'))
    const locker = connect(path)
    locker.exec('BEGIN IMMEDIATE')
    const lost = store.claim(claimOf('b'))
    const rejected = expect(lost).rejects.toMatchObject(refusal('store-unavailable', /ended unexpectedly/))
    await turn()
    await seen[0]?.terminate()
    await rejected
    locker.exec('ROLLBACK')
    expect(await store.claim(claimOf('b'))).toMatchObject({ state: 'acquired' })
    expect(await store.settle('a', 'mine', answered)).toBe(true)
    expect(seen).toHaveLength(2)
  })

  it('waiters survive it', async () => {
    const seen = workers()
    const store = open(tempFile())
    await store.claim(claimOf('a'))
    const waited = store.waitFor?.('a', new AbortController().signal)
    await store.read('a')
    await seen[0]?.terminate()
    await store.settle('a', 'mine', answered)
    await waited
  })

  it('close ends it, and the log is in the file', async () => {
    const path = tempFile()
    const seen = workers()
    const store = open(path)
    const claim = store.claim(claimOf('a'))
    await Promise.all([store.close(), store.close()])
    expect(await claim).toMatchObject({ state: 'acquired' })
    expect(seen[0]?.threadId).toBe(-1)
    expect(() => readFileSync(`${path}-wal`)).toThrow('ENOENT')
    await expect(store.read('a')).rejects.toMatchObject({ code: 'store-closed' })
  })
})
