import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import fastify from 'fastify'
import { Pool } from 'pg'
import { createClient } from 'redis'
import { serveFastify } from './bare.ts'
import type { Started } from './index.ts'
import { serverOf } from './servers.ts'
import { capturePayment, type PaymentRequest, ROUTE } from './workload.ts'

/**
 * What any layer must pay that writes durably before and after the handler, on this machine: two durable writes of a
 * few bytes for each request, as cheap as they can be made, and nothing else. They compare nothing, keep no answer and
 * replay nothing, so they are no competitors: they show which part of a goal the machine leaves open.
 */
interface Writes {
  before(key: string): Promise<unknown>
  after(key: string): Promise<unknown>
  close(): Promise<unknown>
}

export async function startRedis(): Promise<Started> {
  const client = await createClient({ url: (await serverOf('redis')).url }).connect()
  return serve({
    before: (key) => client.set(key, 'claimed'),
    after: (key) => client.set(key, 'settled'),
    close: () => client.close(),
  })
}

export async function startPostgres(): Promise<Started> {
  const pool = new Pool({ connectionString: (await serverOf('postgres')).url, max: 2 })
  await pool.query('CREATE TABLE ceiling (key text PRIMARY KEY, state text NOT NULL)')
  const [one, other] = [await pool.connect(), await pool.connect()]
  const insert = together((keys) =>
    one.query({
      name: 'insert',
      text: "INSERT INTO ceiling SELECT key, 'claimed' FROM unnest($1::text[]) AS key",
      values: [keys],
    }),
  )
  const update = together((keys) =>
    other.query({
      name: 'update',
      text: "UPDATE ceiling SET state = 'settled' WHERE key = ANY ($1::text[])",
      values: [keys],
    }),
  )
  const close = async () => {
    one.release()
    other.release()
    await pool.end()
  }
  return serve({ before: insert, after: update, close })
}

export async function startSqlite(directory: string): Promise<Started> {
  const path = join(directory, 'ceiling.sqlite')
  const worker = new Worker(new URL('ceiling-worker.ts', import.meta.url), { workerData: path })
  let answered = (): void => {}
  worker.on('message', () => answered())
  const hand = together((keys) => {
    const answer = new Promise<void>((resolve) => {
      answered = resolve
    })
    worker.postMessage(keys)
    return answer
  })
  return serve({ before: hand, after: hand, close: () => worker.terminate() })
}

async function serve(writes: Writes): Promise<Started> {
  const app = fastify()
  app.post<{ Body: PaymentRequest }>(ROUTE, async (request, reply) => {
    const key = String(request.headers['idempotency-key'])
    await writes.before(key)
    const payment = await capturePayment(request.body)
    await writes.after(key)
    reply.code(201)
    return payment
  })
  const started = await serveFastify(app)
  const close = async () => {
    await started.close()
    await writes.close()
  }
  return { port: started.port, close }
}

/** Group commit at its barest: one batch under way, and all that came meanwhile is the next. */
function together(write: (keys: readonly string[]) => Promise<unknown>): (key: string) => Promise<void> {
  let waiting: Array<readonly [key: string, done: () => void, failed: (error: unknown) => void]> = []
  let isBusy = false
  const flush = async (): Promise<void> => {
    while (waiting.length > 0) {
      const batch = waiting
      waiting = []
      await write(batch.map(([key]) => key)).then(
        () => batch.forEach(([, done]) => void done()),
        (error: unknown) => batch.forEach(([, , failed]) => void failed(error)),
      )
    }
    isBusy = false
  }
  return (key) =>
    new Promise((done, failed) => {
      waiting.push([key, done, failed])
      if (isBusy) return
      isBusy = true
      // After the poll phase: what arrived on other sockets in this same turn goes along.
      setImmediate(flush)
    })
}
