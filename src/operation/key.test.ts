import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { anyUnit } from '../../test/support/json.ts'
import { parseKey } from './key.ts'

const LENGTH_MAX = 64
const visible = fc.string({
  unit: fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code)),
  minLength: 1,
  maxLength: LENGTH_MAX,
})

function quote(key: string): string {
  return `"${key.replace(/["\\]/g, '\\$&')}"`
}

function reasonOf(value: string | string[]): string {
  const parsed = parseKey(value, LENGTH_MAX)
  return parsed.state === 'invalid' ? parsed.reason : `not invalid but ${parsed.state}`
}

describe('parseKey', () => {
  it.each([
    ['abc', 'abc'],
    ['"abc"', 'abc'],
    [' \tabc\t ', 'abc'],
    [' "abc" ', 'abc'],
    ['"a\\"b\\\\c"', 'a"b\\c'],
    ['a\\b', 'a\\b'],
    ['a,b;c=1', 'a,b;c=1'],
    ['__proto__', '__proto__'],
  ])('reads %j as the key %j', (value, key) => {
    expect(parseKey(value, LENGTH_MAX)).toEqual({ state: 'present', key })
    expect(parseKey([value], LENGTH_MAX)).toEqual({ state: 'present', key })
  })

  it.each([[undefined], [''], [' '], ['\t \t'], [[]], [['']]])('A2: %j is no key at all', (value) => {
    expect(parseKey(value, LENGTH_MAX)).toEqual({ state: 'absent' })
  })

  it.each([
    ['""', /empty quoted string/],
    ['"', /never closed/],
    ['"abc', /never closed/],
    ['"abc\\"', /never closed/],
    ['"abc\\', /backslash/],
    ['"a\\bc"', /backslash/],
    ['"abc";p=1', /goes on after its closing double quote/],
    ['"a","b"', /goes on after its closing double quote/],
    ['abc"', /does not begin with one/],
    ['a b', /a space at position 2/],
    ['" "', /a space at position 2/],
    ['a\nb', /U\+000A at position 2/],
    ['\u00a0abc', /U\+00A0 at position 1/],
    ['"a\u0000"', /U\+0000/],
    ['caf\u00e9', /U\+00E9 at position 4/],
    ['\u007f', /U\+007F/],
    ['\ud800', /U\+D800/],
  ])('refuses %j and says why', (value, reason) => {
    expect(reasonOf(value)).toMatch(reason)
  })

  it('refuses a header that was sent twice, even with equal values', () => {
    expect(reasonOf(['abc', 'abc'])).toMatch(/sent more than once/)
    expect(reasonOf(['', ''])).toMatch(/sent more than once/)
  })

  it('counts the characters of the key, not of its spelling', () => {
    const longest = '"'.repeat(LENGTH_MAX)
    expect(parseKey(quote(longest), LENGTH_MAX)).toEqual({ state: 'present', key: longest })
    expect(reasonOf(quote(`${longest}x`))).toMatch(/longer than 64 characters/)
    expect(parseKey('x'.repeat(LENGTH_MAX), LENGTH_MAX).state).toBe('present')
    expect(reasonOf('x'.repeat(LENGTH_MAX + 1))).toMatch(/longer than 64 characters/)
    expect(reasonOf(`"${'x'.repeat(LENGTH_MAX + 1)}"`)).toMatch(/longer than 64 characters/)
  })

  it('property: bare and quoted are one key', () => {
    fc.assert(
      fc.property(visible, fc.constantFrom('', ' ', '\t '), (key, space) => {
        const present = { state: 'present', key }
        expect(parseKey(space + quote(key) + space, LENGTH_MAX)).toEqual(present)
        if (!key.includes('"')) expect(parseKey(space + key + space, LENGTH_MAX)).toEqual(present)
      }),
    )
  })

  it('property: every string has an answer; a key is visible ASCII, and a reason is printable and does not echo', () => {
    const anything = fc.oneof(fc.string({ unit: anyUnit, maxLength: 200 }), fc.string({ maxLength: 200 }).map(quote))
    fc.assert(
      fc.property(anything, (value) => {
        const parsed = parseKey(value, LENGTH_MAX)
        if (parsed.state === 'present') expect(parsed.key).toMatch(/^[\x21-\x7e]{1,64}$/)
        if (parsed.state === 'invalid') expect(parsed.reason).toMatch(/^[A-Z][\x20-\x7e]+\.$/)
      }),
      { numRuns: 500 },
    )
  })
})
