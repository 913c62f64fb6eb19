import { channel } from 'node:diagnostics_channel'
import { afterEach, expect, it } from 'vitest'
import { History } from './history.ts'

const [engine, gate] = [channel('oncekey'), channel('oncekey:gate')]
let history: History | undefined
afterEach(() => history?.close())

it('remembers where conflicts differ for the last thousand of them, and that there was one for all', () => {
  const seen = new History()
  history = seen
  const changes = [{ path: '/amount', was: 'a', is: 'b' }]
  for (let i = 0; i < 1_005; i++) {
    engine.publish({ type: 'conflict', id: `id-${i}`, store: 'memory', contract: 'ietf' })
    gate.publish({ type: 'conflict-paths', id: `id-${i}`, changes })
  }
  const explained = Array.from({ length: 1_005 }, (_, i) => seen.of(`id-${i}`)[0]?.changes !== undefined)
  expect(explained.indexOf(true)).toBe(5)
  expect(explained.filter(Boolean)).toHaveLength(1_000)
  expect(seen.of('id-0').map(({ type }) => type)).toEqual(['conflict'])
})

it('what the gate tells of an operation nobody saw begin changes nothing', () => {
  const seen = new History()
  history = seen
  gate.publish({ type: 'conflict-paths', id: 'unseen', changes: [] })
  expect(seen.of('unseen')).toEqual([])
  expect(seen.lastSeq).toBe(0)
})
