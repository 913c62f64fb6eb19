import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { writes } from '../../src/contracts/index.ts'
import { defineContract } from '../../src/index.ts'
import { findService, freePort } from '../../test/services/index.ts'
import { effects, idOf, isReplayed, poolOf, rawInRedis, send, somebody, until } from './client.ts'
import { entryOf } from './entry.ts'
import { fileFlags, setFlag } from './flags.ts'
import { type Instance, type InstanceOptions, startInstance } from './instance.ts'

const redis = await findService('redis')
const postgres = await findService('postgres')
const missing = [redis, postgres].filter((found) => typeof found === 'string').join('; ')

const TEA = { item: 'tea', quantity: 2 }
const MORE_TEA = { item: 'tea', quantity: 20 }
const DAY_MS = 86_400_000
/** The two stores, each of which gives every promise by itself. */
const STORES = ['Redis', 'PostgreSQL, because Redis is away'] as const

describe.skipIf(missing)(`examples/writes${missing && ` (skipped: ${missing})`}`, () => {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-writes-'))
  const flagsFile = join(folder, 'flags.json')
  let instance: Instance
  let pool: Pool

  async function started(changes: Partial<InstanceOptions> = {}): Promise<Instance> {
    const urls = { redisUrl: urlOf(redis), postgresUrl: urlOf(postgres) }
    return startInstance({ ...urls, flagsFile, port: 0, ...changes })
  }

  /** One whose claims are all made by the given store. */
  async function startedOn(store: (typeof STORES)[number], changes: Partial<InstanceOptions> = {}): Promise<Instance> {
    const nowhere = `redis://127.0.0.1:${await freePort()}`
    const isAway = store !== 'Redis'
    const away = { redisUrl: nowhere, switching: { failuresMax: 1, awayMsMin: 0 } }
    const one = await started({ ...changes, ...(isAway && away) })
    onTestFinished(() => one.stop())
    return one
  }

  beforeAll(async () => {
    instance = await started()
    pool = poolOf(urlOf(postgres))
  })

  afterAll(async () => {
    await instance?.stop()
    await pool?.end()
    for (const service of [redis, postgres]) if (typeof service !== 'string') await service.stop()
    rmSync(folder, { recursive: true, force: true })
  })

  describe('R1: every unsafe method, and no other', () => {
    const LINES = [
      ['POST /orders', TEA, 'placed', 201],
      ['POST /orders/here/repeats', undefined, 'placed', 201],
      ['PUT /orders/there', TEA, 'replaced', 200],
      ['PATCH /orders/here', { add: 3 }, 'changed', 200],
      ['DELETE /orders/here', undefined, 'removed', 204],
    ] as const

    it.each(LINES)('R1: %s is done once', async (line, body, what, status) => {
      const who = somebody()
      await send(instance.url, 'PUT /orders/here', { who, key: 'make', body: TEA })
      const original = await send(instance.url, line, { who, key: 'k', ...(body && { body }) })
      expect([original.status, isReplayed(original)]).toEqual([status, false])
      const replay = await send(instance.url, line, { who, key: 'k', ...(body && { body }) })
      expect([replay.status, replay.text, isReplayed(replay)]).toEqual([status, original.text, true])
      expect(await effects(pool, who)).toEqual(['replaced', what])
    })

    it('R1: GET passes untouched, with a key and without', async () => {
      const who = somebody()
      for (const quantity of [1, 2]) {
        await send(instance.url, 'PUT /orders/a', { who, key: `make-${quantity}`, body: { item: 'tea', quantity } })
        const read = await send(instance.url, 'GET /orders/a', { who, key: 'k' })
        expect(JSON.parse(read.text).quantity).toBe(quantity)
        expect(read.headers.has('idempotency-key')).toBe(false)
      }
    })

    it.each(['POST /orders', 'PUT /orders/a', 'PATCH /orders/a', 'DELETE /orders/a'])(
      'R1: %s without a key is refused, and not done',
      async (line) => {
        const who = somebody()
        const refused = await send(instance.url, line, { who, body: TEA })
        expect([refused.status, JSON.parse(refused.text).code]).toEqual([400, 'key-missing'])
        expect(await effects(pool, who)).toEqual([])
      },
    )
  })

  describe('R2: principal, method and route template', () => {
    it('R2: one template is one scope: the same key on another URL of it is a conflict', async () => {
      const who = somebody()
      expect((await send(instance.url, 'PUT /orders/1', { who, key: 'k', body: TEA })).status).toBe(200)
      const other = await send(instance.url, 'PUT /orders/2', { who, key: 'k', body: TEA })
      expect([other.status, JSON.parse(other.text).code]).toEqual([409, 'key-conflict'])
      expect(await effects(pool, who)).toEqual(['replaced'])
      const record = await instance.store.read(idOf(who, 'PUT', '/orders/:id', 'k'))
      expect(record).toMatchObject({ state: 'settled', labels: { route: '/orders/:id', method: 'PUT' } })
    })

    it('R2: other principals, methods and templates never meet', async () => {
      const [who, another] = [somebody(), somebody()]
      const sent = [
        await send(instance.url, 'PUT /orders/1', { who, key: 'k', body: TEA }),
        await send(instance.url, 'PUT /orders/1', { who: another, key: 'k', body: TEA }),
        await send(instance.url, 'PATCH /orders/1', { who, key: 'k', body: { add: 1 } }),
        await send(instance.url, 'POST /orders', { who, key: 'k', body: TEA }),
        await send(instance.url, 'POST /orders/1/repeats', { who, key: 'k' }),
        await send(instance.url, 'DELETE /orders/1', { who, key: 'k' }),
      ]
      expect(sent.map(({ status }) => status)).toEqual([200, 200, 200, 201, 201, 204])
      expect(sent.filter(isReplayed)).toEqual([])
      expect(await effects(pool, who)).toEqual(['replaced', 'changed', 'placed', 'placed', 'removed'])
      expect(await effects(pool, another)).toEqual(['replaced'])
    })

    it.each(['__proto__', 'a:b|c/d,e', '0', 'k'.repeat(255)])('R2: a key is opaque: %s', async (key) => {
      const who = somebody()
      const original = await send(instance.url, 'POST /orders', { who, key, body: TEA })
      const replay = await send(instance.url, 'POST /orders', { who, key, body: TEA })
      expect([original.status, replay.text, isReplayed(replay)]).toEqual([201, original.text, true])
      expect(replay.headers.get('idempotency-key')).toBe(key)
    })
  })

  describe('R3: what a record has', () => {
    it('R3: in Redis, raw and under the names of the policy', async () => {
      const who = somebody()
      const { text } = await send(instance.url, 'POST /orders', { who, key: 'find-me', body: TEA })
      const id = idOf(who, 'POST', '/orders', 'find-me')
      const raw = await rawInRedis(urlOf(redis), id)
      const record = await instance.store.read(id)
      if (!record || raw.value === null) throw new Error('there is no record')
      const entry = entryOf(record)
      expect(entry).toEqual({
        key: 'find-me',
        route: '/orders',
        method: 'POST',
        principal: who,
        body_hash: expect.stringMatching(/^[0-9a-f]{64}$/),
        response_code: 201,
        response_body: text,
        created_at: expect.any(Date),
        ttl: expect.any(Number),
      })
      const labels = { key: 'find-me', principal: who, method: 'POST', route: '/orders' }
      for (const part of [JSON.stringify(labels), entry.body_hash, '[201,', text, String(+entry.created_at)]) {
        expect(raw.value).toContain(part)
      }
      expect(raw.ttlMs).toBeGreaterThan(0)
      expect(raw.ttlMs).toBeLessThanOrEqual(entry.ttl * 1_000)
    })

    it('R3: in PostgreSQL, as a row of system.idempotency_keys and as an entry', async () => {
      const who = somebody()
      const away = await startedOn('PostgreSQL, because Redis is away')
      const { text } = await send(away.url, 'POST /orders', { who, key: 'find-me', body: TEA })
      const id = idOf(who, 'POST', '/orders', 'find-me')
      const record = await away.store.read(id)
      if (!record) throw new Error('there is no record')
      const row = await pool.query('SELECT * FROM system.idempotency_keys WHERE id = $1', [id])
      expect(row.rows[0]).toMatchObject({
        labels: { key: 'find-me', principal: who, method: 'POST', route: '/orders' },
        fingerprint: record.fingerprint,
        status: 201,
        body: Buffer.from(text),
      })
      const { fields, rows } = await pool.query('SELECT * FROM system.idempotency_entries WHERE principal = $1', [who])
      expect(fields.map(({ name }) => name).join(', ')).toBe(
        'key, route, method, principal, body_hash, response_code, response_body, created_at, ttl',
      )
      expect(rows).toEqual([entryOf(record)])
      expect(await rawInRedis(urlOf(redis), id)).toMatchObject({ value: null })
    })
  })

  describe.each(STORES)('on %s', (store) => {
    it('R4: same hash: the stored status and body, and no side effect', async () => {
      const who = somebody()
      const { url } = await startedOn(store)
      const original = await send(url, 'POST /orders', { who, key: 'k', body: TEA })
      for (const body of [TEA, { quantity: 2, item: 'tea' }]) {
        const replay = await send(url, 'POST /orders', { who, key: 'k', body })
        expect([replay.status, replay.text]).toEqual([201, original.text])
        expect(replay.headers.get('location')).toBe(original.headers.get('location'))
      }
      expect(await effects(pool, who)).toEqual(['placed'])
    })

    it('R5: other hash: 409 with a body that a program can read, and the record stays as it was', async () => {
      const who = somebody()
      const { url } = await startedOn(store)
      const original = await send(url, 'POST /orders', { who, key: 'k', body: TEA })
      const conflict = await send(url, 'POST /orders', { who, key: 'k', body: MORE_TEA })
      expect(conflict.status).toBe(409)
      expect(conflict.headers.get('content-type')).toBe('application/problem+json')
      expect(JSON.parse(conflict.text)).toMatchObject({ code: 'key-conflict', status: 409, title: expect.any(String) })
      const replay = await send(url, 'POST /orders', { who, key: 'k', body: TEA })
      expect([replay.text, isReplayed(replay)]).toEqual([original.text, true])
      expect(await effects(pool, who)).toEqual(['placed'])
    })

    it('R6: 24 hours by default', async () => {
      const who = somebody()
      const one = await startedOn(store)
      await send(one.url, 'POST /orders', { who, key: 'k', body: TEA })
      const [line, add] = ['PATCH /orders/none', { add: 1 }]
      expect((await send(one.url, line, { who, key: 'k', body: add })).status).toBe(404)
      for (const [method, route] of [['POST', '/orders'] as const, ['PATCH', '/orders/:id'] as const]) {
        const record = await one.store.read(idOf(who, method, route, 'k'))
        if (record?.state !== 'settled') throw new Error('there is no answer')
        expect(record.goneAt - record.createdAt).toBeGreaterThanOrEqual(DAY_MS)
        expect(record.expiresInMs).toBeLessThanOrEqual(DAY_MS)
      }
    })

    it('R6: a contract of its own: after the expiry, and not before it, the request executes again', async () => {
      const who = somebody()
      const ttl = { committedMs: 700, rejectedMs: 700 }
      const one = await startedOn(store, { contract: defineContract(writes, { ttl }) })
      const id = idOf(who, 'POST', '/orders', 'k')
      const original = await send(one.url, 'POST /orders', { who, key: 'k', body: TEA })
      const first = await one.store.read(id)
      let later = original
      await until('it runs again', async () => {
        later = await send(one.url, 'POST /orders', { who, key: 'k', body: TEA })
        return !isReplayed(later)
      })
      const second = await one.store.read(id)
      expect(later.status).toBe(201)
      expect(later.text).not.toBe(original.text)
      expect(await effects(pool, who)).toEqual(['placed', 'placed'])
      // On the store's own clock; a machine that was too busy to read a record in its short life shows only the run.
      if (first && second) expect(second.createdAt).toBeGreaterThanOrEqual(first.goneAt)
    })

    it('R8: success and failure are kept: 201, 404, 422 and 500, also when their cause is gone', async () => {
      const who = somebody()
      const { url } = await startedOn(store)
      const lines = [
        ['POST /orders', TEA],
        ['PATCH /orders/a', { add: 1 }],
        ['PATCH /orders/b', { add: -5 }],
        ['PATCH /orders/b', { add: 2_147_483_647 }],
      ] as const
      await send(url, 'PUT /orders/b', { who, key: 'make-b', body: TEA })
      const all = () => Promise.all(lines.map(([line, body], i) => send(url, line, { who, key: `k${i}`, body })))
      const originals = await all()
      expect(originals.map(({ status }) => status)).toEqual([201, 404, 422, 500])
      expect(originals.filter(isReplayed)).toEqual([])
      await send(url, 'PUT /orders/a', { who, key: 'make-a', body: TEA })
      await send(url, 'PUT /orders/b', { who, key: 'mend-b', body: MORE_TEA })
      const before = await effects(pool, who)
      const replays = await all()
      expect(replays.map(({ status, text }) => [status, text])).toEqual(
        originals.map(({ status, text }) => [status, text]),
      )
      expect(replays.every(isReplayed)).toBe(true)
      expect(await effects(pool, who)).toEqual(before)
    })

    it('R9: the key is echoed on original and replay; Idempotent-Replayed is on the replay only', async () => {
      const who = somebody()
      const { url } = await startedOn(store)
      for (const [line, body] of [['POST /orders', TEA] as const, ['PATCH /orders/none', { add: 1 }] as const]) {
        const original = await send(url, line, { who, key: 'my-key', body })
        const replay = await send(url, line, { who, key: 'my-key', body })
        expect(original.headers.get('idempotency-key')).toBe('my-key')
        expect(original.headers.has('idempotent-replayed')).toBe(false)
        expect(replay.headers.get('idempotency-key')).toBe('my-key')
        expect(replay.headers.get('idempotent-replayed')).toBe('true')
      }
    })
  })

  describe('R11: a flag for each route', () => {
    it('R11: off: the key is accepted and ignored; on again without a restart', async () => {
      const who = somebody()
      const post = () => send(instance.url, 'POST /orders', { who, key: 'k', body: TEA })
      const original = await post()
      setFlag(flagsFile, 'POST /orders', false)
      onTestFinished(() => setFlag(flagsFile, 'POST /orders', true))
      for (const answer of [await post(), await post()]) {
        expect([answer.status, isReplayed(answer)]).toEqual([201, false])
        expect(answer.text).not.toBe(original.text)
        expect(answer.headers.has('idempotency-key')).toBe(false)
      }
      expect((await send(instance.url, 'POST /orders', { who, body: TEA })).status).toBe(201)
      setFlag(flagsFile, 'POST /orders', true)
      const replay = await post()
      expect([replay.text, isReplayed(replay)]).toEqual([original.text, true])
      expect(await effects(pool, who)).toEqual(['placed', 'placed', 'placed', 'placed'])
    })

    it('R11: one route is off, the others stay on', async () => {
      const who = somebody()
      setFlag(flagsFile, 'PATCH /orders/:id', false)
      onTestFinished(() => setFlag(flagsFile, 'PATCH /orders/:id', true))
      for (let i = 0; i < 2; i++) {
        await send(instance.url, 'PUT /orders/a', { who, key: 'k', body: TEA })
        await send(instance.url, 'PATCH /orders/a', { who, key: 'k', body: { add: 1 } })
      }
      expect(await effects(pool, who)).toEqual(['replaced', 'changed', 'changed'])
    })

    it('R11: without a file every route is on, and a broken file changes nothing', () => {
      const file = join(folder, 'broken.json')
      const flags = fileFlags(file)
      expect(flags.isOn('POST /orders')).toBe(true)
      setFlag(file, 'POST /orders', false)
      expect([flags.isOn('POST /orders'), flags.isOn('PUT /orders/:id')]).toEqual([false, true])
      writeFileSync(file, '{"POST /or')
      expect(flags.isOn('POST /orders')).toBe(false)
      rmSync(file)
      expect(flags.isOn('POST /orders')).toBe(true)
    })
  })
})

function urlOf(service: { readonly url: string } | string): string {
  if (typeof service === 'string') throw new Error(service)
  return service.url
}
