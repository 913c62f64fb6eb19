import assert from 'node:assert/strict'
import type { StoreCase } from './kit.ts'
import { answerIn, answerOf, chapter, countOf, ID, plain, together } from './kit.ts'

export const takeoverCases: readonly StoreCase[] = chapter('takeover', {
  'X2: when the lease lapsed the record is unknown, and is not taken over without being asked': async (bench) => {
    await bench.given('unknown')
    const before = await bench.lasting()
    const claim = await bench.claim({ token: 'second' })
    assert.equal(claim.state, 'unknown')
    assert.equal(claim.fingerprint, 'print')
    assert.ok(claim.goneInMs > 0 && claim.goneInMs <= 4 * bench.tickMs, `${claim.goneInMs} ms left`)
    assert.deepEqual(await bench.lasting(), before)
    assert.equal(await bench.settle('second'), false)
  },

  'X1: a live lease is never taken over, although asked': async (bench) => {
    await bench.given('running')
    const claim = await bench.claim({ token: 'second', takeover: true })
    assert.equal(claim.state, 'running')
    assert.equal(await bench.settle('second'), false)
    assert.equal(await bench.settle('owner'), true)
  },

  'an unknown record with another fingerprint is not taken over': async (bench) => {
    await bench.given('unknown')
    const claim = await bench.claim({ token: 'second', fingerprint: 'another', takeover: true })
    assert.equal(claim.state, 'unknown')
    assert.equal(await bench.settle('second'), false)
    assert.equal((await bench.isIn('unknown')).attempt, 1)
  },

  'each takeover adds one to the attempt, with a fresh lease on the same record': async (bench) => {
    await bench.claimed({ labels: { who: 'first' } })
    const { createdAt, goneAt } = await bench.isIn('running')
    for (const attempt of [2, 3]) {
      await bench.elapse(2)
      await bench.claimed({ token: `taker ${attempt}`, takeover: true }, attempt)
      const record = await bench.isIn('running')
      assert.equal(record.attempt, attempt)
      assert.equal(record.createdAt, createdAt)
      assert.ok(record.goneAt > goneAt)
    }
    assert.equal(await bench.settle('taker 3'), true)
    assert.equal((await bench.isIn('settled')).attempt, 3)
  },

  'of 100 concurrent takeovers, on two handles, exactly one wins': async (bench) => {
    const other = await bench.another()
    await bench.given('unknown')
    const claims = await together(100, (i) => {
      const over = { token: `taker ${i}`, takeover: true, leaseMs: 1_000 * bench.tickMs }
      return bench.claim(over, i % 2 === 0 ? bench.store : other)
    })
    assert.equal(countOf(claims, 'acquired'), 1)
    assert.equal(countOf(claims, 'running'), 99)
    const winner = claims.findIndex((claim) => claim.state === 'acquired')
    assert.deepEqual(claims[winner], { state: 'acquired', attempt: 2 })
    const settles = await together(100, (i) => bench.settle(`taker ${i}`))
    assert.deepEqual([settles.filter(Boolean).length, settles[winner]], [1, true])
  },

  'J8: a settled or expired record is never taken over': async (bench) => {
    await bench.given('settled')
    assert.equal((await bench.claim({ token: 'second', takeover: true })).state, 'settled')
    await bench.elapse(2)
    assert.equal((await bench.claim({ token: 'second', takeover: true })).state, 'expired')
    assert.equal(await bench.store.renew(ID, 'second', bench.tickMs), false)
    await bench.isIn('expired')
  },

  'a late owner may settle when nobody took over': async (bench) => {
    await bench.given('unknown')
    assert.equal(await bench.settle('owner'), true)
    const claim = await bench.claim({ token: 'second', takeover: true })
    assert.deepEqual(plain(answerIn(claim)), plain(answerOf('first')))
  },

  'a late owner may release when nobody took over': async (bench) => {
    await bench.given('unknown')
    assert.equal(await bench.store.release(ID, 'owner'), true)
    await bench.claimed({ token: 'second' })
  },

  'a late owner may renew when nobody took over, and is running again': async (bench) => {
    await bench.given('unknown')
    assert.equal(await bench.store.renew(ID, 'owner', 2 * bench.tickMs), true)
    await bench.isIn('running')
    assert.equal((await bench.claim({ token: 'second', takeover: true })).state, 'running')
  },

  'X1: after a takeover the late owner can settle, release and renew nothing': async (bench) => {
    await bench.given('unknown')
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    const before = await bench.lasting()
    assert.equal(await bench.settle('owner', { answer: answerOf('late') }), false, 'settle')
    assert.equal(await bench.store.release(ID, 'owner'), false, 'release')
    assert.equal(await bench.store.renew(ID, 'owner', 3 * bench.tickMs), false, 'renew')
    assert.equal(await bench.store.renew(ID, 'owner', 0), false, 'give up')
    assert.deepEqual(await bench.lasting(), before)
    assert.equal(await bench.settle('taker'), true)
  },

  'X2: a taker that releases leaves the record unknown: the owner of before may have acted': async (bench) => {
    await bench.given('unknown')
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    assert.equal(await bench.store.release(ID, 'taker'), true)
    await bench.isIn('unknown')
    await bench.claimed({ token: 'third', takeover: true }, 3)
  },

  'X1: after the taker settled, the late owner changes nothing': async (bench) => {
    await bench.given('unknown')
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    assert.equal(await bench.settle('taker', { answer: answerOf('the answer') }), true)
    assert.equal(await bench.settle('owner', { answer: answerOf('late') }), false)
    assert.equal(await bench.store.release(ID, 'owner'), false)
    assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answerOf('the answer')))
  },
})
