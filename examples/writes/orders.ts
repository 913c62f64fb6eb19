import { randomUUID } from 'node:crypto'
import type { Pool } from 'pg'

export interface Order {
  readonly id: string
  readonly item: string
  readonly quantity: number
}

/** What the shop itself keeps. Every write leaves a row in `shop.changes`: that is how effects are counted. */
export class Orders {
  readonly #pool: Pool

  constructor(pool: Pool) {
    this.#pool = pool
  }

  async place(customer: string, { item, quantity }: Omit<Order, 'id'>): Promise<Order> {
    const insert = 'INSERT INTO shop.orders (customer, id, item, quantity) VALUES ($1, $2, $3, $4) RETURNING *'
    return one(await this.#write('placed', insert, [customer, randomUUID(), item, quantity]))
  }

  async replace(customer: string, id: string, { item, quantity }: Omit<Order, 'id'>): Promise<Order> {
    const upsert = `INSERT INTO shop.orders (customer, id, item, quantity) VALUES ($1, $2, $3, $4)
      ON CONFLICT (customer, id) DO UPDATE SET item = excluded.item, quantity = excluded.quantity RETURNING *`
    return one(await this.#write('replaced', upsert, [customer, id, item, quantity]))
  }

  async change(customer: string, id: string, add: number): Promise<Order | 'too-few' | undefined> {
    const update = 'UPDATE shop.orders SET quantity = quantity + $3 WHERE customer = $1 AND id = $2 RETURNING *'
    try {
      return (await this.#write('changed', update, [customer, id, add]))[0]
    } catch (error) {
      if ((error as { code?: unknown }).code === CHECK_VIOLATION) return 'too-few'
      throw error
    }
  }

  async remove(customer: string, id: string): Promise<boolean> {
    const remove = 'DELETE FROM shop.orders WHERE customer = $1 AND id = $2 RETURNING *'
    return (await this.#write('removed', remove, [customer, id])).length > 0
  }

  async find(customer: string, id: string): Promise<Order | undefined> {
    const find = 'SELECT id, item, quantity FROM shop.orders WHERE customer = $1 AND id = $2'
    return (await this.#pool.query<Order>(find, [customer, id])).rows[0]
  }

  /** Everything that was really done for this customer, in its order. */
  async changes(customer: string): Promise<readonly Change[]> {
    const list = 'SELECT order_id AS "orderId", what FROM shop.changes WHERE customer = $1 ORDER BY number'
    return (await this.#pool.query<Change>(list, [customer])).rows
  }

  /** The order and the note of what was done to it, in one statement. */
  async #write(what: string, statement: string, values: readonly unknown[]): Promise<readonly Order[]> {
    const noted = `WITH written AS (${statement}),
      noted AS (INSERT INTO shop.changes (customer, order_id, what) SELECT customer, id, '${what}' FROM written)
      SELECT id, item, quantity FROM written`
    return (await this.#pool.query<Order>(noted, [...values])).rows
  }
}

export interface Change {
  readonly orderId: string
  readonly what: string
}

/** Instances that start together make the tables one after the other. */
export const SHOP_SQL: string = `
  SELECT pg_advisory_xact_lock(7308906, 2);
  CREATE SCHEMA IF NOT EXISTS shop;
  CREATE TABLE IF NOT EXISTS shop.orders (
    customer text, id text, item text NOT NULL, quantity integer NOT NULL CHECK (quantity > 0), PRIMARY KEY (customer, id)
  );
  CREATE TABLE IF NOT EXISTS shop.changes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, order_id text NOT NULL, what text NOT NULL
  )`

const CHECK_VIOLATION = '23514'

export function orderFrom(text: string): Omit<Order, 'id'> | undefined {
  const { item, quantity } = objectFrom(text)
  if (typeof item !== 'string' || !isWhole(quantity) || quantity < 1) return undefined
  return { item, quantity }
}

export function changeFrom(text: string): number | undefined {
  const { add } = objectFrom(text)
  return isWhole(add) ? add : undefined
}

function objectFrom(text: string): Readonly<Record<string, unknown>> {
  try {
    return Object(JSON.parse(text))
  } catch {
    return {}
  }
}

function isWhole(value: unknown): value is number {
  return Number.isSafeInteger(value)
}

function one(rows: readonly Order[]): Order {
  const [row] = rows
  if (!row) throw new Error('PostgreSQL gave no row back')
  return row
}
