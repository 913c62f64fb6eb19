import { hash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { payments, paymentsFromEnvironment } from '../../src/contracts/index.ts'
import { verifyAudit } from '../../src/guards/audit.ts'
import { canonicalValue } from '../../src/operation/canonical.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'
import { claimOf, commitsIn, open, tempFile } from '../../test/support/sqlite.ts'
import { TOKENS } from './daemon.ts'
import { AUDIT_PATH, PAYMENTS_PATH } from './service.ts'
import { auditOf, envelopeOf, openSite, pay } from './site.ts'

const HOUR_MS = 3_600_000

describe('payment requests', () => {
  it('S1: identity is the key and the SHA-256 of the RFC 8785 body: order, white space and spelling do not count', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf({ memo: 'für März' })
    const first = await pay(url, 'k-1', envelope)
    expect(first.body.request_hash).toBe(hash('sha256', canonicalValue(envelope), 'hex'))

    const reversed = Object.fromEntries(Object.entries(envelope).reverse())
    const spelled = JSON.stringify(reversed, null, 2).replace('1999', '1999.0').replaceAll('ä', '\\u00e4')
    expect(spelled).not.toBe(JSON.stringify(envelope))
    const again = await pay(url, 'k-1', spelled)
    expect(again).toMatchObject({ status: 200, isReplay: true, text: first.text })

    expect(await pay(url, 'k-1', { ...envelope, amount: 2000 })).toMatchObject({ status: 409 })
    expect(decisions.count()).toBe(1)
  })

  it('S2: a retry with the same key and body gets the same decision, byte for byte, and none is made', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const first = await pay(url, 'k-1', envelope)
    expect(first).toMatchObject({ status: 200, isReplay: false, body: { decision: 'allow', audit_seq: 1 } })
    for (let i = 0; i < 3; i++) {
      expect(await pay(url, 'k-1', envelope)).toEqual({ ...first, isReplay: true })
    }
    expect(decisions.count()).toBe(1)
  })

  it('S2: a denied payment stays denied under its key, also when the limit would allow it now', async () => {
    const clock = manualClock(Date.UTC(2026, 0, 1, 23))
    const { url, decisions } = await openSite({ clock, limits: { paymentMax: 5_000, payeeDayMax: 6_000 } })
    await pay(url, 'k-1', envelopeOf({ amount: 4_000 }))
    const late = envelopeOf({ amount: 4_000 })
    const denied = await pay(url, 'k-2', late)
    expect(denied.body).toMatchObject({ decision: 'deny', reason: 'over the limit of 6000 for one payee on one day' })
    // The next day, and still within the life of the key.
    await clock.advance(2 * HOUR_MS)
    expect(await pay(url, 'k-2', late)).toEqual({ ...denied, isReplay: true })
    expect((await pay(url, 'k-3', envelopeOf({ amount: 4_000 }))).body).toMatchObject({ decision: 'allow' })
    expect(decisions.count()).toBe(3)
  })

  it('S3: the same key with another body is 409 protocol.idempotency_conflict, and nothing runs', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const first = await pay(url, 'k-1', envelope)
    const conflict = await pay(url, 'k-1', envelopeOf({ amount: 5 }))
    expect(conflict).toMatchObject({ status: 409, isReplay: false, body: { code: 'protocol.idempotency_conflict' } })
    expect(await pay(url, 'k-1', envelope)).toEqual({ ...first, isReplay: true })
    expect(decisions.count()).toBe(1)
  })

  it('S4: a new key runs the whole pipeline again: a new decision for the same payment', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const first = await pay(url, 'k-1', envelope)
    const second = await pay(url, 'k-2', { ...envelope, nonce: 'another' })
    expect(second).toMatchObject({ status: 200, isReplay: false, body: { audit_seq: 2 } })
    expect(second.body.decision_id).not.toBe(first.body.decision_id)
    expect(decisions.count()).toBe(2)
  })

  it('S4: also for the very same bytes: they are not replayed, but go as far as the nonce gate', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const first = await pay(url, 'k-1', envelope)
    const second = await pay(url, 'k-2', envelope)
    expect(second).toMatchObject({ status: 409, isReplay: false, body: { code: 'protocol.nonce_replay' } })
    expect((await auditOf(url, first.body.request_hash)).map(({ kind }) => kind)).toEqual(['event', 'refusal'])
    expect(decisions.count()).toBe(1)
  })

  it('keeps callers apart, and lets nobody in without a token', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    await pay(url, 'k-1', envelope)
    expect(await pay(url, 'k-1', envelope, { token: TOKENS.ben })).toMatchObject({ status: 200, isReplay: false })
    expect(decisions.count()).toBe(2)
    expect(await pay(url, 'k-1', envelope, { token: 'stolen' })).toMatchObject({ status: 401 })
    const asAnna = { headers: { authorization: `Bearer ${TOKENS.anna}` } }
    expect((await fetch(new URL(AUDIT_PATH, url), asAnna)).status).toBe(403)
    const noKey = await fetch(new URL(PAYMENTS_PATH, url), { ...asAnna, method: 'POST', body: '{}' })
    expect([noKey.status, (await noKey.json()) as object]).toMatchObject([
      400,
      { code: 'protocol.idempotency_key_missing' },
    ])
  })

  it.each([
    ['no JSON', 'nonsense', 'schema.invalid'],
    ['a field too many', { ...envelopeOf(), discount: 5 }, 'schema.invalid'],
    ['no nonce', { ...envelopeOf(), nonce: '' }, 'schema.invalid'],
    ['half a cent', { ...envelopeOf(), amount: 0.5 }, 'schema.invalid'],
    ['a field twice', JSON.stringify(envelopeOf()).replace('{', '{"amount":1,'), 'schema.ambiguous'],
  ])('refuses a body with %s, and decides nothing', async (_what, body, code) => {
    const { url, decisions } = await openSite()
    expect(await pay(url, 'k-1', body)).toMatchObject({ status: 422, body: { code } })
    expect(decisions.count()).toBe(0)
  })
})

describe('S5: how long a key lives', () => {
  it('S5: 24 h by default; IDEMPOTENCY_TTL_HOURS sets it', () => {
    expect(payments.ttl).toMatchObject({ committedMs: 24 * HOUR_MS, rejectedMs: 24 * HOUR_MS, expiredMs: 0 })
    expect(paymentsFromEnvironment({}).contract.ttl.committedMs).toBe(24 * HOUR_MS)
    expect(paymentsFromEnvironment({ IDEMPOTENCY_TTL_HOURS: '2' }).contract.ttl.committedMs).toBe(2 * HOUR_MS)
    expect(() => paymentsFromEnvironment({ IDEMPOTENCY_TTL_HOURS: 'two' })).toThrow(/IDEMPOTENCY_TTL_HOURS is "two"/)
  })

  it.each([
    [{}, 24],
    [{ IDEMPOTENCY_TTL_HOURS: '2' }, 2],
  ])('S5: with %j the key is new after %d hours, to the millisecond', async (env, hours) => {
    const clock = manualClock()
    const { url, decisions } = await openSite({ clock, contract: paymentsFromEnvironment(env).contract })
    const envelope = envelopeOf()
    const other = envelopeOf({ amount: 5 })
    const first = await pay(url, 'k-1', envelope)
    await clock.advance(hours * HOUR_MS - 1)
    expect(await pay(url, 'k-1', envelope)).toEqual({ ...first, isReplay: true })
    expect(await pay(url, 'k-1', other)).toMatchObject({ status: 409 })
    await clock.advance(1)
    const anew = await pay(url, 'k-1', other)
    expect(anew).toMatchObject({ status: 200, isReplay: false, body: { decision: 'allow' } })
    expect(anew.body.decision_id).not.toBe(first.body.decision_id)
    expect(decisions.count()).toBe(2)
  })

  it('S5 S7: a recorded request that is sent again after its key has expired runs, and is a nonce replay', async () => {
    const clock = manualClock()
    const { url, decisions } = await openSite({ clock })
    const envelope = envelopeOf()
    await pay(url, 'k-1', envelope)
    await clock.advance(24 * HOUR_MS)
    const replayed = await pay(url, 'k-1', envelope)
    expect(replayed).toMatchObject({ status: 409, isReplay: false, body: { code: 'protocol.nonce_replay' } })
    expect(decisions.count()).toBe(1)
  })
})

describe('S6: one transaction', () => {
  it('S6: check and record are one SQLite transaction: one commit leaves the record of the winner', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('0'.repeat(64)))
    const before = commitsIn(path)
    const id = '1'.repeat(64)
    const claims = await Promise.all(['a', 'b', 'c'].map((token) => store.claim(claimOf(id, { token }))))
    expect(claims.map(({ state }) => state).sort()).toEqual(['acquired', 'running', 'running'])
    expect(commitsIn(path) - before).toBe(1)
  })

  it('S6: fifty at once with one key and one body: one execution, one shared decision', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const all = await Promise.all(Array.from({ length: 50 }, () => pay(url, 'k-1', envelope)))
    expect(new Set(all.map(({ text }) => text)).size).toBe(1)
    expect(all.filter(({ isReplay }) => !isReplay)).toHaveLength(1)
    expect(all.every(({ status }) => status === 200)).toBe(true)
    expect(decisions.count()).toBe(1)
  })

  it('S6: at once with one key and two bodies: one success and one 409, in every one of thirty races', async () => {
    const { url, decisions } = await openSite({ limits: { paymentMax: 100_000, payeeDayMax: 1_000_000 } })
    const races = Array.from({ length: 30 }, async (_, i) => {
      const both = await Promise.all([pay(url, `k-${i}`, envelopeOf()), pay(url, `k-${i}`, envelopeOf({ amount: 5 }))])
      return both.map(({ status, body }) => [status, body.code ?? body.decision]).sort()
    })
    for (const race of await Promise.all(races)) {
      expect(race).toEqual([
        [200, 'allow'],
        [409, 'protocol.idempotency_conflict'],
      ])
    }
    expect(decisions.count()).toBe(30)
  })
})

describe('S7: the nonce gate beside the key', () => {
  // The nonce is in the body, so "same body" is the rest of the envelope: with a new nonce the bytes differ anyway.
  it.each([
    ['same', 'same', 'same', 'replay', 'a true retry: answered before it comes to the gate'],
    ['same', 'same', 'other', 'protocol.idempotency_conflict', 'the key speaks first: it was used for another body'],
    ['same', 'new', 'same', 'protocol.idempotency_conflict', 'a new nonce is another body'],
    ['same', 'new', 'other', 'protocol.idempotency_conflict', 'another body in every way'],
    ['new', 'same', 'same', 'protocol.nonce_replay', 'a recorded request under a new key'],
    ['new', 'same', 'other', 'protocol.nonce_replay', 'a nonce belongs to one operation, whatever is in the rest'],
    ['new', 'new', 'same', 'allow', 'the same payment once more, and meant so'],
    ['new', 'new', 'other', 'allow', 'another payment'],
  ])('S7: %s key, %s nonce, %s body: %s (%s)', async (key, nonce, body, expected) => {
    const { url, decisions } = await openSite()
    const first = await pay(url, 'k-1', envelopeOf({ nonce: 'n-1' }))
    const second = await pay(
      url,
      key === 'same' ? 'k-1' : 'k-2',
      envelopeOf({ nonce: nonce === 'same' ? 'n-1' : 'n-2', ...(body === 'other' && { amount: 5 }) }),
    )
    const isNew = expected === 'allow'
    if (expected === 'replay') expect(second).toEqual({ ...first, isReplay: true })
    else expect(second).toMatchObject({ status: isNew ? 200 : 409, isReplay: false })
    if (expected !== 'replay') expect(second.body.code ?? second.body.decision).toBe(expected)
    expect(decisions.count()).toBe(isNew ? 2 : 1)
  })

  it('S7: the refusal is the answer of its key, and a burnt nonce stays burnt', async () => {
    const { url } = await openSite()
    await pay(url, 'k-1', envelopeOf({ nonce: 'n-1' }))
    const envelope = envelopeOf({ nonce: 'n-1' })
    const refused = await pay(url, 'k-2', envelope)
    expect(await pay(url, 'k-2', envelope)).toEqual({ ...refused, isReplay: true })
    expect(await pay(url, 'k-3', envelope)).toMatchObject({ status: 409, body: { code: 'protocol.nonce_replay' } })
  })

  it('S7: thirty keys with one nonce at once: one decision', async () => {
    const { url, decisions } = await openSite()
    const envelope = envelopeOf()
    const all = await Promise.all(Array.from({ length: 30 }, (_, i) => pay(url, `k-${i}`, envelope)))
    expect(all.filter(({ status }) => status === 200)).toHaveLength(1)
    expect(all.filter(({ body }) => body.code === 'protocol.nonce_replay')).toHaveLength(29)
    expect(decisions.count()).toBe(1)
  })
})

describe('S8: the audit log', () => {
  it('S8: one event for the first request only, and every retry under the same request_hash', async () => {
    const { url, audit, data } = await openSite()
    const envelope = envelopeOf()
    const { body } = await pay(url, 'k-1', envelope)
    await pay(url, 'k-2', envelopeOf())
    for (let i = 0; i < 3; i++) await pay(url, 'k-1', envelope)
    await audit.idle()
    const entries = await auditOf(url, body.request_hash)
    expect(entries.map(({ kind }) => kind)).toEqual(['event', 'retry', 'retry', 'retry'])
    expect(entries[0]).toMatchObject({
      seq: body.audit_seq,
      data: { decision_id: body.decision_id, principal: 'anna' },
    })
    expect(entries[1]).toMatchObject({ data: { status: 200, labels: { key: 'k-1', principal: 'anna' } } })
    expect(await verifyAudit(join(data, 'audit.log'))).toMatchObject({ state: 'intact', lines: 6 })
  })

  it('S8: a storm of retries is one event', async () => {
    const { url, audit } = await openSite()
    const envelope = envelopeOf()
    const all = await Promise.all(Array.from({ length: 20 }, () => pay(url, 'k-1', envelope)))
    await audit.idle()
    const kinds = (await auditOf(url, all[0]?.body.request_hash)).map(({ kind }) => kind)
    expect(kinds).toEqual(['event', ...Array.from({ length: 19 }, () => 'retry')])
  })

  it('S8: a decision that somebody changes later is found', async () => {
    const { url, audit, data } = await openSite({ limits: { paymentMax: 1_000, payeeDayMax: 1_000 } })
    await pay(url, 'k-1', envelopeOf({ amount: 500 }))
    await pay(url, 'k-2', envelopeOf({ amount: 5_000 }))
    await audit.idle()
    const file = join(data, 'audit.log')
    writeFileSync(file, readFileSync(file, 'utf8').replace('"decision":"deny"', '"decision":"allow"'))
    expect(await verifyAudit(file)).toMatchObject({ state: 'broken', line: 3, problem: 'changed' })
  })
})
