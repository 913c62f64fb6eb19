import { describe, expect, it } from 'vitest'
import { later, scene } from '../../test/gate/scene.ts'
import { answer, breakBeforeHead, hang } from '../../test/gate/upstream.ts'
import { values } from '../../test/gate/wire.ts'
import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { startGate } from './gate.ts'

type Shadowed = Awaited<ReturnType<typeof scene>>

function findings({ events }: Shadowed): unknown[] {
  return events.flatMap((event) => (event.type === 'shadow' ? [[event.would, event.differs]] : []))
}

async function found({ events }: Shadowed, count: number): Promise<void> {
  while (events.filter(({ type }) => type === 'shadow').length < count) {
    await new Promise((resolve) => setImmediate(resolve))
  }
}

describe('X10: shadow mode', () => {
  it('forwards every duplicate, and says which would have been replayed, and whether its answer was another one', async () => {
    const shadowed = await scene({ shadow: true })
    const { open, upstream, gate } = shadowed
    expect((await open().post('k').message()).status).toBe(201)
    await found(shadowed, 1)
    const second = await open().post('k').message()
    expect([second.status, values(second, 'idempotent-replayed')]).toEqual([201, []])
    await found(shadowed, 2)
    upstream.behave = answer('201 Created', '{"another":true}')
    expect((await open().post('k').message()).body).toBe('{"another":true}')
    await found(shadowed, 3)
    expect(upstream.seen).toHaveLength(3)
    expect(findings(shadowed)).toEqual([
      ['run', undefined],
      ['replay', false],
      ['replay', true],
    ])
    expect(gate.shadow).toMatchObject({ run: 1, replay: 2, differs: 1 })
  })

  it('blocks no conflict, no missing or invalid key, and no request in flight', async () => {
    const shadowed = await scene({ shadow: true, limits: { stopMsMax: 100 } })
    const { open, upstream } = shadowed
    await open().post('k', '{"a":1}').message()
    await found(shadowed, 1)
    expect((await open().post('k', '{"a":2}').message()).status).toBe(201)
    await found(shadowed, 2)
    expect((await open().post('').message()).status).toBe(201)
    expect((await open().post('"open').message()).status).toBe(201)
    upstream.behave = hang
    open().post('slow')
    await upstream.arrived(5)
    upstream.behave = answer('200 OK')
    expect((await open().post('slow').message()).status).toBe(200)
    await found(shadowed, 5)
    expect(findings(shadowed).map((one) => (one as unknown[])[0])).toEqual([
      'run',
      'conflict',
      'missing-key',
      'invalid-key',
      'in-flight',
    ])
  })

  it('follows the contract: a released operation runs again, an unknown one would have been refused', async () => {
    const shadowed = await scene({ shadow: true })
    const { open, upstream } = shadowed
    upstream.behave = answer('503 Service Unavailable')
    await open().post('a').message()
    await found(shadowed, 1)
    await open().post('a').message()
    await found(shadowed, 2)
    upstream.behave = breakBeforeHead
    await open().post('b').message()
    await found(shadowed, 3)
    await open().post('b').message()
    await found(shadowed, 4)
    expect(findings(shadowed).map((one) => (one as unknown[])[0])).toEqual(['run', 'run', 'run', 'unknown'])
  })

  it('a store that hangs or fails delays and refuses nothing', async () => {
    const broken = claiming(() => Promise.reject(new Error('down')))
    const shadowed = await scene({ shadow: true, store: broken })
    expect((await shadowed.open().post('k').message()).status).toBe(201)
    await found(shadowed, 1)
    expect(shadowed.gate.shadow).toMatchObject({ 'not-judged': 1 })
    const hanging = claiming(() => new Promise(() => {}))
    const { url, stop } = await startGate({
      upstream: shadowed.upstream.url,
      store: hanging,
      port: 0,
      principal: 'public',
      shadow: true,
      limits: { stopMsMax: 100 },
    })
    later(stop)
    const got = await fetch(`${url}/x`, { method: 'POST', headers: { 'Idempotency-Key': 'k' }, body: '{}' })
    expect(got.status).toBe(201)
  })

  it('its records are its own: a gate that protects on the same store starts from nothing', async () => {
    const principal = { kind: 'header', name: 'X-User' } as const
    const shadowed = await scene({ shadow: true, principal })
    await shadowed.open().post('k', '{"amount":1}', ['X-User: ann']).message()
    await found(shadowed, 1)
    const { upstream, store } = shadowed
    const gate = await startGate({ upstream: upstream.url, store, port: 0, principal })
    later(() => gate.stop())
    const headers = { 'Idempotency-Key': 'k', 'Content-Type': 'application/json', 'X-User': 'ann' }
    const got = await fetch(`${gate.url}/payments`, { method: 'POST', headers, body: '{"amount":1}' })
    expect([got.status, got.headers.get('idempotent-replayed')]).toEqual([201, null])
    expect(upstream.seen).toHaveLength(2)
  })
})

/** A store whose claims do this. */
function claiming(claim: Store['claim']): Store {
  const store = memoryStore()
  return new Proxy(store, {
    get(target, name) {
      if (name === 'claim') return claim
      const value: unknown = Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}
