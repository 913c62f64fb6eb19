import { hash } from 'node:crypto'
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { tempFile } from '../../../test/support/sqlite.ts'
import { canonicalValue } from '../../operation/canonical.ts'
import { openAudit, verifyAudit } from '../audit.ts'

const idOf = (name: string) => hash('sha256', name, 'hex')
const linesOf = (file: string): string[] => readFileSync(file, 'utf8').trimEnd().split('\n')

describe('verifyAudit', () => {
  const LINES = 6

  /** A log of six lines, and what somebody made of them. */
  const tampered = async (change: (lines: string[]) => string[]) => {
    const file = tempFile()
    const log = await openAudit({ file })
    for (let i = 1; i < LINES; i++)
      await log.append({ id: idOf(`op ${i}`) }, { kind: 'event', requestHash: idOf('request'), data: { i } })
    const { hash: head } = log.head
    await log.close()
    writeFileSync(
      file,
      change(linesOf(file))
        .map((line) => `${line}\n`)
        .join(''),
    )
    return { file, head }
  }
  const at = (lines: readonly string[], i: number) => lines[i] as string
  /** As somebody would who knows how lines are made. */
  const forged = (line: string, changes: object) => {
    const { hash: _, ...entry } = { ...JSON.parse(line), ...changes }
    return canonicalValue({ ...entry, hash: hash('sha256', canonicalValue(entry), 'hex') })
  }

  it.each<[string, (lines: string[]) => string[], object]>([
    ['untouched', (lines) => lines, { state: 'intact', lines: LINES }],
    [
      'a value changed',
      (lines) => lines.with(3, at(lines, 3).replace('"i":3', '"i":4')),
      { line: 4, problem: 'changed' },
    ],
    ['white space added', (lines) => lines.with(3, at(lines, 3).replace(',', ', ')), { line: 4, problem: 'changed' }],
    ['a field added', (lines) => lines.with(3, forged(at(lines, 3), { x: 1 })), { line: 4, problem: 'changed' }],
    [
      'a value changed, and its hash',
      (lines) => lines.with(3, forged(at(lines, 3), { data: {} })),
      { line: 5, problem: 'replaced' },
    ],
    ['a line removed', (lines) => lines.toSpliced(3, 1), { line: 4, problem: 'missing' }],
    ['the first line removed', (lines) => lines.slice(1), { line: 1, problem: 'missing' }],
    ['a copied line inserted', (lines) => lines.toSpliced(3, 0, at(lines, 1)), { line: 4, problem: 'moved' }],
    [
      'a forged line inserted',
      (lines) => lines.toSpliced(3, 0, forged(at(lines, 3), { data: {} })),
      { line: 5, problem: 'moved' },
    ],
    [
      'two lines swapped',
      (lines) => lines.with(3, at(lines, 4)).with(4, at(lines, 3)),
      { line: 4, problem: 'missing' },
    ],
    ['an empty line added', (lines) => [...lines, ''], { line: LINES + 1, problem: 'changed' }],
    ['everything removed', () => [], { line: 1, problem: 'empty' }],
  ])('S8: %s: finds the first broken link', async (_what, change, expected) => {
    const { file } = await tampered(change)
    expect(await verifyAudit(file)).toMatchObject({ state: 'broken', ...expected })
  })

  it('S8: any byte that is changed, anywhere, shows, and shows in its own line', async () => {
    const { file } = await tampered((lines) => lines)
    const whole = readFileSync(file)
    for (let at = 0; at < whole.length; at += 7) {
      const bytes = Buffer.from(whole)
      bytes[at] = (bytes[at] as number) ^ 1
      writeFileSync(file, bytes)
      const line = whole.subarray(0, at).toString().split('\n').length
      expect(await verifyAudit(file), `byte ${at}`).toMatchObject({ state: 'broken', line })
    }
  })

  it('S8: lines cut off at the end show only against a head that was noted elsewhere', async () => {
    const { file, head } = await tampered((lines) => lines.slice(0, 4))
    expect(await verifyAudit(file)).toMatchObject({ state: 'intact', lines: 4 })
    const verdict = await verifyAudit(file, { head })
    expect(verdict).toMatchObject({ state: 'broken', line: 5, problem: 'truncated' })
    // A head of an earlier day is as good: the chain has gone on since.
    expect(await verifyAudit(file, { head: JSON.parse(linesOf(file)[2] as string).hash })).toMatchObject({
      state: 'intact',
    })
  })

  it('says of a torn last line that it is one, and reads no line without end', async () => {
    const { file } = await tampered((lines) => lines)
    appendFileSync(file, '{"data"')
    expect(await verifyAudit(file)).toMatchObject({ state: 'broken', line: LINES + 1, problem: 'torn' })
    appendFileSync(file, 'x'.repeat(5_000_000))
    expect(await verifyAudit(file)).toMatchObject({ state: 'broken', line: LINES + 1, problem: 'changed' })
  })
})
