import assert from 'node:assert/strict'
import type { Bench, StoreCase } from './kit.ts'
import { answerOf, chapter, ID, plain } from './kit.ts'

export const fencingCases: readonly StoreCase[] = chapter('fencing', {
  'X1: settle with another token changes nothing': async (bench) => {
    await bench.given('running')
    await changesNothing(bench, () => bench.settle('another'))
  },

  'X1: release with another token changes nothing': async (bench) => {
    await bench.given('running')
    await changesNothing(bench, () => bench.store.release(ID, 'another'))
  },

  'X1: renew with another token changes nothing': async (bench) => {
    await bench.given('running')
    await changesNothing(bench, () => bench.store.renew(ID, 'another', 3 * bench.tickMs))
    await changesNothing(bench, () => bench.store.renew(ID, 'another', 0))
  },

  'X1: an unknown record is fenced like a running one': async (bench) => {
    await bench.given('unknown')
    await changesNothing(bench, () => bench.settle('another'))
    await changesNothing(bench, () => bench.store.release(ID, 'another'))
    await changesNothing(bench, () => bench.store.renew(ID, 'another', bench.tickMs))
  },

  'nothing can be written to an absent record, and none comes of it': async (bench) => {
    await writesNothing(bench, 'owner')
    await bench.isAbsent()
  },

  'X1: a record that is gone is lost to its owner': async (bench) => {
    await bench.given('unknown')
    await bench.elapse(4)
    await writesNothing(bench, 'owner')
    await bench.isAbsent()
  },

  'X1: when the record is gone and claimed again, the owner of before can change nothing': async (bench) => {
    await bench.given('unknown')
    await bench.elapse(4)
    await bench.claimed({ token: 'second' })
    await changesNothing(bench, () => bench.settle('owner'))
    await changesNothing(bench, () => bench.store.release(ID, 'owner'))
    await changesNothing(bench, () => bench.store.renew(ID, 'owner', 3 * bench.tickMs))
    assert.equal(await bench.settle('second'), true)
  },

  'X1: when the record was released or forgotten and claimed again, the owner of before can change nothing': async (
    bench,
  ) => {
    const removals = [() => bench.store.release(ID, 'owner'), () => bench.store.forget(ID)]
    for (const remove of removals) {
      await bench.claimed()
      assert.equal(await remove(), true)
      await writesNothing(bench, 'owner')
      await bench.claimed({ token: 'second' })
      await changesNothing(bench, () => bench.settle('owner'))
      await changesNothing(bench, () => bench.store.release(ID, 'owner'))
      await changesNothing(bench, () => bench.store.renew(ID, 'owner', 3 * bench.tickMs))
      await bench.store.forget(ID)
    }
  },

  'after release another may claim, with another fingerprint, as attempt 1': async (bench) => {
    await bench.given('running')
    assert.equal(await bench.store.release(ID, 'owner'), true)
    await bench.isAbsent()
    await bench.claimed({ token: 'second', fingerprint: 'another' })
    assert.equal((await bench.isIn('running')).fingerprint, 'another')
  },

  'J8: release after settle is refused, and the answer stays': async (bench) => {
    await bench.given('settled')
    await changesNothing(bench, () => bench.store.release(ID, 'owner'))
    assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answerOf('first')))
    await bench.elapse(2)
    await changesNothing(bench, () => bench.store.release(ID, 'owner'))
  },

  'J8: renew after settle is refused, and moves nothing': async (bench) => {
    await bench.given('settled')
    await changesNothing(bench, () => bench.store.renew(ID, 'owner', 9 * bench.tickMs))
    await changesNothing(bench, () => bench.store.renew(ID, 'owner', 0))
    await bench.elapse(2)
    await changesNothing(bench, () => bench.store.renew(ID, 'owner', 9 * bench.tickMs))
  },

  'renewed, the record outlives its first lease, again and again': async (bench) => {
    await bench.given('running')
    for (let i = 0; i < 3; i++) {
      await bench.elapse(1)
      assert.equal(await bench.store.renew(ID, 'owner', 2 * bench.tickMs), true)
      const claim = await bench.claim({ token: 'second', takeover: true })
      assert.equal(claim.state, 'running')
    }
  },

  'renew moves goneAt along with the lease, keeping its distance': [
    'exact-clock',
    async (bench) => {
      await bench.given('running')
      const { goneAt } = await bench.isIn('running')
      for (const leaseTicks of [5, 1, 3]) {
        assert.equal(await bench.store.renew(ID, 'owner', leaseTicks * bench.tickMs), true)
        const record = await bench.isIn('running')
        assert.equal(record.leaseLeftMs, leaseTicks * bench.tickMs)
        assert.equal(record.goneAt - goneAt, (leaseTicks - 2) * bench.tickMs)
      }
    },
  ],

  'X2: renew with 0 gives the lease up: unknown at once, open to takeover, still to be settled': async (bench) => {
    await bench.given('running')
    assert.equal(await bench.store.renew(ID, 'owner', 0), true)
    const claim = await bench.claim({ token: 'second' })
    assert.equal(claim.state, 'unknown')
    assert.ok(claim.goneInMs > 3 * bench.tickMs && claim.goneInMs <= 4 * bench.tickMs, `${claim.goneInMs} ms left`)
    assert.equal(await bench.settle('owner'), true)
    await bench.store.forget(ID)

    await bench.given('running')
    assert.equal(await bench.store.renew(ID, 'owner', 0), true)
    await bench.claimed({ token: 'taker', takeover: true }, 2)
  },
})

async function changesNothing(bench: Bench, write: () => unknown): Promise<void> {
  const before = await bench.lasting()
  assert.equal(await write(), false)
  assert.deepEqual(await bench.lasting(), before)
}

async function writesNothing(bench: Bench, token: string): Promise<void> {
  assert.equal(await bench.settle(token), false, 'settle')
  assert.equal(await bench.store.release(ID, token), false, 'release')
  assert.equal(await bench.store.renew(ID, token, bench.tickMs), false, 'renew')
}
