import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { anyUnit } from '../../test/support/json.ts'
import { deriveKey, operationId } from './scope.ts'

/** Few letters and all that might pass for a separator, so that collisions would be found soon. */
const tricky = fc.string({ unit: fc.constantFrom('a', '1', ':', '|', '0', '\u0000', '\ud800', '\udc00', '\ufffd') })
const operation = fc.tuple(fc.array(tricky, { maxLength: 4 }), tricky)

describe('operationId', () => {
  it('is SHA-256 over length-prefixed parts, fixed for ever: stored records depend on it', () => {
    const text = 'oncekey/1 id 3|4:user4:POST7:/orders3:abc'
    const expected = createHash('sha256').update(text).digest('hex')
    expect(operationId(['user', 'POST', '/orders'], 'abc')).toBe(expected)
  })

  it('D8: nothing moves from one part to another', () => {
    const all = [
      operationId(['ab', 'c'], 'k'),
      operationId(['a', 'bc'], 'k'),
      operationId(['abc'], 'k'),
      operationId(['abc', ''], 'k'),
      operationId(['', 'abc'], 'k'),
      operationId(['ab', 'c', 'k'], ''),
      operationId(['ab'], 'ck'),
      operationId([], 'abck'),
      operationId(['2:ab1:c'], 'k'),
      operationId(['a:b'], 'k'),
      operationId(['a', 'b'], 'k'),
      operationId(['__proto__'], 'k'),
    ]
    expect(new Set(all).size).toBe(all.length)
  })

  it('tells lone surrogates and the replacement character apart, and throws for none', () => {
    const all = ['\ud800', '\ud801', '\udc00', '\ufffd', '\ud800\udc00'].flatMap((s) => [
      operationId([s], 'k'),
      operationId(['u'], s),
    ])
    expect(new Set(all).size).toBe(all.length)
  })

  it('property: equal exactly when the parts and the key are equal', () => {
    fc.assert(
      fc.property(operation, operation, (a, b) => {
        expect(operationId(...a)).toMatch(/^[0-9a-f]{64}$/)
        expect(operationId(...a) === operationId(...b)).toBe(JSON.stringify(a) === JSON.stringify(b))
      }),
      { numRuns: 1000 },
    )
  })

  it('property: moving the border between two parts changes the id', () => {
    fc.assert(
      fc.property(tricky, fc.nat(), fc.nat(), (text, i, j) => {
        const from = i % (text.length + 1)
        const to = j % (text.length + 1)
        const split = (at: number) => operationId([text.slice(0, at), text.slice(at)], 'k')
        expect(split(from) === split(to)).toBe(from === to)
      }),
    )
  })
})

describe('deriveKey', () => {
  const id = operationId(['user'], 'abc')

  it('X7: is the same every time, and another for every name and operation', () => {
    expect(deriveKey(id, 'charge')).toBe(deriveKey(id, 'charge'))
    const all = [
      deriveKey(id, 'charge'),
      deriveKey(id, 'Charge'),
      deriveKey(id, ''),
      deriveKey(operationId(['user'], 'abd'), 'charge'),
      deriveKey(`${id}6`, 'charge'),
    ]
    expect(new Set(all).size).toBe(all.length)
  })

  it('X7: is a UUID, which every service takes for a key', () => {
    fc.assert(
      fc.property(fc.string({ unit: anyUnit }), (name) => {
        expect(deriveKey(id, name)).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
      }),
    )
  })

  it('X7: stays what it is from release to release', () => {
    expect(deriveKey('0'.repeat(64), 'charge')).toBe('add3e95b-ae4e-87d3-ae48-c6e75e61beba')
  })
})
