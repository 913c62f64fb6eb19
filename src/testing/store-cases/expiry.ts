import assert from 'node:assert/strict'
import type { RecordState } from '../../store.ts'
import type { Bench, StoreCase } from './kit.ts'
import { answerOf, chapter, ID, plain } from './kit.ts'

export const expiryCases: readonly StoreCase[] = chapter('expiry', {
  'D11: an answer past its lifetime counts as absent, although nothing swept it: the claim is acquired': async (
    bench,
  ) => {
    await bench.claimed({ labels: { first: 'yes' } })
    await bench.settled({ expiredTtlMs: 0 })
    await bench.elapse(2)
    await bench.claimed({ token: 'second', fingerprint: 'another' })
    const record = await bench.isIn('running')
    assert.deepEqual([record.attempt, record.fingerprint, { ...record.labels }], [1, 'another', {}])
    assert.equal(await bench.settle('second', { answer: answerOf('new') }), true)
    assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answerOf('new')))
  },

  'D11: a record that is gone is absent for read, list and forget too': async (bench) => {
    await bench.claimed()
    await bench.settled({ expiredTtlMs: 0 })
    await bench.elapse(2)
    await bench.isAbsent()
    assert.deepEqual(await bench.store.list(), [])
    assert.deepEqual(await bench.store.list({ state: 'settled' }), [])
    assert.equal(await bench.store.forget(ID), false)
  },

  'an unknown record past its time counts as absent, although nothing swept it': async (bench) => {
    await bench.given('unknown')
    const { createdAt } = await bench.isIn('unknown')
    await bench.elapse(4)
    assert.deepEqual(await bench.store.list(), [])
    await bench.claimed({ token: 'second', fingerprint: 'another' })
    assert.ok((await bench.isIn('running')).createdAt > createdAt)
  },

  'an expired answer is remembered as used, without the answer, until its second lifetime ends': async (bench) => {
    await bench.given('expired')
    const claim = await bench.claim({ token: 'second', takeover: true })
    assert.equal(claim.state, 'expired')
    assert.equal(claim.fingerprint, 'print')
    assert.ok(claim.goneInMs > 0 && claim.goneInMs <= 2 * bench.tickMs, `${claim.goneInMs} ms left`)
    await bench.elapse(2)
    await bench.claimed({ token: 'second' })
  },

  "the answer's lifetime counts from the settle, and replaces the lease's": async (bench) => {
    await bench.claimed({ leaseMs: 9 * bench.tickMs, unknownTtlMs: 9 * bench.tickMs })
    await bench.elapse(2)
    await bench.settled()
    await bench.elapse(1)
    await bench.isIn('settled')
    await bench.elapse(1)
    await bench.isIn('expired')
    await bench.elapse(2)
    await bench.isAbsent()
  },

  'a settled record says how long its answer is still replayed': async (bench) => {
    await bench.claimed()
    await bench.settled({ ttlMs: 4 * bench.tickMs, expiredTtlMs: 40 * bench.tickMs })
    await bench.elapse(1)
    const { expiresInMs } = await bench.isIn('settled')
    assert.ok(expiresInMs > 0 && expiresInMs <= 3 * bench.tickMs, `${expiresInMs} ms left`)
    const claim = await bench.claim({ token: 'second' })
    assert.ok(claim.state === 'settled' && claim.expiresInMs > 0 && claim.expiresInMs <= 3 * bench.tickMs)
  },

  'an answer that is kept for 0 ms is gone at once': async (bench) => {
    await bench.claimed()
    await bench.settled({ ttlMs: 0, expiredTtlMs: 0 })
    await bench.isAbsent()
    await bench.claimed({ token: 'second' })
  },

  'very millisecond: running until the lease ends, unknown from then on': [
    'exact-clock',
    async (bench) => {
      await bench.claimed()
      await turns(bench, 2, 'running', 'unknown')
      await bench.claimed({ token: 'taker', takeover: true }, 2)
    },
  ],

  'very millisecond: no takeover at the last millisecond of a lease': [
    'exact-clock',
    async (bench) => {
      await bench.claimed()
      await bench.elapseMs(2 * bench.tickMs - 1)
      assert.equal((await bench.claim({ token: 'taker', takeover: true })).state, 'running')
      await bench.elapseMs(1)
      await bench.claimed({ token: 'taker', takeover: true }, 2)
    },
  ],

  'very millisecond: an unknown record is gone when its time is over': [
    'exact-clock',
    async (bench) => {
      await bench.given('unknown')
      await turns(bench, 4, 'unknown', 'absent')
      await bench.claimed({ token: 'second' })
    },
  ],

  'very millisecond: the owner may settle at the last one, and not after': [
    'exact-clock',
    async (bench) => {
      await bench.claimed()
      await bench.elapseMs(6 * bench.tickMs - 1)
      await bench.settled()
      await bench.store.forget(ID)
      await bench.claimed()
      await bench.elapseMs(6 * bench.tickMs)
      assert.equal(await bench.settle(), false)
      await bench.isAbsent()
    },
  ],

  'very millisecond: an answer is replayed until it expires, and the key is new from then on': [
    'exact-clock',
    async (bench) => {
      await bench.claimed()
      await bench.settled({ expiredTtlMs: 0 })
      await turns(bench, 2, 'settled', 'absent')
      await bench.claimed({ token: 'second' })
    },
  ],

  'very millisecond: an answer expires, and the key is remembered until it is gone': [
    'exact-clock',
    async (bench) => {
      await bench.given('settled')
      await turns(bench, 2, 'settled', 'expired')
      await turns(bench, 2, 'expired', 'absent')
      await bench.claimed({ token: 'second' })
    },
  ],

  'very millisecond: the time left is exact': [
    'exact-clock',
    async (bench) => {
      await bench.claimed()
      await bench.elapseMs(1)
      const running = await bench.claim({ token: 'second' })
      assert.equal(running.state === 'running' && running.leaseLeftMs, 2 * bench.tickMs - 1)
      await bench.elapse(2)
      const unknown = await bench.claim({ token: 'second' })
      assert.equal(unknown.state === 'unknown' && unknown.goneInMs, 4 * bench.tickMs - 1)
      await bench.settled()
      await bench.elapseMs(2 * bench.tickMs + 1)
      const expired = await bench.claim({ token: 'second' })
      assert.equal(expired.state === 'expired' && expired.goneInMs, 2 * bench.tickMs - 1)
    },
  ],
})

/** The record is in one state until the last millisecond before `ticks` from now, and in the next one at it. */
async function turns(bench: Bench, ticks: number, before: State, after: State): Promise<void> {
  await bench.elapseMs(ticks * bench.tickMs - 1)
  await seenAs(bench, before)
  await bench.elapseMs(1)
  await seenAs(bench, after)
}

type State = RecordState['state'] | 'absent'

/** By read, by list and by claim; an absent one is not claimed, for that would make it. */
async function seenAs(bench: Bench, state: State): Promise<void> {
  assert.equal((await bench.store.read(ID))?.state ?? 'absent', state, 'read')
  assert.equal((await bench.store.list())[0]?.state ?? 'absent', state, 'list')
  if (state === 'absent') return
  assert.equal((await bench.store.list({ state }))[0]?.id, ID, 'list by state')
  assert.equal((await bench.claim({ token: 'onlooker' })).state, state, 'claim')
}
