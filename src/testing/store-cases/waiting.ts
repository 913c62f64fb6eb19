import assert from 'node:assert/strict'
import type { Store } from '../../store.ts'
import type { Bench, Capability, StoreCase } from './kit.ts'
import { chapter, ID, idOf, together } from './kit.ts'

type Body = (bench: Bench) => Promise<void>

const push = (body: Body): readonly [Capability, Body] => ['push', body]

export const waitCases: readonly StoreCase[] = chapter('waitFor', {
  'X5: resolves at once when there is no record': push(async (bench) => {
    await resolves(bench, wait(bench.store))
  }),

  'X5: resolves at once when the record was settled before': push(async (bench) => {
    const other = await bench.another()
    await bench.given('settled')
    await resolves(bench, wait(bench.store))
    await resolves(bench, wait(other))
  }),

  'X5: resolves at once when the record is unknown or expired': push(async (bench) => {
    for (const state of ['unknown', 'expired'] as const) {
      await bench.given(state)
      await resolves(bench, wait(bench.store))
      await bench.store.forget(ID)
    }
  }),

  'X5: resolves on settle': push((bench) => wakes(bench, 'own', () => bench.settle())),
  'X5: resolves on release': push((bench) => wakes(bench, 'own', () => bench.store.release(ID, 'owner'))),
  'X5: resolves on forget': push((bench) => wakes(bench, 'own', () => bench.store.forget(ID))),
  'X5: resolves on giving up': push((bench) => wakes(bench, 'own', () => bench.store.renew(ID, 'owner', 0))),
  'X5: resolves on settle through another handle': push((bench) => wakes(bench, 'other', () => bench.settle())),
  'X5: resolves on release through another handle': push((bench) => {
    return wakes(bench, 'other', () => bench.store.release(ID, 'owner'))
  }),
  'X5: resolves on forget through another handle': push((bench) => {
    return wakes(bench, 'other', () => bench.store.forget(ID))
  }),
  'X5: resolves on giving up through another handle': push((bench) => {
    return wakes(bench, 'other', () => bench.store.renew(ID, 'owner', 0))
  }),

  'X5: resolves however closely wait and settle meet': push(async (bench) => {
    const other = await bench.another()
    await together(50, async (i) => {
      const id = idOf(i)
      await bench.claim({ id, leaseMs: 1_000 * bench.tickMs })
      const settle = async () => bench.store.settle(id, 'owner', bench.settlement())
      const first = i % 2 === 0 ? wait(other, id) : settle()
      const second = i % 2 === 0 ? settle() : wait(other, id)
      await resolves(bench, Promise.all([first, second]))
    })
  }),

  'X5: an abort resolves it, and never rejects': push(async (bench) => {
    await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
    await resolves(bench, wait(bench.store, ID, AbortSignal.abort()))
    for (const before of [async () => {}, turn]) {
      const controller = new AbortController()
      const waiting = wait(bench.store, ID, controller.signal)
      await before()
      controller.abort(new Error('the client is gone'))
      await resolves(bench, waiting)
    }
    await bench.isIn('running')
  }),

  'X5: the abort of one waiter leaves the others waiting for the settle': push(async (bench) => {
    await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
    const controllers = Array.from({ length: 10 }, () => new AbortController())
    const waiting = controllers.map(({ signal }) => wait(bench.store, ID, signal))
    await turn()
    controllers[0]?.abort()
    controllers[5]?.abort()
    await resolves(bench, Promise.all([waiting[0], waiting[5]]))
    await bench.settled()
    await resolves(bench, Promise.all(waiting))
  }),

  'X5: a thousand waiters of one record are all woken': push(async (bench) => {
    const other = await bench.another()
    await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
    const waiting = together(1_000, (i) => wait(i % 2 === 0 ? bench.store : other))
    await bench.settled()
    await resolves(bench, waiting)
  }),

  'X5: a refused settle does not use up the wake-up': push(async (bench) => {
    const other = await bench.another()
    await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
    const waiting = wait(other)
    await turn()
    assert.equal(await bench.settle('another'), false)
    await bench.settled()
    await resolves(bench, waiting)
  }),
})

/** Signals that never abort would keep a failed case's waiters; the store's close ends those. */
async function wait(store: Store, id = ID, signal: AbortSignal = new AbortController().signal): Promise<void> {
  assert.ok(store.waitFor, 'the store has no waitFor: run the suite `without` push, and say why')
  await store.waitFor(id, signal)
}

async function resolves(bench: Bench, waiting: Promise<unknown>): Promise<void> {
  await bench.soon(waiting, 'the waiter is woken')
}

async function wakes(bench: Bench, on: 'own' | 'other', end: () => unknown): Promise<void> {
  const waiter = on === 'own' ? bench.store : await bench.another()
  await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
  const waiting = wait(waiter)
  await turn()
  assert.equal(await end(), true)
  await resolves(bench, waiting)
}

/** One turn of the event loop: the waiter is in place, as it would be behind a handler that takes its time. */
function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
