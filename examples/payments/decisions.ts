import type { DatabaseSync } from 'node:sqlite'
import type { Envelope } from './envelope.ts'

export interface Decision {
  readonly decision: 'allow' | 'deny'
  readonly reason: string
  readonly decision_id: string
  readonly decided_at: string
}

/** The policy: what may go out at once, and to one payee on one day. In the smallest unit of each currency. */
export interface Limits {
  readonly paymentMax: number
  readonly payeeDayMax: number
}

/** One row for each decision. The nonce is a part of its name, for a key may be used anew when it has expired. */
const SCHEMA = `
  CREATE TABLE IF NOT EXISTS decision (
    operation   TEXT NOT NULL,
    nonce       TEXT NOT NULL,
    decision_id TEXT NOT NULL UNIQUE,
    principal   TEXT NOT NULL,
    payee       TEXT NOT NULL,
    currency    TEXT NOT NULL,
    amount      INTEGER NOT NULL,
    decision    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    decided_at  TEXT NOT NULL,
    PRIMARY KEY (operation, nonce)
  ) STRICT;
  CREATE INDEX IF NOT EXISTS decision_payee_day ON decision (payee, currency, decided_at);`

const SELECT = 'SELECT decision, reason, decision_id, decided_at FROM decision WHERE operation = ? AND nonce = ?'

const SPENT = `
  SELECT coalesce(sum(amount), 0) AS spent FROM decision
  WHERE payee = ? AND currency = ? AND decision = 'allow' AND substr(decided_at, 1, 10) = ?`

const INSERT = `
  INSERT INTO decision (operation, nonce, decision_id, principal, payee, currency, amount, decision, reason, decided_at)
  VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const DAY_CHARS = 'YYYY-MM-DD'.length

/** Decisions and the sums that they rest on, in one SQLite file. */
export class Decisions {
  readonly #db: DatabaseSync
  readonly #limits: Limits

  constructor(db: DatabaseSync, limits: Limits) {
    this.#db = db
    this.#limits = limits
    db.exec(SCHEMA)
  }

  /**
   * Decides once for each operation: a run after a crash finds what the first one decided. Sum and decision are one
   * transaction, so that two payments at the same moment cannot both have the rest of a limit.
   */
  decide(asked: Asked): Decision {
    const { operation, decisionId, principal, envelope, now } = asked
    const { nonce, payee, currency, amount } = envelope
    this.#db.exec('BEGIN IMMEDIATE')
    try {
      const before = this.#db.prepare(SELECT).get(operation, nonce)
      if (before) {
        this.#db.exec('COMMIT')
        return { ...before } as unknown as Decision
      }
      const day = now.slice(0, DAY_CHARS)
      const spent = Number(this.#db.prepare(SPENT).get(payee, currency, day)?.spent)
      const { decision, reason } = this.#judge(amount, spent)
      this.#db
        .prepare(INSERT)
        .run(operation, nonce, decisionId, principal, payee, currency, amount, decision, reason, now)
      this.#db.exec('COMMIT')
      return { decision, reason, decision_id: decisionId, decided_at: now }
    } catch (error) {
      if (this.#db.isTransaction) this.#db.exec('ROLLBACK')
      throw error
    }
  }

  count(): number {
    return Number(this.#db.prepare('SELECT count(*) AS n FROM decision').get()?.n)
  }

  #judge(amount: number, spent: number): Pick<Decision, 'decision' | 'reason'> {
    const { paymentMax, payeeDayMax } = this.#limits
    if (amount > paymentMax) return { decision: 'deny', reason: `over the limit of ${paymentMax} for one payment` }
    if (spent + amount > payeeDayMax) {
      return { decision: 'deny', reason: `over the limit of ${payeeDayMax} for one payee on one day` }
    }
    return { decision: 'allow', reason: 'within the limits' }
  }
}

export interface Asked {
  readonly operation: string
  readonly decisionId: string
  readonly principal: string
  readonly envelope: Envelope
  /** ISO 8601. */
  readonly now: string
}
