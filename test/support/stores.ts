import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Clock } from '../../src/clock.ts'
import { type ContractChanges, defineContract } from '../../src/contract-check.ts'
import { ietf } from '../../src/contracts/ietf.ts'
import { Engine } from '../../src/engine.ts'
import { OncekeyError } from '../../src/error.ts'
import type { Done, Operation, Result, Run } from '../../src/execution.ts'
import type { Awaitable, Store } from '../../src/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import type { StoreHarness } from '../../src/testing/store-suite.ts'

type Verb = 'claim' | 'settle' | 'release' | 'renew' | 'read' | 'list' | 'forget' | 'redact' | 'sweep'

/**
 * `down`: the call does not arrive, and the caller is told. `hangs`: it does not arrive, and nobody is told.
 * `reply-lost`: it arrives and counts, and the caller is told that the connection broke.
 */
export type Fault = 'down' | 'hangs' | 'reply-lost'

/** A real store behind a line that a test can cut. */
export interface Line {
  readonly store: Store
  /** How often each verb was called through this line. */
  readonly calls: Record<Verb, number>
  /** All verbs, or only some of them. `undefined`: the line is whole. */
  cut(fault: Fault | undefined, verbs?: readonly Verb[]): void
  /** Holds replies back until the returned function is called. */
  hold(verb: Verb): () => void
}

export function line(inner: Store): Line {
  const calls = { claim: 0, settle: 0, release: 0, renew: 0, read: 0, list: 0, forget: 0, redact: 0, sweep: 0 }
  const faults = new Map<Verb, Fault>()
  const holds = new Map<Verb, Promise<void>>()
  const pass = async <T>(verb: Verb, call: () => Awaitable<T>): Promise<T> => {
    calls[verb]++
    const fault = faults.get(verb)
    if (fault === 'hangs') return new Promise<T>(() => {})
    if (fault === 'down') throw new OncekeyError('store-unavailable', `${inner.name} is down, says the test`)
    const value = await call()
    await holds.get(verb)
    if (fault === 'reply-lost') throw new OncekeyError('store-unavailable', 'the connection broke, says the test')
    return value
  }
  const store: Store = {
    name: inner.name,
    claim: (request) => pass('claim', () => inner.claim(request)),
    settle: (...args) => pass('settle', () => inner.settle(...args)),
    release: (...args) => pass('release', () => inner.release(...args)),
    renew: (...args) => pass('renew', () => inner.renew(...args)),
    read: (id) => pass('read', () => inner.read(id)),
    list: (query) => pass('list', () => inner.list(query)),
    forget: (id) => pass('forget', () => inner.forget(id)),
    redact: (id) => pass('redact', () => inner.redact(id)),
    sweep: (limit) => pass('sweep', () => inner.sweep(limit)),
    close: () => inner.close(),
  }
  if (inner.waitFor) store.waitFor = async (id, signal) => inner.waitFor?.(id, signal)
  return {
    store,
    calls,
    cut(fault, verbs = VERBS) {
      for (const verb of verbs) {
        if (fault) faults.set(verb, fault)
        else faults.delete(verb)
      }
    },
    hold(verb) {
      const { promise, resolve } = Promise.withResolvers<void>()
      holds.set(verb, promise)
      return () => {
        holds.delete(verb)
        resolve()
      }
    },
  }
}

const VERBS: readonly Verb[] = ['claim', 'settle', 'release', 'renew', 'read', 'list', 'forget', 'redact', 'sweep']

/** For the store suite: combinations, each on its own handles of the same records, under one clock. */
export async function combined(
  combine: (open: Record<'sqlite' | 'memory', (name: string) => Store>, clock: Clock) => Awaitable<Store>,
): Promise<StoreHarness> {
  const directory = mkdtempSync(join(tmpdir(), 'oncekey-'))
  let nowMs = 1_800_000_000_000
  const clock: Clock = { now: () => nowMs, schedule: () => () => {} }
  const memories = new Map<string, Store>()
  const memory = (name: string) => {
    const store = memories.get(name) ?? memoryStore({ clock })
    memories.set(name, store)
    return handle(store)
  }
  const sqlite = (name: string) =>
    sqliteStore({ path: join(directory, name), clock, sweepEveryMs: 0, synchronous: 'normal' })
  const handles: Store[] = []
  const another = async () => {
    const store = await combine({ sqlite, memory }, clock)
    handles.push(store)
    return store
  }
  return {
    store: await another(),
    another,
    elapse: async (ms) => {
      nowMs += ms
    },
    dispose: async () => {
      await Promise.all(handles.map((store) => store.close()))
      rmSync(directory, { recursive: true })
    },
  }
}

/** One of several handles on a store: to close it leaves the others and the records alone. */
function handle(inner: Store): Store {
  const closed = new AbortController()
  const open = (): Store => {
    if (closed.signal.aborted) throw new OncekeyError('store-closed', 'this handle was closed, says the test')
    return inner
  }
  return {
    name: inner.name,
    claim: (request) => open().claim(request),
    settle: (...args) => open().settle(...args),
    release: (...args) => open().release(...args),
    renew: (...args) => open().renew(...args),
    read: (id) => open().read(id),
    list: (query) => open().list(query),
    forget: (id) => open().forget(id),
    redact: (id) => open().redact(id),
    sweep: (limit) => open().sweep(limit),
    waitFor: async (id, signal) => open().waitFor?.(id, AbortSignal.any([signal, closed.signal])),
    close: async () => closed.abort(),
  }
}

/** A process: an engine on a store, whose handlers write into a log that several processes share. */
export interface TestProcess {
  readonly engine: Engine
  /** Runs at once, and leaves its name in the effect log. */
  run(operation: Operation, effect: string): Promise<Result>
  /** Leaves its effect, and answers when told to. */
  start(operation: Operation, effect: string): { result: Promise<Result>; finish(): Promise<Result>; run(): Run }
}

export function process(store: Store, clock: Clock, effects: string[], changes: ContractChanges = {}): TestProcess {
  const engine = new Engine({ store, clock, contract: defineContract(ietf, changes) })
  return {
    engine,
    run: (operation, effect) =>
      engine.execute(operation, async () => {
        effects.push(effect)
        return answered(effect)
      }),
    start(operation, effect) {
      const end = Promise.withResolvers<Done>()
      let current: Run | undefined
      const result = engine.execute(operation, (run) => {
        current = run
        effects.push(effect)
        return end.promise
      })
      return {
        result,
        run: () => current as Run,
        finish() {
          end.resolve(answered(effect))
          return result
        },
      }
    },
  }
}

export function answered(text: string, status = 200): Done {
  return { kind: 'answered', answer: { status, headers: [], body: Buffer.from(text) } }
}

export function operation(name: string, fingerprint = 'f1'): Operation {
  return { id: name, key: name, fingerprint }
}

/** What a client was told, in a few words. */
export function told(result: Result): string {
  if (result.kind === 'refused') return result.refusal.code
  if (result.kind === 'replayed') return `replayed ${Buffer.from(result.answer.body ?? []).toString()}`
  return `executed, ${result.record}`
}

/** One turn of the event loop: every promise that could go on has. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
