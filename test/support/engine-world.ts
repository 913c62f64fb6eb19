import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { type ContractChanges, defineContract } from '../../src/contract-check.ts'
import { ietf } from '../../src/contracts/ietf.ts'
import { Engine } from '../../src/engine.ts'
import type { OncekeyEvent } from '../../src/events.ts'
import type { Done, Operation, Reconcile, Run } from '../../src/execution.ts'
import type { Store } from '../../src/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { manualClock } from '../../src/testing/manual-clock.ts'

export const encode = (text: string) => Buffer.from(text)
export const answered = (text: string, status = 200): Done => ({
  kind: 'answered',
  answer: { status, headers: [], body: encode(text) },
})
export const pay: Operation = { id: 'pay-1', key: 'pay-1', fingerprint: 'f1' }

type Faults = { -readonly [Verb in 'claim' | 'settle' | 'release' | 'renew']?: Store[Verb] }

/** An engine on a real store whose verbs can be made to fail, and time that stands still. */
export function makeWorld(
  changes: ContractChanges = {},
  options: { reconcile?: Reconcile; storeMsMax?: number; push?: boolean } = {},
) {
  const time = manualClock()
  let jumpedMs = 0
  const clock = {
    ...time,
    now: () => time.now() + jumpedMs,
    /** As after a pause of the whole machine: the timers have not rung, but the time is gone. */
    jump: (ms: number) => {
      jumpedMs += ms
    },
  }
  const store = memoryStore({ clock })
  const calls = { read: 0, waitFor: 0 }
  const world = {
    clock,
    store,
    calls,
    faults: {} as Faults,
    effects: [] as string[],
    engine: undefined as unknown as Engine,
    work: (effect: string) => async (): Promise<Done> => {
      world.effects.push(effect)
      return answered(effect)
    },
    /** Starts an operation whose handler ends when the test says so. */
    start(operation: Operation) {
      const end = Promise.withResolvers<Done>()
      let current: Run | undefined
      const result = world.engine.execute(operation, (run) => {
        current = run
        return end.promise
      })
      return {
        result,
        run: () => current as Run,
        finish: async (done: Done) => {
          end.resolve(done)
          await result
        },
      }
    },
    /** An owner that claims and is never heard of again. */
    async crashDuring({ id, fingerprint }: Operation) {
      const { lease, ttl } = world.engine.contract
      const token = `dead-${id}`
      await store.claim({ id, token, fingerprint, leaseMs: lease.ms, unknownTtlMs: ttl.unknownMs, takeover: false })
    },
  }
  const faulty: Store = {
    name: store.name,
    claim: (request) => (world.faults.claim ?? store.claim.bind(store))(request),
    settle: (...args) => (world.faults.settle ?? store.settle.bind(store))(...args),
    release: (...args) => (world.faults.release ?? store.release.bind(store))(...args),
    renew: (...args) => (world.faults.renew ?? store.renew.bind(store))(...args),
    read: (id) => {
      calls.read++
      return store.read(id)
    },
    list: (query) => store.list(query),
    forget: (id) => store.forget(id),
    redact: (id) => store.redact(id),
    sweep: (limit) => store.sweep(limit),
    close: () => store.close(),
  }
  if (options.push !== false) {
    faulty.waitFor = async (id, signal) => {
      calls.waitFor++
      await store.waitFor?.(id, signal)
    }
  }
  const { reconcile, storeMsMax } = options
  world.engine = new Engine({
    store: faulty,
    contract: defineContract(ietf, changes),
    clock,
    ...(reconcile && { reconcile }),
    ...(storeMsMax && { storeMsMax }),
  })
  return world
}

export function refusedWith(code: string) {
  return { kind: 'refused', refusal: { code } }
}

export async function eventsOf(body: () => Promise<void>): Promise<string[]> {
  const types: string[] = []
  const listener = (event: unknown) => void types.push((event as OncekeyEvent).type)
  subscribe('oncekey', listener)
  try {
    await body()
  } finally {
    unsubscribe('oncekey', listener)
  }
  return types
}
