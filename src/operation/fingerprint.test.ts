import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { reference, spell } from '../../test/support/json.ts'
import { type FingerprintInput, fingerprint, fingerprintValue, type Payload } from './fingerprint.ts'

function bytes(body: string | Uint8Array, contentType = 'application/json'): Payload {
  return { kind: 'bytes', bytes: typeof body === 'string' ? Buffer.from(body) : body, contentType }
}

function of(payload: Payload, request: Partial<FingerprintInput> = {}): string {
  return fingerprint({ method: 'POST', target: '/orders', payload, ...request })
}

function form(boundary: string, parts: readonly string[]): Payload {
  const body = `${parts.map((part) => `--${boundary}\r\n${part}\r\n`).join('')}--${boundary}--\r\n`
  return bytes(Buffer.from(body, 'latin1'), `multipart/form-data; boundary=${boundary}`)
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}

/** Each is another document, and most are traps: however they are read, no two may meet. */
const TRAPS: readonly (string | Uint8Array)[] = [
  ...[
    '',
    ' ',
    '\ufeff',
    '\ufeff1',
    '1',
    '"1"',
    '[1]',
    '{"1":1}',
    '1 1',
    'true',
    'null',
    '"null"',
    '{}',
    '[]',
    '[{}]',
    '{',
  ],
  ...['9007199254740992', '9007199254740993', '9007199254740994', '12345678901234567890', '12345678901234567891'],
  ...[
    '1e400',
    '1e401',
    '-1e400',
    '1e-400',
    '0',
    '-0',
    '0.1',
    '0.1000000000000000055511151231257827',
    '0.10000000000000001',
  ],
  ...[
    '{"a":1,"a":2}',
    '{"a":2,"a":1}',
    '{"a":1}',
    '{"a":2}',
    '{"a":2,"\\u0061":1}',
    '{"\\u0061":2,"a":1}',
    '{"a":1,"a":1}',
  ],
  ...['"\\ud800"', '"\\ud801"', '"\\udc00"', '"\\ufffd"', '"\\\\ud800"', '"?"'],
  ...['22ff22', '22fe22', '22eda08022', '22eda08122', '22c0af22', 'fffe3100'].map((hex) => Buffer.from(hex, 'hex')),
  ...['{"__proto__":{"a":1}}', '{"__proto__":{"a":2}}', '{"__proto__":null}', '{"constructor":1}', '{"toString":1}'],
  ...[511, 512, 513, 514, 100_000, 100_001].map((depth) => '['.repeat(depth) + ']'.repeat(depth)),
  ...['['.repeat(100_000), `${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`],
  ...[
    '[1,2]',
    '[2,1]',
    '[12]',
    '["1,2"]',
    '[1,2,]',
    '{"a":1}x',
    '{"a":[1]}',
    '{"a":{"0":1}}',
    '1.5',
    '15',
    '-1',
    'nul',
  ],
]

describe('fingerprint', () => {
  it('is SHA-256 over these texts, fixed for ever: stored records depend on it', () => {
    const request = 'oncekey/1 request 4:POST7:/orders'
    const field = 'Content-Disposition: form-data; name="a"\r\n\r\n1'
    expect(of({ kind: 'none' })).toBe(sha256(`${request}none`))
    expect(of({ kind: 'value', value: { b: 1, a: [true] } })).toBe(sha256(`${request}value {"a":[true],"b":1}`))
    expect(of(bytes('{"b":1,"a":[true]}'))).toBe(sha256(`${request}json 16:application/json{"a":[true],"b":1}`))
    expect(of(bytes('{', 'text/json'))).toBe(sha256(`${request}raw 9:text/json${sha256('{')}`))
    expect(of(form('B', [field]))).toBe(
      sha256(`${request}parts 19:multipart/form-data1|40:content-disposition:form-data; name="a"\n${sha256('1')}`),
    )
    expect(fingerprintValue({ b: 1, a: [true] })).toBe(sha256('oncekey/1 value {"a":[true],"b":1}'))
  })

  it('counts method, path and query, exactly as they came', () => {
    const payload = bytes('{}')
    const all = [
      of(payload),
      of(payload, { method: 'PUT' }),
      of(payload, { method: 'POST/orders', target: '' }),
      of(payload, { target: '/orders/' }),
      of(payload, { target: '/orders?' }),
      of(payload, { target: '/orders?a=1&b=2' }),
      of(payload, { target: '/orders?b=2&a=1' }),
      of(payload, { target: '/Orders' }),
      of(payload, { target: '/orders\ud800' }),
      of(payload, { target: '/orders\ud801' }),
    ]
    expect(new Set(all).size).toBe(all.length)
  })

  it('no two documents of the trap list share a fingerprint', () => {
    const all = TRAPS.map((body) => of(bytes(body)))
    expect(TRAPS.filter((_, i) => all.indexOf(all[i] as string) !== i)).toEqual([])
  })

  it('a body read as JSON, as bytes, as a value, and no body at all never meet', () => {
    const all = [
      of({ kind: 'none' }),
      of(bytes('')),
      of(bytes('', '')),
      of({ kind: 'value', value: undefined }),
      of({ kind: 'value', value: null }),
      of({ kind: 'value', value: '' }),
      of(bytes('null')),
      of(bytes('null', 'text/plain')),
      of(bytes('null', 'application/problem+json')),
      of({ kind: 'value', value: Buffer.from('null') }),
      of({ kind: 'value', value: 'null' }),
    ]
    expect(new Set(all).size).toBe(all.length)
  })

  it('property: JSON counts by what it says, not by how it is written', () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.integer(), fc.integer(), (value, one, other) => {
        const document = JSON.parse(JSON.stringify(value))
        expect(of(bytes(spell(document, one)))).toBe(of(bytes(spell(document, other))))
      }),
    )
  })

  it('property: other JSON, other fingerprint, however small the difference', () => {
    const small = fc.jsonValue({ maxDepth: 2, stringUnit: 'grapheme-ascii' })
    fc.assert(
      fc.property(fc.array(small, { maxLength: 12 }), (values) => {
        const documents = values.flatMap((value) => [
          value,
          [value],
          { a: value },
          JSON.stringify(value),
          { a: [value] },
        ])
        const texts = new Set(documents.map((document) => reference(JSON.parse(JSON.stringify(document)))))
        expect(new Set([...texts].map((text) => of(bytes(text)))).size).toBe(texts.size)
        const asValues = [...texts].map((text) => of({ kind: 'value', value: JSON.parse(text) }))
        expect(new Set(asValues).size).toBe(texts.size)
      }),
    )
  })

  it('property: any bytes of any type have a fingerprint, and other bytes another', () => {
    const types = fc.constantFrom('application/json', 'text/plain', '', 'multipart/form-data; boundary=B', ';;', '"')
    fc.assert(
      fc.property(fc.uint8Array(), fc.uint8Array(), fc.oneof(types, fc.string()), (a, b, type) => {
        const isSame = Buffer.compare(a, b) === 0
        if (type !== 'application/json') expect(of(bytes(a, type)) === of(bytes(b, type))).toBe(isSame)
        expect(of(bytes(a, type))).toMatch(/^[0-9a-f]{64}$/)
      }),
      { numRuns: 500 },
    )
  })

  it('reads 5 MB whole: the last member counts', () => {
    const rows = Array.from({ length: 50_000 }, (_, i) => ({
      sku: `A-${i}`,
      qty: i,
      price: i / 4,
      name: 'x'.repeat(60),
    }))
    const body = (last: number) => Buffer.from(JSON.stringify({ rows, last }))
    const reordered = Buffer.from(JSON.stringify({ last: 1, rows }))
    expect(reordered.length).toBeGreaterThan(5_000_000)
    expect(of(bytes(body(1)))).toBe(of(bytes(reordered)))
    expect(of(bytes(body(1)))).not.toBe(of(bytes(body(2))))
    expect(of(bytes(body(1), 'x/y'))).not.toBe(of(bytes(reordered, 'x/y')))
  })
})

describe('content types', () => {
  it('JSON is JSON in any case, with any parameters, and under any +json', () => {
    for (const type of [
      'application/json',
      'Application/JSON',
      ' application/json ; charset="UTF-8"',
      'text/json',
      'a/b+json; v=1',
    ]) {
      expect(of(bytes('{"a":1,"b":2}', type)), type).toBe(of(bytes('{"b":2, "a":1}', type)))
    }
    for (const type of [
      'text/plain',
      'application/jsonx',
      'json',
      'application/json; charset=utf-16',
      'application/json; v=1; v=1',
      'application/json; x',
    ]) {
      expect(of(bytes('{"a":1,"b":2}', type)), type).not.toBe(of(bytes('{"b":2,"a":1}', type)))
    }
  })

  it('one type in two spellings is one type', () => {
    const pairs = [
      ['application/json', 'APPLICATION/json;charset=utf8'],
      ['application/json;v=2;w=1', 'application/json; W="1" ;V=2;'],
      ['text/plain;charset=ISO-8859-1', 'text/plain; charset="iso-8859-1"'],
    ]
    for (const [a, b] of pairs) expect(of(bytes('1', a))).toBe(of(bytes('1', b)))
  })

  it('different types and parameters count', () => {
    const types = [
      ...['application/json', 'application/problem+json', 'application/json;v=1', 'application/json;v=2', 'text/plain'],
      ...[
        'text/plain;charset=utf-8',
        'text/plain;charset=latin1',
        '',
        'nonsense',
        'application/json;v="1;w=2"',
        'application/json;v=1;w=2',
      ],
      ...['application/json;v=1;v=2', 'application/json;v=2;v=1', `text/plain;a=${'x'.repeat(2000)}`],
    ]
    const all = types.map((type) => of(bytes('1', type)))
    expect(types.filter((_, i) => all.indexOf(all[i] as string) !== i)).toEqual([])
  })
})

describe('multipart', () => {
  const name = (field: string, content: string) => `Content-Disposition: form-data; name="${field}"\r\n\r\n${content}`
  const file = (filename: string, type: string, content: string) =>
    `Content-Disposition: form-data; name="f"; filename="${filename}"\r\nContent-Type: ${type}\r\n\r\n${content}`

  it('does not depend on the boundary', () => {
    const parts = [name('a', '1'), file('x.png', 'image/png', '\u0089PNG\r\n\u0000--')]
    expect(of(form('----one', parts))).toBe(of(form('two', parts)))
  })

  it('depends on everything else', () => {
    const all = [
      form('B', []),
      form('B', [name('a', '1')]),
      form('B', [name('a', '2')]),
      form('B', [name('b', '1')]),
      form('B', [name('a', '1'), name('b', '2')]),
      form('B', [name('b', '2'), name('a', '1')]),
      form('B', [name('a', '1'), name('a', '1')]),
      form('B', [file('x', 'image/png', '1')]),
      form('B', [file('y', 'image/png', '1')]),
      form('B', [file('x', 'image/gif', '1')]),
      form('B', [file('x', 'image/gif', '1\r\n')]),
    ].map((payload) => of(payload))
    expect(new Set(all).size).toBe(all.length)
  })

  it('counts by its bytes when it is malformed', () => {
    const broken = (boundary: string) =>
      bytes(`--${boundary}\r\nnot a header\r\n\r\nx\r\n--${boundary}--`, `multipart/form-data; boundary=${boundary}`)
    expect(of(broken('A'))).not.toBe(of(broken('B')))
    expect(of(broken('A'))).toBe(of(broken('A')))
    expect(of(bytes('--A--', 'multipart/form-data'))).not.toBe(of(bytes('--A--', 'multipart/form-data; boundary=A')))
  })
})

describe('fingerprintValue', () => {
  it('agrees for the same data and is apart from HTTP', () => {
    expect(fingerprintValue({ a: 1, b: [2] })).toBe(fingerprintValue({ b: [2], a: 1 }))
    expect(fingerprintValue({ a: 1 })).not.toBe(fingerprintValue({ a: 2 }))
    expect(fingerprintValue(undefined)).not.toBe(fingerprintValue(null))
    expect(fingerprintValue('a')).not.toBe(
      fingerprint({ method: '', target: '', payload: { kind: 'value', value: 'a' } }),
    )
  })
})
