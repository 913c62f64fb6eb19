import assert from 'node:assert/strict'
import type { Store } from '../../store.ts'
import type { Bench, StoreCase } from './kit.ts'
import { answerOf, chapter, countOf, ID, idOf, plain, refuses } from './kit.ts'

export const closeCases: readonly StoreCase[] = chapter('close', {
  'work that was accepted before close is finished': async (bench) => {
    const other = await bench.another()
    const long = 1_000 * bench.tickMs
    for (let i = 0; i < 20; i++) await bench.claimed({ id: idOf(`settled ${i}`), leaseMs: long })
    const claims = Array.from({ length: 20 }, (_, i) => bench.claim({ id: idOf(`claimed ${i}`), leaseMs: long }))
    const settles = Array.from({ length: 20 }, async (_, i) => {
      return bench.store.settle(idOf(`settled ${i}`), 'owner', bench.settlement({ ttlMs: long }))
    })
    const [claimed, settled] = await bench.soon(
      Promise.all([Promise.all(claims), Promise.all(settles), bench.store.close()]),
      'close and what was asked before it are done',
    )
    assert.equal(countOf(claimed, 'acquired'), 20)
    assert.deepEqual(new Set(settled), new Set([true]))
    if (other === bench.store) return
    for (let i = 0; i < 20; i++) {
      assert.equal((await other.read(idOf(`claimed ${i}`)))?.state, 'running')
      assert.equal((await other.read(idOf(`settled ${i}`)))?.state, 'settled')
    }
  },

  'after close every verb throws store-closed': async (bench) => {
    await bench.given('settled')
    await bench.store.close()
    for (const [name, verb] of Object.entries(verbsOf(bench, bench.store))) {
      await refuses('store-closed', verb).catch((error: unknown) => {
        throw new Error(`${name} after close`, { cause: error })
      })
    }
  },

  'verbs throw store-closed from the moment of close, not only when it is done': async (bench) => {
    const closing = bench.store.close()
    await refuses('store-closed', () => bench.store.claim(bench.request()))
    await closing
  },

  'close may be called twice, also at once': async (bench) => {
    await bench.given('running')
    await bench.soon(Promise.all([bench.store.close(), bench.store.close()]), 'both closes are done')
    await bench.soon(bench.store.close(), 'a third close is done')
  },

  'X5: close resolves its waiters': [
    'push',
    async (bench) => {
      await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
      const { signal } = new AbortController()
      const early = bench.store.waitFor?.(ID, signal)
      await new Promise((resolve) => setImmediate(resolve))
      const late = bench.store.waitFor?.(ID, signal)
      assert.ok(early && late)
      await bench.soon(Promise.all([early, late, bench.store.close()]), 'the waiters are woken')
    },
  ],

  'close leaves other handles and the records alone': async (bench) => {
    const other = await bench.another()
    await bench.given('settled')
    if (other !== bench.store) await other.close()
    const record = await bench.isIn('settled')
    assert.deepEqual(plain(record.answer), plain(answerOf('first')))
    await bench.claimed({ id: idOf('b') })
  },
})

function verbsOf(bench: Bench, store: Store): Record<string, () => unknown> {
  return {
    claim: () => store.claim(bench.request({ token: 'second' })),
    settle: () => store.settle(ID, 'owner', bench.settlement()),
    release: () => store.release(ID, 'owner'),
    renew: () => store.renew(ID, 'owner', bench.tickMs),
    read: () => store.read(ID),
    list: () => store.list(),
    forget: () => store.forget(ID),
    redact: () => store.redact(ID),
    sweep: () => store.sweep(),
    ...(store.waitFor && { waitFor: () => store.waitFor?.(ID, new AbortController().signal) }),
  }
}
