/** What the tests of this example share: a client, and a look behind the service. */
import { randomBytes } from 'node:crypto'
import { Pool } from 'pg'
import { createClient } from 'redis'
import { onTestFinished } from 'vitest'
import { operationId } from '../../src/operation/scope.ts'
import type { Answered } from '../kit.ts'
import type { Change } from './orders.ts'

export interface Write {
  readonly who?: string
  readonly key?: string
  readonly body?: unknown
}

/** `POST /orders` and the like, over a socket. */
export async function send(base: string, line: string, { who = 'anna', key, body }: Write = {}): Promise<Answered> {
  const [method = '', path = ''] = line.split(' ')
  const headers = new Headers({ authorization: `Bearer ${who}`, 'content-type': 'application/json' })
  if (key !== undefined) headers.set('idempotency-key', key)
  const init: RequestInit = { method, headers, ...(body !== undefined && { body: JSON.stringify(body) }) }
  const response = await fetch(new URL(path, base), init)
  return { status: response.status, headers: response.headers, text: await response.text() }
}

/** A customer for each test, so that none sees what another test, or an earlier run on the same server, has done. */
export function somebody(): string {
  return `customer_${randomBytes(6).toString('hex')}`
}

export function isReplayed({ headers }: Answered): boolean {
  return headers.get('idempotent-replayed') === 'true'
}

/** What was really done, by the rows in PostgreSQL. */
export async function effects(pool: Pool, who: string): Promise<readonly string[]> {
  const { rows } = await pool.query<Change>('SELECT what FROM shop.changes WHERE customer = $1 ORDER BY number', [who])
  return rows.map(({ what }) => what)
}

/** The id of a record, made from nothing but what R2 says. */
export function idOf(who: string, method: string, route: string, key: string): string {
  return operationId(['principal', who, 'method', method, 'route', route], key)
}

/** The value as it stands in Redis, and how long Redis keeps it. */
export async function rawInRedis(url: string, id: string): Promise<{ value: string | null; ttlMs: number }> {
  const client = createClient({ url })
  await client.connect()
  const key = `oncekey:{${id}}`
  const [value, ttlMs] = await Promise.all([client.get(key), client.pTTL(key)])
  client.destroy()
  return { value: value === null ? null : String(value), ttlMs: Number(ttlMs) }
}

/** No write of an order comes to its end until the lock is let go: the handler runs, and has done nothing yet. */
export async function holdOrders(pool: Pool): Promise<{ waiting(): Promise<number>; letGo(): Promise<void> }> {
  const client = await pool.connect()
  await client.query('BEGIN; LOCK TABLE shop.orders IN ACCESS EXCLUSIVE MODE')
  let isHeld = true
  const letGo = async (): Promise<void> => {
    if (!isHeld) return
    isHeld = false
    await client.query('COMMIT')
    client.release()
  }
  // A test that fails in between must not hold up those that follow.
  onTestFinished(letGo)
  return {
    letGo,
    async waiting() {
      const blocked = `SELECT count(*)::int AS n FROM pg_locks WHERE NOT granted AND relation = 'shop.orders'::regclass`
      return (await pool.query<{ n: number }>(blocked)).rows[0]?.n ?? 0
    },
  }
}

/** Asks until it is so. */
export async function until(what: string, isSo: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX
  while (!(await isSo())) {
    if (performance.now() > deadline) throw new Error(`still not so: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS))
  }
}

const WAIT_MS_MAX = 30_000
const ASK_EVERY_MS = 20

export function poolOf(url: string): Pool {
  const pool = new Pool({ connectionString: url })
  pool.on('error', () => {})
  return pool
}
