import type { ContractChanges } from '../../contract-check.ts'
import type { Result } from '../../execution.ts'
import { refusal } from '../../refusal.ts'
import type { Store } from '../../store.ts'
import type { Planted } from './mistake.ts'
import { PLANTED_STORES } from './planted-stores.ts'

const CLOSED: ContractChanges = { storeFailure: 'closed' }
const REFUSE: ContractChanges = { ...CLOSED, crash: 'refuse' }
const RERUN: ContractChanges = { ...CLOSED, crash: 'rerun' }
const SHORT_LEASE = { ms: 100, handlerMsMax: 1_000 }

export const PLANTED: readonly Planted[] = [
  ...PLANTED_STORES,
  {
    name: 'delete on error: a failed run is forgotten',
    caughtBy: ['at-most-once', 'takeover-told'],
    contract: REFUSE,
    link: (store) =>
      around(store, {
        renew: (id, token, leaseMs) => (leaseMs === 0 ? store.release(id, token) : store.renew(id, token, leaseMs)),
      }),
  },
  {
    name: 'no renewal: the lease ends under its handler',
    caughtBy: ['live-owner'],
    contract: RERUN,
    link: (store) =>
      around(store, { renew: (id, token, leaseMs) => (leaseMs === 0 ? store.renew(id, token, 0) : true) }),
  },
  {
    name: 'a takeover although the contract says refuse',
    caughtBy: ['at-most-once', 'live-owner'],
    contract: REFUSE,
    link: (store) => around(store, { claim: (request) => store.claim({ ...request, takeover: true }) }),
  },
  {
    name: 'a claim without a reply counts as acquired',
    caughtBy: ['at-most-once', 'takeover-told', 'live-owner', 'one-payload'],
    contract: CLOSED,
    link: (store) =>
      around(store, {
        claim: async (request) => {
          try {
            return await store.claim(request)
          } catch {
            return { state: 'acquired', attempt: 1 }
          }
        },
      }),
  },
  {
    name: 'a settle that fails releases the record',
    caughtBy: ['at-most-once'],
    contract: REFUSE,
    link: (store) =>
      around(store, {
        settle: async (id, token, settlement) => {
          try {
            return await store.settle(id, token, settlement)
          } catch (error) {
            await store.release(id, token)
            throw error
          }
        },
      }),
  },
  {
    name: 'derive() depends on the attempt',
    caughtBy: ['derive-stable'],
    contract: RERUN,
    work: (work) => (run) =>
      work({
        id: run.id,
        key: run.key,
        keySource: run.keySource,
        attempt: run.attempt,
        signal: run.signal,
        derive: (name) => run.derive(`${name} ${run.attempt}`),
      }),
  },
  {
    name: 'the signal never aborts',
    caughtBy: ['signal-aborts'],
    contract: { ...RERUN, lease: SHORT_LEASE },
    work: (work) => (run) =>
      work({
        id: run.id,
        key: run.key,
        keySource: run.keySource,
        attempt: run.attempt,
        signal: new AbortController().signal,
        derive: (name) => run.derive(name),
      }),
  },
  {
    name: 'the reconcile hook is not asked',
    caughtBy: ['reconcile-once'],
    contract: { ...CLOSED, crash: 'reconcile' },
    engine: { reconcile: () => 'rerun' },
  },
  {
    name: 'a store that hangs is waited for',
    caughtBy: ['ends-in-time'],
    contract: { lease: { ms: 2 ** 42, handlerMsMax: 2 ** 42 } },
    engine: { storeMsMax: 2 ** 40 },
  },
  {
    name: 'every waiter polls for itself',
    caughtBy: ['shared-reads'],
    contract: { inFlight: 'wait', waitMsMax: 90 },
    execute: ({ makeEngine, operation, work }) => makeEngine().execute(operation, work),
  },
  {
    name: 'a slow handler is reported as refused',
    caughtBy: ['refused-not-run'],
    execute: ({ engine, process, operation, work }) => {
      const impatient = new Promise<Result>((resolve) => {
        process.clock.schedule(40, () => resolve({ kind: 'refused', refusal: refusal('in-flight') }))
      })
      return Promise.race([engine.execute(operation, work), impatient])
    },
  },
]

function around(store: Store, changes: Partial<Store>): Store {
  const plain: Store = {
    name: store.name,
    claim: (request) => store.claim(request),
    settle: (id, token, settlement) => store.settle(id, token, settlement),
    release: (id, token) => store.release(id, token),
    renew: (id, token, leaseMs) => store.renew(id, token, leaseMs),
    read: (id) => store.read(id),
    list: (query) => store.list(query),
    forget: (id) => store.forget(id),
    redact: (id) => store.redact(id),
    sweep: (limit) => store.sweep(limit),
    close: () => store.close(),
  }
  return { ...plain, ...changes }
}
