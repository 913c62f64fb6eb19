import { onTestFinished } from 'vitest'
import { publish } from '../../src/events.ts'
import { chainOf } from '../../src/guards/meter/chains.ts'
import { createMeter, type Meter, type MeterOptions, type MeterTrouble } from '../../src/guards/meter.ts'
import { operationId } from '../../src/operation/scope.ts'
import type { Store } from '../../src/store.ts'

/** A meter that ends with its test. */
export function given(store: Store, over: Partial<MeterOptions> = {}): { meter: Meter; troubles: MeterTrouble[] } {
  const troubles: MeterTrouble[] = []
  const meter = createMeter({
    store,
    tenant: ({ labels }) => labels.principal,
    // Only what this test publishes.
    contract: 'nobody',
    onTrouble: (trouble) => troubles.push(trouble),
    ...over,
  })
  onTestFinished(() => meter.close())
  return { meter, troubles }
}

export function tell(
  type: 'kept' | 'unrecorded' | 'replayed' | 'in-flight',
  key: string,
  status = 201,
  contract = 'nobody',
): void {
  const id = operationId(['principal', 'org'], key)
  publish(type, { id, labels: { principal: 'org' } }, 'test', contract, status, undefined)
}

/** Operations that all belong to one chain, so that they meet. */
export function neighbours(count: number): string[] {
  const chain = chainOf('org', 'first')
  const found = ['first']
  for (let i = 0; found.length < count; i++) if (chainOf('org', `op-${i}`) === chain) found.push(`op-${i}`)
  return found
}

export type Fault = 'none' | 'not done' | 'reply lost'

/** The store as a process sees it whose every call may fail: before it is done, or after. */
export function faulty(store: Store, next: () => Fault): Store {
  const through = async <T>(call: () => T | Promise<T>): Promise<T> => {
    const fault = next()
    if (fault === 'not done') throw new Error('planted: not done')
    const result = await call()
    if (fault === 'reply lost') throw new Error('planted: reply lost')
    return result
  }
  return wrapped(store, {
    claim: (request) => through(() => store.claim(request)),
    read: (id) => through(() => store.read(id)),
  })
}

export function wrapped(store: Store, over: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, verb) {
      const value: unknown = Reflect.get(over, verb) ?? Reflect.get(target, verb)
      return typeof value === 'function' ? value.bind(Reflect.has(over, verb) ? over : target) : value
    },
  })
}

/** A process that is killed at its n-th call: nothing that it does afterwards arrives. */
export function killedAt(store: Store, call: number, fault: Fault): Store {
  let calls = 0
  return faulty(store, () => (++calls < call ? 'none' : calls === call ? fault : 'not done'))
}
