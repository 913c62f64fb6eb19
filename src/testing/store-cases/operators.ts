import assert from 'node:assert/strict'
import type { StoreCase } from './kit.ts'
import { answerIn, answerOf, chapter, ID, idOf, plain, STATES, together } from './kit.ts'

export const operatorCases: readonly StoreCase[] = chapter('list, forget and sweep', {
  'list of an empty store is empty, and read gives nothing': async (bench) => {
    assert.deepEqual(await bench.store.list(), [])
    assert.equal(await bench.store.read(ID), undefined)
  },

  'list is in the order of the ids, and its pages join without gap or repeat': async (bench) => {
    const ids = Array.from({ length: 25 }, (_, i) => idOf(i))
    await together(25, (i) => bench.claim({ id: idOf(i), leaseMs: 1_000 * bench.tickMs }))
    ids.sort()
    const paged: string[] = []
    for (let page = 0; page < 4; page++) {
      const after = paged.at(-1)
      const records = await bench.store.list(after === undefined ? { limit: 10 } : { limit: 10, after })
      assert.equal(records.length, [10, 10, 5, 0][page])
      paged.push(...records.map(({ id }) => id))
    }
    assert.deepEqual(paged, ids)
    assert.deepEqual(
      (await bench.store.list({ after: `${ids[3]}`, limit: 1 })).map(({ id }) => id),
      [ids[4]],
    )
  },

  'list gives 100 records unless told otherwise': async (bench) => {
    await together(105, (i) => bench.claim({ id: idOf(i), leaseMs: 1_000 * bench.tickMs }))
    assert.equal((await bench.store.list()).length, 100)
    assert.equal((await bench.store.list({ limit: 1_000 })).length, 105)
  },

  'list by state finds the records of that state, and fills its pages with them': async (bench) => {
    const long = 1_000 * bench.tickMs
    const idsOf = (state: string) => [0, 1, 2].map((i) => idOf(`${state} ${i}`)).sort()
    for (const id of idsOf('unknown')) await bench.claimed({ id, unknownTtlMs: long })
    for (const id of [...idsOf('settled'), ...idsOf('expired')]) await bench.claimed({ id, leaseMs: long })
    for (const id of idsOf('settled')) await bench.store.settle(id, 'owner', bench.settlement({ ttlMs: long }))
    for (const id of idsOf('expired')) await bench.store.settle(id, 'owner', bench.settlement({ expiredTtlMs: long }))
    await bench.elapse(2)
    for (const id of idsOf('running')) await bench.claimed({ id, leaseMs: long })
    for (const state of STATES) {
      const records = await bench.store.list({ state, limit: 3 })
      assert.deepEqual(
        records.map(({ id }) => id),
        idsOf(state),
      )
      assert.deepEqual(new Set(records.map((record) => record.state)), new Set([state]))
      const rest = await bench.store.list({ state, after: `${idsOf(state)[0]}` })
      assert.deepEqual(
        rest.map(({ id }) => id),
        idsOf(state).slice(1),
      )
    }
  },

  'list and read tell the same of a record': [
    'exact-clock',
    async (bench) => {
      for (const state of STATES) {
        await bench.given(state)
        const [listed] = await bench.store.list()
        const read = await bench.isIn(state)
        assert.ok(listed)
        if (listed.state === 'settled') assert.deepEqual(plain(listed.answer), plain(answerIn(read)))
        assert.deepEqual({ ...listed, answer: undefined }, { ...read, answer: undefined })
        await bench.store.forget(ID)
      }
    },
  ],

  'redact takes body, headers and labels from an answer, and keeps the claim': async (bench) => {
    const long = 1_000 * bench.tickMs
    await bench.claimed({ labels: { key: 'abc', principal: 'anna' } })
    await bench.settled({ outcome: 'rejected', answer: answerOf('secret', 404), ttlMs: long, expiredTtlMs: 7 * long })
    const before = await bench.isIn('settled')
    assert.equal(await bench.store.redact(ID), true)
    const claim = await bench.claim({ token: 'second' })
    assert.ok(claim.state === 'settled', 'the claim is kept')
    assert.deepEqual(plain(claim.answer), plain({ status: 404, headers: [], body: null }))
    const after = await bench.isIn('settled')
    assert.deepEqual({ ...after.labels }, {})
    assert.deepEqual(
      [after.outcome, after.fingerprint, after.createdAt, after.attempt],
      [before.outcome, before.fingerprint, before.createdAt, before.attempt],
    )
    assert.ok(Math.abs(after.goneAt - before.goneAt) < bench.tickMs, 'it lives as long as before')
    assert.equal(await bench.store.redact(ID), true, 'a second time')
    assert.equal(await bench.settle('owner'), true, 'the owner that asks again is told the same')
  },

  'redact of an expired record takes its labels': async (bench) => {
    await bench.claimed({ labels: { key: 'abc' } })
    await bench.settled({ expiredTtlMs: 1_000 * bench.tickMs })
    await bench.elapse(2)
    assert.equal(await bench.store.redact(ID), true)
    assert.deepEqual({ ...(await bench.isIn('expired')).labels }, {})
  },

  'redact of what has no answer changes nothing, and says so': async (bench) => {
    assert.equal(await bench.store.redact(ID), false)
    await bench.isAbsent()
    await bench.claimed({ labels: { key: 'abc' }, unknownTtlMs: 1_000 * bench.tickMs })
    assert.equal(await bench.store.redact(ID), false)
    await bench.elapse(2)
    assert.equal(await bench.store.redact(ID), false)
    assert.deepEqual({ ...(await bench.isIn('unknown')).labels }, { key: 'abc' })
  },

  'forget removes the record in any state, once, and the key is new': async (bench) => {
    for (const state of STATES) {
      await bench.given(state)
      assert.equal(await bench.store.forget(ID), true, state)
      await bench.isAbsent()
      assert.equal(await bench.store.forget(ID), false, state)
      assert.equal(await bench.settle('owner'), false, state)
      await bench.claimed({ token: 'second', fingerprint: 'another' })
      await bench.store.forget(ID)
    }
  },

  'forget removes one record only': async (bench) => {
    await bench.given('settled')
    await bench.claimed({ id: idOf('b') })
    assert.equal(await bench.store.forget(idOf('b')), true)
    assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answerOf('first')))
  },

  'sweep frees nothing that is running, unknown, settled or expired': async (bench) => {
    for (const state of STATES) {
      await bench.given(state)
      const before = await bench.lasting()
      assert.equal(await bench.store.sweep(), 0, state)
      assert.deepEqual(await bench.lasting(), before)
      await bench.store.forget(ID)
    }
  },

  'sweep frees what is gone, and leaves the rest': [
    'sweep',
    async (bench) => {
      const long = 1_000 * bench.tickMs
      await bench.claimed({ id: idOf('unknown'), unknownTtlMs: long })
      await bench.claimed({ id: idOf('running'), leaseMs: long })
      await bench.claimed({ id: idOf('gone'), unknownTtlMs: 0 })
      await bench.claimed({ id: idOf('answered') })
      await bench.store.settle(idOf('answered'), 'owner', bench.settlement({ expiredTtlMs: 0 }))
      await bench.claimed({ id: idOf('expired') })
      await bench.store.settle(idOf('expired'), 'owner', bench.settlement({ expiredTtlMs: long }))
      await bench.elapse(2)
      assert.equal(await bench.store.sweep(), 2)
      const left = (await bench.store.list()).map(({ id }) => id)
      assert.deepEqual(left, [idOf('unknown'), idOf('running'), idOf('expired')].sort())
      assert.equal((await bench.isIn('expired', idOf('expired'))).fingerprint, 'print')
    },
  ],

  'sweep frees no more than its limit, and comes to an end': [
    'sweep',
    async (bench) => {
      await together(10, (i) => bench.claim({ id: idOf(i) }))
      await bench.elapse(6)
      const steps: number[] = []
      for (let step = 0; step < 4; step++) steps.push(await bench.store.sweep(4))
      assert.deepEqual(steps, [4, 4, 2, 0])
    },
  ],

  '10,000 records come and go': [
    'sweep',
    async (bench) => {
      const RECORDS = 10_000
      const STEP = 500
      for (let from = 0; from < RECORDS; from += STEP) {
        const claims = await together(STEP, (i) => bench.claim({ id: idOf(from + i) }))
        for (const claim of claims) assert.equal(claim.state, 'acquired')
      }
      await bench.elapse(6)
      let freed = 0
      for (let step = 0; step < RECORDS / STEP; step++) freed += await bench.store.sweep(STEP)
      assert.equal(freed, RECORDS)
      assert.equal(await bench.store.sweep(), 0)
      await bench.claimed({ id: idOf(0) })
    },
  ],
})
