import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { afterEach } from 'vitest'
import { type Gate, type GateEvent, type GateOptions, startGate } from '../../src/gate/gate.ts'
import type { Store } from '../../src/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { TestUpstream } from './upstream.ts'
import { Wire } from './wire.ts'

export interface Scene {
  readonly gate: Gate
  readonly upstream: TestUpstream
  readonly store: Store
  readonly events: readonly GateEvent[]
  open(): Wire
  /** When an event of this type has been told. */
  heard<T extends GateEvent['type']>(type: T): Promise<Extract<GateEvent, { type: T }>>
}

const cleanups: Array<() => Promise<unknown>> = []

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

export function later(cleanup: () => Promise<unknown> | unknown): void {
  cleanups.push(async () => cleanup())
}

/** A gate in front of a test upstream. All of it goes away after the test. */
export async function scene(options: Partial<GateOptions> = {}): Promise<Scene> {
  const upstream = await new TestUpstream().listen()
  later(() => upstream.stop())
  const store = options.store ?? memoryStore()
  if (!options.store) later(() => store.close())
  const events: GateEvent[] = []
  const waiting: Array<() => void> = []
  const listener = (event: unknown): void => {
    events.push(event as GateEvent)
    for (const wake of waiting.splice(0)) wake()
  }
  subscribe('oncekey:gate', listener)
  later(() => unsubscribe('oncekey:gate', listener))
  const gate = await startGate({ upstream: upstream.url, port: 0, principal: 'public', ...options, store })
  later(() => gate.stop())
  return {
    gate,
    upstream,
    store,
    events,
    open() {
      const wire = new Wire(gate.url)
      later(() => wire.destroy())
      return wire
    },
    async heard<T extends GateEvent['type']>(type: T) {
      for (;;) {
        const found = events.find((event) => event.type === type)
        if (found) return found as Extract<GateEvent, { type: T }>
        await new Promise<void>((resolve) => waiting.push(resolve))
      }
    },
  }
}

/** The one record of a store, as soon as it is in this state. Stores cannot be waited on from outside: asked in turns. */
export async function recordIn(store: Store, state: string): Promise<void> {
  for (;;) {
    const records = await store.list()
    if (records[0]?.state === state) return
    await new Promise((resolve) => setImmediate(resolve))
  }
}
