import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { anyUnit, reference, spell } from '../../test/support/json.ts'
import { OncekeyError } from '../error.ts'
import { canonicalBytes, canonicalValue } from './canonical.ts'
import { DEPTH_MAX } from './json.ts'

/** RFC 8785, appendix B: the bits of a double, and how it is written. */
const NUMBERS: ReadonlyArray<readonly [bits: string, text: string]> = [
  ['0000000000000000', '0'],
  ['0000000000000001', '5e-324'],
  ['8000000000000001', '-5e-324'],
  ['7fefffffffffffff', '1.7976931348623157e+308'],
  ['ffefffffffffffff', '-1.7976931348623157e+308'],
  ['4340000000000000', '9007199254740992'],
  ['c340000000000000', '-9007199254740992'],
  ['4430000000000000', '295147905179352830000'],
  ['44b52d02c7e14af5', '9.999999999999997e+22'],
  ['44b52d02c7e14af6', '1e+23'],
  ['44b52d02c7e14af7', '1.0000000000000001e+23'],
  ['444b1ae4d6e2ef4e', '999999999999999700000'],
  ['444b1ae4d6e2ef4f', '999999999999999900000'],
  ['444b1ae4d6e2ef50', '1e+21'],
  ['3eb0c6f7a0b5ed8c', '9.999999999999997e-7'],
  ['3eb0c6f7a0b5ed8d', '0.000001'],
  ['41b3de4355555553', '333333333.3333332'],
  ['41b3de4355555554', '333333333.33333325'],
  ['41b3de4355555555', '333333333.3333333'],
  ['41b3de4355555556', '333333333.3333334'],
  ['41b3de4355555557', '333333333.33333343'],
  ['becbf647612f3696', '-0.0000033333333333333333'],
  ['43143ff3c1cb0959', '1424953923781206.2'],
]

class Money {
  readonly #cents: number
  constructor(cents: number) {
    this.#cents = cents
  }
  toJSON(): string {
    return `${this.#cents} cents`
  }
}
class Empty {}

function nested(depth: number): unknown {
  let value: unknown = 1
  for (let i = 0; i < depth; i++) value = i % 2 === 0 ? [value] : { a: value }
  return value
}

describe('the vectors of RFC 8785', () => {
  it.each(NUMBERS)('appendix B: %s is %s, as a value and as a text', (bits, text) => {
    const number = Buffer.from(bits, 'hex').readDoubleBE()
    expect(canonicalValue(number)).toBe(text)
    expect(canonicalBytes(Buffer.from(text))).toBe(text)
  })

  it('appendix B: what has no JSON form has one here that no JSON has; -0 is kept apart from 0', () => {
    expect(
      ['8000000000000000', '7fffffffffffffff', '7ff0000000000000'].map((bits) =>
        canonicalValue(Buffer.from(bits, 'hex').readDoubleBE()),
      ),
    ).toEqual(['-0', 'NaN', 'Infinity'])
  })

  it('the sample of section 3.2, byte for byte', () => {
    const source = String.raw`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
      "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`
    expect(Buffer.from(canonicalValue(JSON.parse(source))).toString('hex')).toBe(
      '7b226c69746572616c73223a5b6e756c6c2c747275652c66616c73655d2c226e756d62657273223a5b3333333333333333332e333333333333332c31652b33302c342e352c302e3030322c31652d32375d2c22737472696e67223a22e282ac245c75303030665c6e4127425c225c5c5c5c5c222f227d',
    )
  })
})

describe('canonicalValue', () => {
  it('equals the plain recursive reference on any JSON value', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), (value) => {
        const document = JSON.parse(JSON.stringify(value))
        expect(canonicalValue(document)).toBe(reference(document))
      }),
      { numRuns: 500 },
    )
  })

  it('sorts and escapes any names and strings', () => {
    const text = fc.string({ unit: anyUnit, maxLength: 60, size: 'max' })
    fc.assert(
      fc.property(fc.uniqueArray(text, { maxLength: 40, size: 'max' }), (names) => {
        const value = Object.fromEntries(names.map((name) => [name, name]))
        expect(canonicalValue(value)).toBe(reference(value))
        expect(canonicalValue(value).isWellFormed()).toBe(true)
      }),
    )
  })

  it('does not depend on the order of members', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), fc.integer(), (value, seed) => {
        const document = JSON.parse(JSON.stringify(value))
        expect(canonicalValue(JSON.parse(spell(document, seed)))).toBe(canonicalValue(document))
      }),
    )
  })

  it('tells apart what a handler can tell apart', () => {
    const sparse = new Array(1)
    const values: unknown[] = [
      ...[
        undefined,
        null,
        true,
        false,
        'true',
        0,
        -0,
        1,
        1n,
        '1',
        '1n',
        Number.NaN,
        'NaN',
        Infinity,
        -Infinity,
        '',
        ' ',
      ],
      ...['\ud800', '\ud801', '\ufffd', '\\ud800', 'undefined', 'hole', '-0'],
      ...[[], {}, [[]], [{}], [null], [undefined], sparse, [1, 2], [2, 1], ['1,2'], '[]', '{}'],
      ...[
        { a: undefined },
        { a: null },
        { a: 1 },
        { a: '1' },
        { b: 1 },
        { a: 1, b: 2 },
        { a: { b: 2 } },
        { 'a":1,"b': 2 },
      ],
      ...[JSON.parse('{"__proto__":1}'), { constructor: 1 }, { toJSON: 1 }],
      ...[new Date(0), new Date(1), new Date(Number.NaN), new Date(0).toJSON(), new Money(1), new Money(2), '1 cents'],
      ...[Buffer.from('a'), Buffer.from('b'), 'a', 'YQ==', [97], new Uint16Array([97]), new Uint8Array([97]).buffer],
      ...[new Map(), new Map([['a', 1]]), new Map([[1, 'a']]), new Set(), new Set(['a', 1]), new Set([['a', 1]])],
      ...[new URLSearchParams('a=1'), new URLSearchParams('a=2'), 'a=1'],
    ]
    const texts = values.map(canonicalValue)
    expect(texts.filter((text, i) => texts.indexOf(text) !== i)).toEqual([])
  })

  it('takes for equal what holds the same data', () => {
    expect(canonicalValue(Object.assign(Object.create(null), { b: 1, a: 2 }))).toBe('{"a":2,"b":1}')
    expect(canonicalValue(Object.assign(new Empty(), { b: 1, a: 2 }))).toBe('{"a":2,"b":1}')
    expect(canonicalValue(new Empty())).toBe('{}')
    expect(canonicalValue(Buffer.from('abc'))).toBe(canonicalValue(new Uint8Array([97, 98, 99])))
    expect(canonicalValue(Buffer.from('xabcx').subarray(1, 4))).toBe(canonicalValue(Buffer.from('abc')))
    const shared = { x: 1 }
    expect(canonicalValue([shared, shared])).toBe('[{"x":1},{"x":1}]')
  })

  it.each([DEPTH_MAX, DEPTH_MAX + 1, 100_000])('writes a value that is %i levels deep', (depth) => {
    const text = canonicalValue(nested(depth))
    expect(text.match(/[[{]/g)).toHaveLength(depth)
    expect(text).toBe(canonicalValue(nested(depth)))
    expect(text).not.toBe(canonicalValue(nested(depth + 1)))
  })

  it('writes what is shared deep down as often as it is met, and takes it for no cycle', () => {
    let value: unknown = { shared: true }
    value = [value, value]
    for (let i = 0; i < 2 * DEPTH_MAX; i++) value = [value]
    expect(canonicalValue(value).match(/shared/g)).toHaveLength(2)
  })

  const cycle: { a: number; self?: unknown } = { a: 1 }
  cycle.self = [cycle]
  const cyclicMap = new Map<string, unknown>()
  cyclicMap.set('self', cyclicMap)
  it.each<[what: string, value: unknown, message: RegExp]>([
    ['a cycle', cycle, /contains itself/],
    ['a cycle in a map', cyclicMap, /contains itself/],
    ['a function', { items: [1, { run: () => 1 }] }, /payload\.items\.1\.run is a function/],
    ['a symbol', Symbol('s'), /payload is a symbol/],
    ['a promise', [Promise.resolve()], /payload\.0 is an object of type Promise, which hides its content/],
    ['a regular expression', /a/, /of type RegExp/],
    ['an error', new Error('e'), /of type Error/],
    ['a boxed string', Object('abc'), /of type String/],
    [
      'a toJSON that throws',
      {
        toString: new (class {
          toJSON() {
            throw new TypeError('no')
          }
        })(),
      },
      /reading it threw/,
    ],
    [
      'a toJSON without end',
      new (class Endless {
        toJSON() {
          return [new Endless()]
        }
      })(),
      /levels deep/,
    ],
    ['an array without end', new Array(2 ** 32 - 1), /more than 5000000 values/],
  ])('refuses %s, in words', (_what, value, message) => {
    let thrown: unknown
    try {
      canonicalValue(value)
    } catch (error) {
      thrown = error
    }
    expect(thrown).toBeInstanceOf(OncekeyError)
    expect(thrown).toMatchObject({ code: 'config-invalid', message: expect.stringMatching(message) })
  })
})

describe('canonicalBytes', () => {
  it('reads ASCII, UTF-8 and views into larger buffers', () => {
    expect(canonicalBytes(Buffer.from('{"b":1,"a":2}'))).toBe('{"a":2,"b":1}')
    expect(canonicalBytes(Buffer.from('"é😀"'))).toBe('"é😀"')
    expect(canonicalBytes(new TextEncoder().encode(' [1] ').subarray(1, 4))).toBe('[1]')
  })

  it.each([
    ['a lone continuation byte', '22 80 22'],
    ['an overlong form', '22 c0 af 22'],
    ['an encoded surrogate', '22 ed a0 80 22'],
    ['Latin-1', '22 e9 22'],
    ['a byte order mark', 'ef bb bf 31'],
    ['UTF-16', '31 00'],
  ])('takes %s for a trap', (_what, hex) => {
    expect(canonicalBytes(Buffer.from(hex.replaceAll(' ', ''), 'hex'))).toBeUndefined()
  })
})
