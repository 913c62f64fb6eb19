import type { StoredRecord } from '../../src/index.ts'

/** A record under the names that the policy gives to its parts. It needs `labels: true`. */
export interface Entry {
  readonly key: string | undefined
  /** The template, such as `/orders/:id`. */
  readonly route: string | undefined
  readonly method: string | undefined
  readonly principal: string | undefined
  /** Over method, target and canonical body. */
  readonly body_hash: string
  /** `null`: not answered yet. */
  readonly response_code: number | null
  readonly response_body: string | null
  readonly created_at: Date
  /** In seconds: `created_at` + `ttl` is when the key is new again. */
  readonly ttl: number
}

/** For what any store gives: `(await store.list()).map(entryOf)`. */
export function entryOf(record: StoredRecord): Entry {
  const { key, route, method, principal } = record.labels
  const answer = record.state === 'settled' ? record.answer : undefined
  return {
    key,
    route,
    method,
    principal,
    body_hash: record.fingerprint,
    response_code: answer?.status ?? null,
    response_body: answer?.body ? new TextDecoder().decode(answer.body) : null,
    created_at: new Date(record.createdAt),
    ttl: (record.goneAt - record.createdAt) / 1_000,
  }
}

/** The same in SQL, for the records that PostgreSQL has. This service answers in UTF-8 only, so every body is text. */
export const ENTRIES_SQL: string = `
  SELECT pg_advisory_xact_lock(7308906, 2);
  CREATE OR REPLACE VIEW system.idempotency_entries AS SELECT
    labels->>'key' AS key,
    labels->>'route' AS route,
    labels->>'method' AS method,
    labels->>'principal' AS principal,
    fingerprint AS body_hash,
    status AS response_code,
    convert_from(body, 'UTF8') AS response_body,
    created_at,
    extract(epoch FROM gone_at - created_at)::float8 AS ttl
  FROM system.idempotency_keys`
