import { spawnSync } from 'node:child_process'
import { hash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openAudit } from '../src/guards/audit.ts'
import { tempFile } from './support/sqlite.ts'

const MAIN = resolve(import.meta.dirname, '../src/cli/main.ts')
const run = (...args: string[]) => spawnSync(process.execPath, [MAIN, 'audit', ...args], { encoding: 'utf8' })
const EVENTS = 4

async function writeLog(): Promise<{ readonly file: string; readonly head: string; readonly lines: string[] }> {
  const file = tempFile()
  const log = await openAudit({ file })
  for (let i = 1; i <= EVENTS; i++) {
    const id = hash('sha256', `op ${i}`, 'hex')
    await log.append({ id }, { kind: 'event', requestHash: id, data: { amount: 100 * i } })
  }
  const head = log.head.hash
  await log.close()
  return { file, head, lines: readFileSync(file, 'utf8').trimEnd().split('\n') }
}

const rewrite = (file: string, lines: readonly string[]) =>
  writeFileSync(file, lines.map((line) => `${line}\n`).join(''))

describe('oncekey audit verify', () => {
  it('S8: says that a log is intact, with its head, and ends with 0', async () => {
    const { file, head } = await writeLog()
    const { status, stdout } = run('verify', file)
    expect(stdout).toContain(`${file} is intact: ${EVENTS + 1} lines`)
    expect(stdout).toContain(`head ${head}`)
    expect(status).toBe(0)
    expect(run('verify', file, '--head', head).status).toBe(0)
  })

  it('S8: names the first broken line and what is wrong with it, and ends with 1', async () => {
    const { file, lines } = await writeLog()
    rewrite(file, lines.with(2, (lines[2] as string).replace('200', '900')))
    const changed = run('verify', file)
    expect(changed.stdout).toMatch(/is broken at line 3 \(changed\): its content has the hash/)
    expect(changed.status).toBe(1)

    rewrite(file, lines.toSpliced(2, 1))
    const removed = run('verify', file, '--json')
    expect(JSON.parse(removed.stdout)).toMatchObject({ file, state: 'broken', line: 3, problem: 'missing', lines: 2 })
    expect(removed.status).toBe(1)
  })

  it('S8: sees with --head that the end was cut off', async () => {
    const { file, head, lines } = await writeLog()
    rewrite(file, lines.slice(0, -1))
    expect(run('verify', file).status).toBe(0)
    const { status, stdout } = run('verify', file, '--head', head)
    expect(stdout).toMatch(/broken at line 5 \(truncated\)/)
    expect(status).toBe(1)
  })

  it('reads a large log in bounded memory, and says on stderr how far it is', async () => {
    const whole = await largeLog()
    const small = spawnSync(process.execPath, ['--max-old-space-size=48', MAIN, 'audit', 'verify', whole], {
      encoding: 'utf8',
    })
    expect(small.stderr).toMatch(/^17 of \d+ MB\n\d+ of \d+ MB/)
    expect(small.stdout).toMatch(/is intact: 1001 lines/)
  })

  it.each([
    [[], /There is no command ""; say verify/],
    [['verify'], /Name the audit log/],
    [['verify', 'a', 'b'], /One log at a time: "b"/],
    [['verify', 'no-such-file'], /no-such-file cannot be read/],
    [['verify', 'a', '--head', 'abc'], /--head is "abc"/],
    [['verify', 'a', '--wrong'], /--wrong/],
  ])('%j is refused in words, with code 2', (args, text) => {
    const { status, stderr } = run(...args)
    expect(status).toBe(2)
    expect(stderr).toMatch(text)
  })
})

/** Sixty megabytes. */
async function largeLog(): Promise<string> {
  const file = tempFile()
  const log = await openAudit({ file })
  await Promise.all(
    Array.from({ length: 1_000 }, (_, i) => {
      const id = hash('sha256', `op ${i}`, 'hex')
      return log.append({ id }, { kind: 'event', requestHash: id, data: { padding: 'x'.repeat(60_000) } })
    }),
  )
  await log.close()
  return file
}
