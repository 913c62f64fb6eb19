import assert from 'node:assert/strict'
import type { StoreCase } from './kit.ts'
import { answerIn, answerOf, chapter, countOf, ID, plain, together } from './kit.ts'

/** A reply was lost, and the caller asks again: on the same handle or, after a reconnect, on another. */
export const retryCases: readonly StoreCase[] = chapter('lost replies', {
  'a claim asked again with its token is acquired, as the same attempt': async (bench) => {
    const other = await bench.another()
    await bench.claimed()
    const before = await bench.lasting()
    await bench.claimed()
    assert.deepEqual(await bench.claim({}, other), { state: 'acquired', attempt: 1 })
    assert.deepEqual(await bench.lasting(), before)
  },

  'a claim sent twenty times at once with one token is acquired each time, as attempt 1': async (bench) => {
    const other = await bench.another()
    const claims = await together(20, (i) => bench.claim({}, i % 2 === 0 ? bench.store : other))
    for (const claim of claims) assert.deepEqual(claim, { state: 'acquired', attempt: 1 })
    assert.equal((await bench.claim({ token: 'second' })).state, 'running')
  },

  'a claim asked again after its lease lapsed is still its own, and is no takeover': async (bench) => {
    await bench.given('unknown')
    await bench.claimed({ takeover: true })
    assert.equal((await bench.store.read(ID))?.attempt, 1)
  },

  'a takeover asked again with its token is acquired, as the same attempt': async (bench) => {
    const other = await bench.another()
    await bench.given('unknown')
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    assert.deepEqual(await bench.claim({ token: 'taker' }, other), { state: 'acquired', attempt: 2 })
    assert.equal((await bench.isIn('running')).attempt, 2)
  },

  'a takeover sent twenty times at once with one token counts once': async (bench) => {
    const other = await bench.another()
    await bench.given('unknown')
    const claims = await together(20, (i) => {
      return bench.claim({ token: 'taker', takeover: true }, i % 2 === 0 ? bench.store : other)
    })
    assert.equal(countOf(claims, 'acquired'), 20)
    for (const claim of claims) assert.deepEqual(claim, { state: 'acquired', attempt: 2 })
  },

  'a claim asked again by the owner of before a takeover is not acquired': async (bench) => {
    await bench.given('unknown')
    await bench.claimed({ token: 'taker', takeover: true }, 2)
    assert.equal((await bench.claim({ takeover: true })).state, 'running')
    assert.equal(await bench.settle('taker'), true)
  },

  'a claim asked again after its own settle gets the answer': async (bench) => {
    await bench.given('settled')
    assert.deepEqual(plain(answerIn(await bench.claim())), plain(answerOf('first')))
    assert.deepEqual(plain(answerIn(await bench.claim({ takeover: true }))), plain(answerOf('first')))
  },

  'J8: a settle asked again is true, and what the first one stored stays': async (bench) => {
    const other = await bench.another()
    await bench.given('settled')
    const before = await bench.lasting()
    const again = { outcome: 'rejected' as const, answer: answerOf('second', 500), ttlMs: 9 * bench.tickMs }
    assert.equal(await bench.settle('owner', again), true)
    assert.equal(await bench.settle('owner', again, other), true)
    assert.deepEqual(await bench.lasting(), before)
    assert.equal((await bench.isIn('settled')).outcome, 'committed')
  },

  'twenty settles at once with one token are all true, and one answer stays': async (bench) => {
    const other = await bench.another()
    await bench.given('running')
    const settles = await together(20, (i) => {
      return bench.settle('owner', { answer: answerOf(`answer ${i}`) }, i % 2 === 0 ? bench.store : other)
    })
    assert.deepEqual(new Set(settles), new Set([true]))
    const kept = plain((await bench.isIn('settled')).answer)
    assert.deepEqual(plain(answerIn(await bench.claim({ token: 'second' }, other))), kept)
  },

  'a release asked again is false, and does not touch the next owner': async (bench) => {
    await bench.given('running')
    assert.equal(await bench.store.release(ID, 'owner'), true)
    assert.equal(await bench.store.release(ID, 'owner'), false)
    await bench.claimed({ token: 'second' })
    assert.equal(await bench.store.release(ID, 'owner'), false)
    await bench.isIn('running')
  },
})
