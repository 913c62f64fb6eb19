import assert from 'node:assert/strict'
import { afterAll, afterEach, describe, it } from 'vitest'
import { resources, resourcesFromEnvironment } from '../../src/contracts/index.ts'
import type { Contract } from '../../src/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { start } from './example.ts'
import type { Hooks } from './records.ts'
import { type Path, paths } from './schema.ts'
import { keyStore } from './service.ts'
import { type Answered, Testbed, Turnstile } from './testbed.ts'

const found = await findMongod(['--setParameter', 'ttlMonitorEnabled=false'])
const title = typeof found === 'string' ? `resources (skipped: ${found})` : `resources, REST on ${found.title}`
const opened: Testbed[] = []

async function given(contract?: Contract, hooks?: Hooks): Promise<Testbed> {
  if (typeof found === 'string') throw new Error(found)
  const bed = await Testbed.open(found.url, contract, hooks)
  opened.push(bed)
  return bed
}

afterEach(async () => {
  for (const bed of opened.splice(0)) await bed.close()
})
afterAll(async () => {
  if (typeof found !== 'string') await found.stop()
})

const ACME = { accountName: 'Acme' }
const SAMPLES: { readonly [P in Path]: object } = {
  account: ACME,
  contact: { name: 'Ada' },
  opportunity: { title: 'Big', amount: 5 },
}

const REPLAY = 'Idempotency-Replay'

function assertReplay(first: Answered, again: Answered): void {
  assert.equal(again.headers.get(REPLAY), 'true')
  assert.deepEqual([again.status, again.text], [first.status, first.text])
}

function assertRefused({ status, body }: Answered, code: string): void {
  assert.deepEqual([status, Object.keys(body), body.error?.code], [409, ['error'], code])
  assert.deepEqual(Object.keys(body.error ?? {}), ['code', 'message'])
}

describe.skipIf(typeof found === 'string')(title, () => {
  it('D1: every generated POST route is covered', async () => {
    const bed = await given()
    for (const path of paths) {
      const first = await bed.post(path, SAMPLES[path], { key: 'k' })
      assertReplay(first, await bed.post(path, SAMPLES[path], { key: 'k' }))
      assert.equal(await bed.count(path), 1)
    }
    assert.equal(await bed.keys.countDocuments({ key: 'k' }), paths.length)
  })

  it('D2: the first call is a 201, and a retry is the same with Idempotency-Replay', async () => {
    const bed = await given()
    const first = await bed.post('account', ACME, { key: 'k' })
    assert.equal(first.status, 201)
    assert.equal(first.headers.get(REPLAY), null)
    const again = await bed.post('account', ACME, { key: 'k' })
    assertReplay(first, again)
    assert.equal(again.headers.get('content-type'), first.headers.get('content-type'))
    assert.equal(await bed.count('account'), 1)
  })

  it('D3: the same key with another body is a conflict, and nothing runs', async () => {
    const bed = await given()
    const first = await bed.post('account', ACME, { key: 'k' })
    assertRefused(await bed.post('account', { accountName: 'Other' }, { key: 'k' }), 'IDEMPOTENCY_CONFLICT')
    assert.equal(await bed.count('account'), 1)
    assertReplay(first, await bed.post('account', ACME, { key: 'k' }))
  })

  it('D4: what the server strips or stamps causes no conflict', async () => {
    const bed = await given()
    const first = await bed.post('account', { ...ACME, creditLimit: 9e6 }, { key: 'k' })
    assert.deepEqual([first.body.creditLimit, first.body.tenantId], [undefined, 'acme'])
    assertReplay(first, await bed.post('account', ACME, { key: 'k' }))
    assertReplay(first, await bed.post('account', { ...ACME, tenantId: 'globex' }, { key: 'k' }))
    // Whoever may write the field means something by it.
    const admin = { key: 'k', token: 'boss-token' }
    await bed.post('account', { ...ACME, creditLimit: 1 }, admin)
    assertRefused(await bed.post('account', ACME, admin), 'IDEMPOTENCY_CONFLICT')
  })

  it('D4: names count in any order at every depth, lists in theirs', async () => {
    const bed = await given()
    const send = (text: string) => bed.post('account', {}, { key: 'k', text })
    const first = await send('{"accountName":"A","address":{"city":"Rome","geo":{"x":1,"y":2}},"tags":["a","b"]}')
    assert.equal(first.status, 201)
    const turned = '{ "tags": ["a", "b"], "address": {"geo": {"y": 2, "x": 1}, "city": "Rome"}, "accountName": "A" }'
    assertReplay(first, await send(turned))
    assertRefused(await send(turned.replace('["a", "b"]', '["b", "a"]')), 'IDEMPOTENCY_CONFLICT')
    assertRefused(await send(turned.replace('"x": 1', '"x": 3')), 'IDEMPOTENCY_CONFLICT')
  })

  it('D5: the claim is one write, gated by the unique index; then execute; then complete or abandon', async () => {
    const bed = await given()
    await bed.post('account', ACME, { key: 'first' })
    const indexes = await bed.keys.listIndexes().toArray()
    const unique = indexes.find(({ unique }) => unique)
    assert.deepEqual(unique?.key, { key: 1, userId: 1, route: 1 })

    const kept = await bed.commandsOf(() => bed.post('account', ACME, { key: 'kept' }))
    const named = kept.map(({ commandName, command }) => `${commandName} ${command[commandName]}`)
    assert.deepEqual(named, ['findAndModify idempotency_key', 'insert account', 'update idempotency_key'])
    assert.equal(kept[0]?.command.upsert, true)

    const abandoned = await bed.commandsOf(() => bed.post('account', {}, { key: 'abandoned' }))
    const verbs = abandoned.map(({ commandName, command }) => `${commandName} ${command[commandName]}`)
    assert.deepEqual(verbs, ['findAndModify idempotency_key', 'delete idempotency_key'])

    const document = await bed.keys.findOne({ key: 'kept' })
    await assert.rejects(bed.keys.insertOne({ ...document, _id: 'another' as never }), { code: 11_000 })
  })

  it('D5: of thirty concurrent calls one creates', async () => {
    const bed = await given()
    const answers = await Promise.all(Array.from({ length: 30 }, () => bed.post('account', ACME, { key: 'k' })))
    const created = answers.filter(({ status, headers }) => status === 201 && !headers.has(REPLAY))
    assert.equal(created.length, 1)
    for (const answer of answers) {
      if (answer.status === 201) assert.equal(answer.text, created[0]?.text)
      else assertRefused(answer, 'IDEMPOTENCY_IN_PROGRESS')
    }
    assert.equal(await bed.count('account'), 1)
  })

  it('D6: while it is in progress, the same body is told so, and another one is a conflict', async () => {
    using turnstile = new Turnstile()
    const bed = await given(resources, { beforeCreate: () => turnstile.pass() })
    const first = bed.post('account', ACME, { key: 'k' })
    await turnstile.arrived
    assertRefused(await bed.post('account', ACME, { key: 'k' }), 'IDEMPOTENCY_IN_PROGRESS')
    assertRefused(await bed.post('account', { accountName: 'Other' }, { key: 'k' }), 'IDEMPOTENCY_CONFLICT')
    turnstile.open()
    assertReplay(await first, await bed.post('account', ACME, { key: 'k' }))
    assert.equal(await bed.count('account'), 1)
  })

  it('D7: what is not a success removes the record, and the corrected payload goes through', async () => {
    let isBroken = true
    const beforeCreate = () => {
      if (isBroken) throw new Error('the rules engine is down')
    }
    const bed = await given(resources, { beforeCreate })
    const attempt = async (path: Path, record: object, status: number) => {
      const answer = await bed.post(path, record, { key: 'k' })
      assert.equal(answer.status, status, answer.text)
      assert.equal(answer.headers.get(REPLAY), null)
      return answer
    }
    await attempt('contact', {}, 400)
    await attempt('contact', { name: 'Ada', accountId: 'nowhere' }, 422)
    await attempt('contact', { name: 'Ada' }, 500)
    assert.equal(await bed.keys.countDocuments({ key: 'k' }), 0)
    isBroken = false
    const created = await attempt('contact', { name: 'Ada Lovelace' }, 201)
    assertReplay(created, await bed.post('contact', { name: 'Ada Lovelace' }, { key: 'k' }))
    assert.equal(await bed.count('contact'), 1)
  })

  it('D8: other users and other routes never meet', async () => {
    const bed = await given()
    const anna = await bed.post('account', ACME, { key: 'k' })
    const zoe = await bed.post('account', { accountName: 'Globex' }, { key: 'k', token: 'zoe-token' })
    const boss = await bed.post('account', ACME, { key: 'k', token: 'boss-token' })
    const contact = await bed.post('contact', { name: 'Ada' }, { key: 'k' })
    assert.deepEqual(
      [anna, zoe, boss, contact].map(({ status, headers }) => [status, headers.get(REPLAY)]),
      Array(4).fill([201, null]),
    )
    assert.equal(await bed.count('account'), 3)
    const again = await bed.post('account', { accountName: 'Globex' }, { key: 'k', token: 'zoe-token' })
    assertReplay(zoe, again)
  })

  it('D9: without the header there is no effect at all', async () => {
    const bed = await given()
    const commands = await bed.commandsOf(async () => {
      for (const key of [undefined, undefined, '', '  '])
        assert.equal((await bed.post('account', ACME, { key })).status, 201)
    })
    assert.deepEqual(
      commands.map(({ commandName, command }) => `${commandName} ${command[commandName]}`),
      Array(4).fill('insert account'),
    )
    assert.equal(await bed.count('account'), 4)
  })

  it('D10: 24 hours by default, and IDEMPOTENCY_TTL_SECONDS overrides', async () => {
    for (const [env, ttlMs] of [
      [{}, 86_400_000],
      [{ IDEMPOTENCY_TTL_SECONDS: '90' }, 90_000],
    ] as const) {
      const bed = await given(resourcesFromEnvironment(env).contract)
      await bed.post('account', ACME, { key: 'k' })
      const [document] = await bed.keys
        .aggregate([{ $match: { key: 'k' } }, { $addFields: { now: '$$NOW' } }])
        .toArray()
      // It was settled after it was claimed, and before it was looked at.
      const settledAt = Number(document?.expiresAt) - ttlMs
      assert.ok(settledAt >= Number(document?.createdAt) && settledAt <= Number(document?.now))
    }
    for (const bad of ['a day', '-5', '0', 'Infinity', '1e99']) {
      const env = { IDEMPOTENCY_TTL_SECONDS: bad }
      await assert.rejects(start({ port: 0, env }), { code: 'config-invalid', message: /IDEMPOTENCY_TTL_SECONDS/ })
    }
  })

  it('D11: an expired record that nobody has swept counts as absent, and is replaced on sight', async () => {
    const bed = await given(resourcesFromEnvironment({ IDEMPOTENCY_TTL_SECONDS: '0.1' }).contract)
    const first = await bed.post('account', ACME, { key: 'k' })
    const old = await bed.keys.findOne({ key: 'k' })
    await bed.past(old?.expiresAt)
    assert.equal(await bed.keys.countDocuments({ key: 'k', createdAt: old?.createdAt }), 1, 'it is still there')
    // Another body: it does not even conflict.
    const again = await bed.post('account', { accountName: 'Acme again' }, { key: 'k' })
    assert.deepEqual([again.status, again.headers.get(REPLAY)], [201, null])
    assert.notEqual(again.body._id, first.body._id)
    assert.equal(await bed.count('account'), 2)
    const [document, ...more] = await bed.keys.find({ key: 'k' }).toArray()
    assert.equal(more.length, 0)
    assert.ok(document?.createdAt > old?.expiresAt)
    // Whoever only looks removes it.
    await bed.past(document?.expiresAt)
    const store = keyStore(bed.db)
    assert.equal(await store.read(String(document?._id)), undefined)
    assert.equal(await bed.keys.countDocuments({ key: 'k' }), 0)
    await store.close()
  })

  it('D14: the stored document has what an operator looks for', async () => {
    const bed = await given()
    const { text, status } = await bed.post('account', { ...ACME, creditLimit: 5 }, { key: 'k' })
    const document = await bed.keys.findOne({ key: 'k' })
    assert.deepEqual([document?.userId, document?.route, document?.status], ['anna', 'POST /api/v1/account', status])
    assert.match(document?.bodyHash, /^[0-9a-f]{64}$/)
    assert.equal(document?.body.toString('utf8'), text)
    assert.deepEqual(document?.headers, [['content-type', 'application/json; charset=utf-8']])
    assert.ok(document?.expiresAt instanceof Date && document.createdAt instanceof Date)
    const ttl = (await bed.keys.listIndexes().toArray()).find(({ expireAfterSeconds }) => expireAfterSeconds === 0)
    assert.deepEqual(ttl?.key, { goneAt: 1 })
    assert.deepEqual(document?.goneAt, document?.expiresAt)
    await bed.post('account', ACME, { key: 'l' })
    assert.equal((await bed.keys.findOne({ key: 'l' }))?.bodyHash, document?.bodyHash)
  })
})
