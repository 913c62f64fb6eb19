import { Hono } from 'hono'
import { createMiddleware } from 'hono/factory'
import { routePath } from 'hono/route'
import type { Pool } from 'pg'
import { idempotency } from '../../src/adapters/hono.ts'
import { writes } from '../../src/contracts/index.ts'
import type { Contract, Store } from '../../src/index.ts'
import { type FallbackOptions, fallback } from '../../src/stores/fallback.ts'
import { postgresStore } from '../../src/stores/postgres.ts'
import { type RedisClient, redisStore } from '../../src/stores/redis.ts'
import type { Flags } from './flags.ts'
import { changeFrom, Orders, orderFrom } from './orders.ts'

export interface OrdersOptions {
  readonly pool: Pool
  readonly store: Store
  readonly flags: Flags
  readonly contract?: Contract
}

/** An orders API in which every write may be sent again: one policy for POST, PUT, PATCH and DELETE. */
export function createOrders({ pool, store, flags, contract = writes }: OrdersOptions): Hono<Known> {
  const orders = new Orders(pool)
  const app = new Hono<Known>()
  app.use(authenticated)
  app.use(
    idempotency({
      store,
      contract,
      principal: (context) => context.get('customer'),
      enabled: (context) => flags.isOn(`${context.req.method} ${routePath(context, -1)}`),
      labels: true,
    }),
  )

  app.post('/orders', async (context) => {
    const order = orderFrom(await context.req.text())
    if (!order) return context.json(INVALID, 422)
    const placed = await orders.place(context.get('customer'), order)
    return context.json(placed, 201, { Location: `/orders/${placed.id}` })
  })
  app.post('/orders/:id/repeats', async (context) => {
    const order = await orders.find(context.get('customer'), context.req.param('id'))
    return order ? context.json(await orders.place(context.get('customer'), order), 201) : context.json(MISSING, 404)
  })
  app.put('/orders/:id', async (context) => {
    const order = orderFrom(await context.req.text())
    if (!order) return context.json(INVALID, 422)
    return context.json(await orders.replace(context.get('customer'), context.req.param('id'), order))
  })
  // Relative, so that whoever runs it twice has changed the order twice.
  app.patch('/orders/:id', async (context) => {
    const change = changeFrom(await context.req.text())
    if (!change) return context.json(INVALID, 422)
    const changed = await orders.change(context.get('customer'), context.req.param('id'), change)
    if (changed === 'too-few') return context.json({ error: 'less than one would be left' }, 422)
    return changed ? context.json(changed) : context.json(MISSING, 404)
  })
  app.delete('/orders/:id', async (context) => {
    const removed = await orders.remove(context.get('customer'), context.req.param('id'))
    return removed ? context.body(null, 204) : context.json(MISSING, 404)
  })

  app.get('/orders/:id', async (context) => {
    const order = await orders.find(context.get('customer'), context.req.param('id'))
    return order ? context.json(order) : context.json(MISSING, 404)
  })
  app.get('/changes', async (context) => context.json(await orders.changes(context.get('customer'))))
  app.onError((error, context) => {
    console.error(`${context.req.method} ${context.req.path}: ${error.message}`)
    return context.json({ error: 'the order was not written' }, 500)
  })
  return app
}

/**
 * Redis decides, and PostgreSQL while Redis is away. Best effort: an operation can run twice across a switch, in the
 * cases that docs/combinations.md lists. Where that must not be, give the ledger alone.
 */
export function createStore(redis: RedisClient, ledger: Store, switching: Switching = {}): Store {
  return fallback({ primary: redisStore(redis), secondary: ledger, ...switching })
}

export function createLedger(pool: Pool): Store {
  return postgresStore(pool, { table: 'system.idempotency_keys' })
}

/** When Redis counts as away, and as back. */
export type Switching = Omit<FallbackOptions, 'primary' | 'secondary'>

/** Stands for an authentication of your own: here the token is the customer's name. */
const authenticated = createMiddleware<Known>(async (context, next) => {
  const customer = /^Bearer (\w+)$/.exec(context.req.header('authorization') ?? '')?.[1]
  if (customer === undefined) return context.json({ error: 'send Authorization: Bearer NAME' }, 401)
  context.set('customer', customer)
  await next()
})

type Known = { Variables: { customer: string } }

const INVALID = { error: 'send {"item": text, "quantity": 1 or more}, or {"add": a number} to change it' }
const MISSING = { error: 'there is no such order' }
