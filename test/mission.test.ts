import { globSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'

/** docs/mission.md says for every clause which test shows it and which line does it. Here both are looked up. */
const ROOT = resolve(import.meta.dirname, '..')
const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8')
const rows = [
  ...read('docs/mission.md').matchAll(/^\| ([A-Z]\d+) \| (.+?) \| (.+?) › (.+?) \| (.+?) › `(.+)` \|$/gm),
].map(([, id = '', promise = '', testFile = '', testName = '', codeFile = '', code = '']) => ({
  ...{ id, promise, testFile, testName, codeFile },
  code: code.replaceAll('\\|', '|'),
}))
const ids = rows.map(({ id }) => id)

/** How many clauses each document has. */
const CLAUSES = { A: 17, D: 14, R: 12, S: 9, J: 12, X: 10 } as const

describe('docs/mission.md', () => {
  it('has every clause once, in order', () => {
    const expected = Object.entries(CLAUSES).flatMap(([letter, count]) =>
      Array.from({ length: count }, (_, i) => `${letter}${i + 1}`),
    )
    expect(ids).toEqual(expected)
  })

  it.each(rows.map((row) => [row.id, row] as const))('%s: its test and its line are there', (id, row) => {
    const tests = read(row.testFile)
    expect(row.testName, 'the test is named after the clause').toMatch(new RegExp(`\\b${id}\\b`))
    expect(
      tests.includes(row.testName) || unescaped(tests).includes(row.testName),
      `${row.testFile} has ${row.testName}`,
    ).toBe(true)
    expect(row.promise.length).toBeGreaterThan(10)
    const lines = read(row.codeFile).split('\n')
    const found = lines.filter((line) => line.includes(row.code))
    expect(found, `${row.codeFile} has this line once: ${row.code}`).toHaveLength(1)
  })

  it('no test names a clause that is not there', () => {
    const files = globSync(['{src,test,examples}/**/*.test.ts', 'test/sql-cases/*.ts'], { cwd: ROOT })
    const named = files.flatMap((file) =>
      [...read(file).matchAll(/\b(?:it|describe|test)(?:\.\w+)*(?:\([^'"`]*\))?\(\s*(['"`])(.*?)\1/gs)].flatMap(
        ([, , name = '']) =>
          [...(name.match(/^(?:[A-Z]\d{1,2} ?)+(?=:)/)?.[0] ?? '').matchAll(/[A-Z]\d{1,2}/g)].map(
            ([id]) => `${file}: ${id}`,
          ),
      ),
    )
    expect(named.length).toBeGreaterThan(100)
    expect(named.filter((entry) => !ids.includes(entry.split(': ').at(-1) ?? ''))).toEqual([])
  })
})

function unescaped(text: string): string {
  return text.replaceAll("\\'", "'")
}
