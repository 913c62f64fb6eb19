import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { anyUnit, reference, spell } from '../../test/support/json.ts'
import { canonicalText, DEPTH_MAX, NUMBER_CHARS_MAX } from './json.ts'

describe('canonicalText: the vectors of RFC 8785', () => {
  it('the sample of section 3.2, with its one number that is no shortest form written shortest', () => {
    const source = String.raw`{
      "numbers": [333333333.3333333, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }`
    expect(canonicalText(source)).toBe(
      String.raw`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
    )
    expect(canonicalText(source.replace('.3333333,', '.33333329,'))).toBeUndefined()
  })

  it('the sorting example of section 3.2.3: by UTF-16 code units', () => {
    const source = String.raw`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
      "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`
    expect(canonicalText(source)).toBe(
      '{"\\r":"Carriage Return","1":"One","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis",' +
        '"\u20ac":"Euro Sign","\ud83d\ude00":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    )
  })
})

describe('canonicalText: traps', () => {
  it.each([
    ['an empty body', ''],
    ['white space only', ' \n\t'],
    ['a byte order mark', '\ufeff{}'],
    ['other white space', '\u00a0{}'],
    ['trailing garbage', '{} x'],
    ['two documents', '1 2'],
    ['a trailing comma', '[1,]'],
    ['a trailing comma in an object', '{"a":1,}'],
    ['a missing comma', '[1 2]'],
    ['a missing colon', '{"a" 1}'],
    ['a missing value', '{"a":}'],
    ['a comma only', '[,]'],
    ['a bare name', '{a:1}'],
    ['a number for a name', '{1:1}'],
    ['single quotes', "'a'"],
    ['the wrong bracket', '[1}'],
    ['the wrong brace', '{"a":1]'],
    ['a closing bracket only', ']'],
    ['an unclosed array', '[1'],
    ['an unclosed object', '{"a":1'],
    ['an unclosed string', '"a'],
    ['a string ending in a backslash', '"a\\'],
    ['a control character in a string', '"\u0001"'],
    ['a bad escape', '"\\x41"'],
    ['a short escape', '"\\u12"'],
    ['a misspelled word', 'nul'],
    ['a longer word', 'truee'],
    ['NaN', 'NaN'],
    ['Infinity', '-Infinity'],
    ['a leading zero', '01'],
    ['a leading plus', '+1'],
    ['a lone minus', '-'],
    ['a dot without digits', '1.'],
    ['a dot first', '.5'],
    ['an exponent without digits', '1e'],
    ['a hexadecimal', '0x10'],
    ['a comment', '/**/1'],
    ['2^53 + 1', '9007199254740993'],
    ['an integer of 17 digits', '12345678901234567'],
    ['1e400', '1e400'],
    ['1e-400', '1e-400'],
    ['minus zero', '-0'],
    ['minus zero with a fraction', '-0.0'],
    ['minus zero with an exponent', '-0e5'],
    ['more digits than a double has', '0.1000000000000000055511151231257827'],
    ['pi to thirty digits', '3.14159265358979323846264338328'],
    ['a number that goes on', `1${'0'.repeat(NUMBER_CHARS_MAX)}`],
    ['a repeated name', '{"a":1,"a":2}'],
    ['a repeated name, same value', '{"a":1,"a":1}'],
    ['a repeated name, apart', '{"b":1,"a":1,"b":2}'],
    ['a repeated name, one spelling escaped', '{"a":1,"\\u0061":2}'],
    ['a repeated __proto__', '{"__proto__":1,"a":1,"__proto__":2}'],
    ['an escaped lone high surrogate', '"\\ud800"'],
    ['an escaped lone low surrogate', '"\\udc00a"'],
    ['escaped surrogates the wrong way round', '"\\udc00\\ud800"'],
    ['an escaped lone surrogate in a name', '{"\\ud800":1}'],
    ['a raw lone surrogate', '"\ud800"'],
    ['nesting beyond the limit', '['.repeat(DEPTH_MAX + 1) + ']'.repeat(DEPTH_MAX + 1)],
    ['objects nested beyond the limit', `${'{"a":'.repeat(DEPTH_MAX + 1)}1${'}'.repeat(DEPTH_MAX + 1)}`],
    ['nesting 10^5 deep', '['.repeat(1e5) + ']'.repeat(1e5)],
    ['nesting 10^5 deep, unclosed', '['.repeat(1e5)],
  ])('%s', (_what, text) => {
    expect(canonicalText(text)).toBeUndefined()
  })

  it('a repeated name among many', () => {
    const members = Array.from({ length: 100 }, (_, i) => `"n${(i * 37) % 100}":${i}`)
    expect(canonicalText(`{${members.join(',')}}`)).toBe(reference(JSON.parse(`{${members.join(',')}}`)))
    expect(canonicalText(`{${[...members, '"n5":0'].join(',')}}`)).toBeUndefined()
  })
})

describe('canonicalText: what is no trap', () => {
  it.each([
    ['0', '0'],
    [' 1 ', '1'],
    ['1.0', '1'],
    ['-1', '-1'],
    ['-1.50', '-1.5'],
    ['100e-2', '1'],
    ['0.0', '0'],
    ['0e99999', '0'],
    ['1E+2', '100'],
    ['1e21', '1e+21'],
    ['0.000001', '0.000001'],
    ['0.0000001', '1e-7'],
    ['9007199254740992', '9007199254740992'],
    ['123456789012345', '123456789012345'],
    ['5e-324', '5e-324'],
    ['"a"', '"a"'],
    ['"\u007f\u2028"', '"\u007f\u2028"'],
    ['"\\/\\u0041"', '"/A"'],
    ['"\\ud83d\\ude00"', '"😀"'],
    ['null', 'null'],
    [' [ ] ', '[]'],
    ['{ }', '{}'],
    ['[[],{}]', '[[],{}]'],
    ['{"b":{"d":1,"c":[{"z":1,"y":2}]},"a":2}', '{"a":2,"b":{"c":[{"y":2,"z":1}],"d":1}}'],
    ['{"constructor":1,"__proto__":{"x":2}}', '{"__proto__":{"x":2},"constructor":1}'],
    ['{"a!":1,"a":2}', '{"a":2,"a!":1}'],
    ['{"10":1,"9":2}', '{"10":1,"9":2}'],
    ['{"":1}', '{"":1}'],
  ])('%j becomes %j', (text, canonical) => {
    expect(canonicalText(text)).toBe(canonical)
  })

  it('nesting up to the limit', () => {
    const deepest = '['.repeat(DEPTH_MAX) + ']'.repeat(DEPTH_MAX)
    expect(canonicalText(deepest)).toBe(deepest)
  })

  it('the limit is on depth, not on how many containers there are', () => {
    const wide = `[${Array.from({ length: 3 * DEPTH_MAX }, () => '[{}]').join(',')}]`
    expect(canonicalText(wide)).toBe(wide)
  })
})

describe('canonicalText: properties', () => {
  it('equals the plain recursive reference, in every order of members, white space, escaping and number spelling', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 5 }), fc.integer(), (value, seed) => {
        const document = JSON.parse(JSON.stringify(value))
        expect(canonicalText(spell(document, seed))).toBe(reference(document))
      }),
      { numRuns: 1000 },
    )
  })

  it('sorts any number of members', () => {
    const name = fc.oneof(fc.string({ unit: 'grapheme', maxLength: 3 }), fc.constantFrom('__proto__', 'toString', '1'))
    fc.assert(
      fc.property(fc.uniqueArray(name, { maxLength: 60, size: 'max' }), fc.integer(), (names, seed) => {
        const document = Object.fromEntries(names.map((each, i) => [each, i]))
        expect(canonicalText(spell(document, seed))).toBe(reference(document))
      }),
    )
  })

  it('loses nothing: the canonical text says what the source says', () => {
    fc.assert(
      fc.property(fc.json(), (text) => {
        const canonical = canonicalText(text)
        if (canonical === undefined) return
        expect(JSON.parse(canonical)).toEqual(JSON.parse(text))
        expect(canonicalText(canonical)).toBe(canonical)
      }),
      { numRuns: 500 },
    )
  })

  it('takes only what is JSON, out of texts that almost are', () => {
    const token = fc.constantFrom(
      ...'{}[],:"\\ \n-+.eE01259atrufnls'.split(''),
      ...[
        '"a"',
        '"b"',
        '"a":',
        'true',
        'false',
        'null',
        '1.5',
        '-0',
        '1e5',
        '\\u0061',
        '\\ud800',
        '[]',
        '{}',
        '\u0001',
      ],
    )
    let taken = 0
    fc.assert(
      fc.property(fc.array(token, { maxLength: 12 }), (tokens) => {
        const canonical = canonicalText(tokens.join(''))
        if (canonical === undefined) return
        taken++
        expect(canonical).toBe(reference(JSON.parse(tokens.join(''))))
      }),
      { numRuns: 20_000 },
    )
    expect(taken).toBeGreaterThan(100)
  })

  it('a number is taken exactly when the double prints as the same decimal', () => {
    const digits = fc.string({ unit: fc.constantFrom(...'0123456789'), minLength: 1, maxLength: 19 })
    const exponent = fc.option(fc.integer({ min: -30, max: 30 }), { nil: undefined })
    fc.assert(
      fc.property(fc.boolean(), digits, fc.option(digits, { nil: '' }), exponent, (minus, whole, fraction, power) => {
        const unsigned =
          (whole.replace(/^0+/, '') || '0') + (fraction && `.${fraction}`) + (power === undefined ? '' : `e${power}`)
        const literal = (minus ? '-' : '') + unsigned
        const shortest = String(Number(literal))
        const isSame = compareDecimals(literal, shortest) && !Object.is(Number(literal), -0)
        expect(canonicalText(literal)).toBe(isSame ? shortest : undefined)
      }),
      { numRuns: 3000 },
    )
  })

  it('throws for no string', () => {
    fc.assert(fc.property(fc.string({ unit: anyUnit }), (text) => void canonicalText(text)))
  })
})

/** Exact, by scaling both to integers. */
function compareDecimals(a: string, b: string): boolean {
  const scaled = (literal: string): bigint => {
    const [mantissa = '', power = '0'] = literal.split('e')
    const [whole = '', fraction = ''] = mantissa.split('.')
    return BigInt(whole + fraction) * 10n ** BigInt(100 + Number(power) - fraction.length)
  }
  return scaled(a) === scaled(b)
}
