import assert from 'node:assert/strict'
import type { Store } from '../../store.ts'
import type { Bench, StoreCase } from './kit.ts'
import { answerIn, answerOf, chapter, countOf, ID, idOf, plain, refuses, STATES, together, tryTo } from './kit.ts'

export const claimCases: readonly StoreCase[] = chapter('claim', {
  'an absent id is acquired, as attempt 1': async (bench) => {
    await bench.claimed()
    const record = await bench.isIn('running')
    assert.equal(record.id, ID)
    assert.equal(record.attempt, 1)
    assert.equal(record.fingerprint, 'print')
  },

  'a running record is reported with its own fingerprint and the time left': async (bench) => {
    await bench.claimed({ leaseMs: 100 * bench.tickMs })
    const claim = await bench.claim({ token: 'second', fingerprint: 'another' })
    assert.equal(claim.state, 'running')
    assert.equal(claim.fingerprint, 'print')
    assert.ok(claim.leaseLeftMs > 0 && claim.leaseLeftMs <= 100 * bench.tickMs, `${claim.leaseLeftMs} ms left`)
  },

  'of 200 concurrent claims of one id, on two handles, exactly one is acquired': async (bench) => {
    const other = await bench.another()
    const claims = await together(200, (i) => {
      return bench.claim({ ...LONG(bench), token: `t${i}` }, i % 2 === 0 ? bench.store : other)
    })
    assert.equal(countOf(claims, 'acquired'), 1)
    assert.equal(countOf(claims, 'running'), 199)
  },

  'of many ids at once, each claimed by four, each has one owner': async (bench) => {
    const other = await bench.another()
    const claims = await together(200, (i) => {
      const over = { ...LONG(bench), id: idOf(i % 50), token: `t${i}` }
      return bench.claim(over, i < 100 ? bench.store : other)
    })
    for (let id = 0; id < 50; id++) {
      const ofThisId = claims.filter((_, i) => i % 50 === id)
      assert.equal(countOf(ofThisId, 'acquired'), 1, `id ${id}`)
    }
  },

  'X1: racing claims, takeovers, settles, releases and give-ups: one owner at a time, one answer': async (bench) => {
    for (let round = 0; round < 10; round++) await race(bench, idOf(`round ${round}`))
  },

  'a claim with another fingerprint changes nothing, in any state': async (bench) => {
    for (const state of STATES) {
      await bench.given(state)
      const before = await bench.lasting()
      const claim = await bench.claim({ token: 'second', fingerprint: 'another', takeover: true, labels: { a: 'b' } })
      assert.equal(claim.state, state)
      assert.equal(claim.fingerprint, 'print')
      assert.deepEqual(await bench.lasting(), before)
      await bench.store.forget(ID)
    }
  },

  'J2: a running and an unknown record are kept, however many others come': async (bench) => {
    const lifetimes = { leaseMs: 1_000 * bench.tickMs, unknownTtlMs: 1_000 * bench.tickMs }
    await bench.claimed(lifetimes)
    await bench.claimed({ ...lifetimes, id: idOf('unknown') })
    await bench.store.renew(idOf('unknown'), 'owner', 0)
    await together(2_000, async (i) => {
      await bench.claim({ ...lifetimes, id: idOf(i) })
      return bench.store.settle(idOf(i), 'owner', bench.settlement({ ttlMs: 1_000 * bench.tickMs }))
    })
    await bench.isIn('running')
    await bench.isIn('unknown', idOf('unknown'))
    assert.equal(await bench.settle('owner'), true)
  },

  'labels are kept as given, and are empty when none were': async (bench) => {
    const labels = {
      route: '/orders/:id',
      "it's": '"; DROP TABLE x; --',
      'clé ☃ 🔑': 'žluťoučký\n',
      ['__proto__']: 'own',
    }
    await bench.claimed({ labels })
    await bench.claimed({ id: idOf('b') })
    assert.deepEqual(Object.entries((await bench.isIn('running')).labels).sort(), Object.entries(labels).sort())
    assert.deepEqual({ ...(await bench.isIn('running', idOf('b'))).labels }, {})
  },

  'labels are not changed by a caller that reuses them, nor by a reader': async (bench) => {
    const labels: Record<string, string> = { route: '/orders' }
    await bench.claimed({ labels })
    labels.route = 'changed'
    const read = await bench.isIn('running')
    tryTo(() => Object.assign(read.labels, { route: 'changed' }))
    assert.deepEqual({ ...(await bench.isIn('running')).labels }, { route: '/orders' })
  },

  'hostile ids are opaque: each is a record of its own': async (bench) => {
    for (const id of HOSTILE_IDS) await bench.claimed({ ...LONG(bench), id })
    for (const id of HOSTILE_IDS) {
      const settlement = bench.settlement({ answer: answerOf(`answer of ${id}`), ttlMs: 100 * bench.tickMs })
      assert.equal(await bench.store.settle(id, 'owner', settlement), true, id)
    }
    for (const id of HOSTILE_IDS) {
      const record = await bench.isIn('settled', id)
      assert.equal(record.id, id)
      assert.deepEqual(plain(record.answer), plain(answerOf(`answer of ${id}`)))
    }
    const listed = await bench.store.list({ limit: 100 })
    assert.deepEqual(listed.map(({ id }) => id).sort(), [...HOSTILE_IDS].sort())
  },

  'hostile fingerprints and tokens are compared exactly': async (bench) => {
    for (const [i, text] of HOSTILE_TEXTS.entries()) {
      const id = idOf(i)
      await bench.claimed({ id, token: text, fingerprint: text })
      for (const other of [`${text} `, text.slice(0, -1), text.toUpperCase(), '%']) {
        if (other !== text) assert.equal(await bench.store.renew(id, other, bench.tickMs), false, other)
      }
      const claim = await bench.claim({ id, token: 'second', fingerprint: 'another' })
      assert.equal(claim.state === 'running' && claim.fingerprint, text)
      assert.equal(await bench.store.settle(id, text, bench.settlement()), true, text)
      assert.equal((await bench.isIn('settled', id)).fingerprint, text)
    }
  },

  'a lease of 0, of less, or that is no number is refused, and nothing is claimed': async (bench) => {
    for (const leaseMs of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) {
      await refuses('config-invalid', () => bench.store.claim(bench.request({ leaseMs })))
      await bench.isAbsent()
    }
    await bench.claimed()
  },

  'any other lifetime that is negative or no number is refused, and changes nothing': async (bench) => {
    for (const bad of [-1, Number.NaN, Number.POSITIVE_INFINITY]) {
      await refuses('config-invalid', () => bench.store.claim(bench.request({ unknownTtlMs: bad })))
      await bench.isAbsent()
      await bench.claimed()
      const before = await bench.lasting()
      await refuses('config-invalid', () => bench.store.renew(ID, 'owner', bad))
      await refuses('config-invalid', () => bench.store.settle(ID, 'owner', bench.settlement({ ttlMs: bad })))
      await refuses('config-invalid', () => bench.store.settle(ID, 'owner', bench.settlement({ expiredTtlMs: bad })))
      assert.deepEqual(await bench.lasting(), before)
      await bench.store.forget(ID)
    }
  },
})

/** A lease that no slow machine outlives. */
const LONG = (bench: Bench) => ({ leaseMs: 1_000 * bench.tickMs })

const HOSTILE_IDS: readonly string[] = [
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  "it's",
  '"quoted"',
  "'; DROP TABLE records; --",
  '{tag}:with:colons',
  'a*b?c[d]',
  '%_\\',
  '../../etc/passwd',
  'ab',
  'AB',
  'ab ',
  ' ab',
  '0',
  '00',
  '1e3',
  '1000',
  'null',
  'x'.repeat(1_024),
  `${'x'.repeat(1_023)}y`,
]

const HOSTILE_TEXTS: readonly string[] = [
  "it's",
  '"; --',
  '__proto__',
  'ascii',
  'ünïcödé ☃ 🔑',
  'tab\tand\nnewline',
  '%_\\*',
  'x'.repeat(1_024),
]

/**
 * Ten actors on two handles fight for one record until it is settled. Each that acquires it gives it up, releases it or
 * settles it, at the latest at its third time; a holder counts itself out before it asks for that, so a second holder
 * at any moment is the store's mistake. The others come again when a holder starts to let go, in the middle of it, and
 * when it is done: so nobody spins, and the turns are bounded on a store of any speed.
 */
async function race(bench: Bench, id: string): Promise<void> {
  const ACTORS = 10
  const TURNS_MAX = 2 * 3 * ACTORS + 3 + 1
  const lease = LONG(bench)
  const other = await bench.another()
  let holders = 0
  let change = Promise.withResolvers<void>()
  const announce = () => {
    change.resolve()
    change = Promise.withResolvers()
  }
  const settledBy: string[] = []

  const letGo = async (store: Store, token: string, step: number): Promise<void> => {
    if (step === 0) assert.equal(await store.release(id, token), true, 'its own release')
    else if (step === 1) assert.equal(await store.renew(id, token, 0), true, 'its own give-up')
    else {
      const settlement = bench.settlement({ answer: answerOf(token), ttlMs: lease.leaseMs })
      assert.equal(await store.settle(id, token, settlement), true, 'its own settle')
      settledBy.push(token)
    }
  }

  const seen = await together(ACTORS, async (actor) => {
    const store = actor % 2 === 0 ? bench.store : other
    let acquired = 0
    for (let turn = 0; turn < TURNS_MAX; turn++) {
      const token = `actor ${actor} turn ${turn}`
      const changed = change.promise
      const claim = await bench.claim({ ...lease, id, token, takeover: true }, store)
      if (claim.state === 'settled') return Buffer.from(answerIn(claim).body ?? []).toString()
      if (claim.state !== 'acquired') {
        await bench.soon(changed, 'the holder lets go')
        continue
      }
      holders += 1
      assert.equal(holders, 1, 'two owners at the same time')
      assert.equal(await store.renew(id, token, lease.leaseMs), true, 'its own renewal')
      holders -= 1
      announce()
      await letGo(store, token, (actor + acquired++) % 3)
      announce()
    }
    throw new Error(`actor ${actor} saw no answer in ${TURNS_MAX} turns`)
  })
  assert.equal(settledBy.length, 1)
  assert.deepEqual(new Set(seen), new Set(settledBy))
}
