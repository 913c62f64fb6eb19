import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { PART_HEADER_BYTES_MAX, PARTS_MAX, splitMultipart } from './multipart.ts'

const FIELD = 'Content-Disposition: form-data; name="a"'

function split(text: string, boundary = 'B'): { headers: unknown; body: string }[] | undefined {
  const parts = splitMultipart(Buffer.from(text, 'latin1'), boundary)
  return parts?.map(({ headers, body }) => ({ headers, body: Buffer.from(body).toString('latin1') }))
}

describe('splitMultipart', () => {
  it('takes a form apart', () => {
    const form = [
      `--B\r\n${FIELD}\r\n\r\none`,
      '--B\r\ncontent-type:  image/png \r\nCONTENT-DISPOSITION: form-data; name="f"; filename="x.png"\r\n\r\n\u0089PNG\r\n\u0000\r\n',
      `--B\r\n${FIELD}\r\n\r\n`,
      '--B--\r\n',
    ].join('\r\n')
    expect(split(form)).toEqual([
      { headers: [['content-disposition', 'form-data; name="a"']], body: 'one' },
      {
        headers: [
          ['content-disposition', 'form-data; name="f"; filename="x.png"'],
          ['content-type', 'image/png'],
        ],
        body: '\u0089PNG\r\n\u0000\r\n',
      },
      { headers: [['content-disposition', 'form-data; name="a"']], body: '' },
    ])
  })

  it('takes an empty form, with and without its last line end', () => {
    expect(split('--B--')).toEqual([])
    expect(split('--B--\r\n')).toEqual([])
  })

  it.each([
    ['nothing', ''],
    ['the wrong boundary', `--C\r\n${FIELD}\r\n\r\nx\r\n--C--`],
    ['a preamble', `hello\r\n--B\r\n${FIELD}\r\n\r\nx\r\n--B--`],
    ['an epilogue', `--B\r\n${FIELD}\r\n\r\nx\r\n--B--\r\nbye`],
    ['no last delimiter', `--B\r\n${FIELD}\r\n\r\nx`],
    ['a last delimiter that is not last', `--B--\r\n--B\r\n${FIELD}\r\n\r\nx\r\n--B--`],
    ['bare line feeds', `--B\n${FIELD}\n\nx\n--B--`],
    ['a bare line feed before a delimiter', `--B\r\n${FIELD}\r\n\r\nx\n--B--`],
    ['the boundary within the content', `--B\r\n${FIELD}\r\n\r\nx--Bx\r\n--B--`],
    ['a longer boundary at a line start', `--B\r\n${FIELD}\r\n\r\nx\r\n--BB\r\n--B--`],
    ['padding after a delimiter', `--B \r\n${FIELD}\r\n\r\nx\r\n--B--`],
    ['no empty line after the headers', `--B\r\n${FIELD}\r\n--B--`],
    ['no line end before a delimiter', `--B\r\n${FIELD}\r\n\r\n--B--`],
    ['no headers', '--B\r\n\r\nx\r\n--B--'],
    ['no disposition', '--B\r\nContent-Type: text/plain\r\n\r\nx\r\n--B--'],
    ['two dispositions', `--B\r\n${FIELD}\r\n${FIELD}\r\n\r\nx\r\n--B--`],
    ['another disposition', '--B\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--B--'],
    ['a folded header', `--B\r\n${FIELD};\r\n filename="x"\r\n\r\nx\r\n--B--`],
    ['a header without a colon', `--B\r\n${FIELD}\r\nx\r\n\r\nx\r\n--B--`],
    ['a line feed in a header', `--B\r\n${FIELD}\nX-A: b\r\n\r\nx\r\n--B--`],
    ['headers too long', `--B\r\n${FIELD}\r\nX: ${'x'.repeat(PART_HEADER_BYTES_MAX)}\r\n\r\nx\r\n--B--`],
    ['too many parts', `${`--B\r\n${FIELD}\r\n\r\nx\r\n`.repeat(PARTS_MAX + 1)}--B--`],
  ])('leaves alone what has %s', (_what, text) => {
    expect(split(text)).toBeUndefined()
  })

  it('takes as many parts as the limit says', () => {
    expect(split(`${`--B\r\n${FIELD}\r\n\r\nx\r\n`.repeat(PARTS_MAX)}--B--`)).toHaveLength(PARTS_MAX)
  })

  it.each([[''], ['x'.repeat(71)], ['a '], ['a\r\nb'], ['é']])('refuses the boundary %j', (boundary) => {
    expect(split(`--${boundary}--`, boundary)).toBeUndefined()
  })

  it('property: gives back any contents, and throws for no bytes', () => {
    const token = fc.constantFrom('--B', '--', '\r\n', '\n', 'B', ':', ' ', 'x', `${FIELD}\r\n\r\n`)
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 40 }), { maxLength: 5 }), fc.array(token), (contents, tokens) => {
        const boundary = 'b0undary-that-no-short-content-has'
        const form = contents.flatMap((content) => [
          Buffer.from(`--${boundary}\r\n${FIELD}\r\n\r\n`),
          content,
          Buffer.from('\r\n'),
        ])
        const parts = splitMultipart(Buffer.concat([...form, Buffer.from(`--${boundary}--`)]), boundary)
        expect(parts?.map(({ body }) => Buffer.from(body).toString('hex'))).toEqual(
          contents.map((content) => Buffer.from(content).toString('hex')),
        )
        void split(`--B${tokens.join('')}`)
      }),
      { numRuns: 300 },
    )
  })
})
