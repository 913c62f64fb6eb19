import { DatabaseSync } from 'node:sqlite'

export interface Job {
  readonly id: string
  /** What was to be done, as it was submitted. */
  readonly spec: unknown
}

/** Which submission a job is made for: the operation's id, and which attempt of it this is. */
export interface Submission {
  readonly id: string
  readonly key: string
  readonly attempt: number
}

/**
 * The manager's jobs, in the file of its ledger. Beside each job stands the submission that made it, so that after a crash
 * the manager can say what became of a submission; and a *fence*, so that it can promise what will not become of it.
 */
export class JobTable {
  readonly #db: DatabaseSync
  readonly #rememberMs: number
  readonly #now: () => number

  /** `rememberMs`: how long a submission is known here; at least as long as the ledger knows it. */
  constructor(path: string, rememberMs: number, now: () => number) {
    this.#db = new DatabaseSync(path)
    this.#db.exec(
      `PRAGMA busy_timeout = ${BUSY_MS_MAX}; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; ${SCHEMA}`,
    )
    this.#rememberMs = rememberMs
    this.#now = now
  }

  /**
   * Makes the job of this submission, or gives the one that it has. `undefined`: a later attempt has been here, and this
   * one must not make it any more.
   */
  add({ id, key, attempt }: Submission, job: Job): Job | undefined {
    return this.#transaction(() => {
      const known = this.#known(id)
      if (known?.job !== undefined) return known.job
      if (known && known.fence > attempt) return undefined
      this.#db.prepare('INSERT INTO jobs (id, key, spec) VALUES (?, ?, ?)').run(job.id, key, JSON.stringify(job.spec))
      this.#remember(id, attempt, job)
      return job
    })
  }

  /** The job that a submission has made here. If there is none, no attempt before this one will make it from now on. */
  fence(id: string, attempt: number): Job | undefined {
    return this.#transaction(() => {
      const known = this.#known(id)
      if (known?.job === undefined) this.#remember(id, Math.max(attempt, known?.fence ?? 0), undefined)
      return known?.job
    })
  }

  /** In the order in which they were made, with the key that each was submitted under. */
  all(): ReadonlyArray<Job & { readonly key: string }> {
    const rows = this.#db.prepare('SELECT id, key, spec FROM jobs ORDER BY number').all()
    return rows.map(({ id, key, spec }) => ({ id: String(id), key: String(key), spec: JSON.parse(String(spec)) }))
  }

  count(): number {
    return Number(this.#db.prepare('SELECT count(*) AS n FROM jobs').get()?.n)
  }

  close(): void {
    this.#db.close()
  }

  #known(id: string): { readonly fence: number; readonly job: Job | undefined } | undefined {
    const row = this.#db.prepare('SELECT fence, job FROM submissions WHERE id = ? AND until > ?').get(id, this.#now())
    if (row === undefined) return undefined
    return { fence: Number(row.fence), job: row.job === null ? undefined : (JSON.parse(String(row.job)) as Job) }
  }

  #remember(id: string, fence: number, job: Job | undefined): void {
    const until = this.#now() + this.#rememberMs
    this.#db.prepare('DELETE FROM submissions WHERE until <= ?').run(this.#now())
    this.#db
      .prepare('INSERT OR REPLACE INTO submissions (id, fence, job, until) VALUES (?, ?, ?, ?)')
      .run(id, fence, job === undefined ? null : JSON.stringify(job), until)
  }

  #transaction<T>(work: () => T): T {
    this.#db.exec('BEGIN IMMEDIATE')
    try {
      const result = work()
      this.#db.exec('COMMIT')
      return result
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec('ROLLBACK')
      throw error
    }
  }
}

const BUSY_MS_MAX = 5_000
const SCHEMA = `
  CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, key TEXT NOT NULL, spec TEXT NOT NULL) STRICT;
  CREATE TABLE IF NOT EXISTS submissions (
    id TEXT PRIMARY KEY, fence INTEGER NOT NULL, job TEXT, until INTEGER NOT NULL) STRICT;
  CREATE INDEX IF NOT EXISTS submissions_until ON submissions (until)`
