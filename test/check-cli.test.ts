import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { text } from 'node:stream/consumers'
import { describe, expect, it, onTestFinished } from 'vitest'
import * as node from '../src/adapters/node.ts'
import type { CheckReport } from '../src/check/index.ts'
import { memoryStore } from '../src/stores/memory.ts'
import { bridge, listening } from './adapters/subjects.ts'
import { careless } from './check/careless.ts'
import { baseOf, orderService } from './check/service.ts'

const MAIN = resolve(import.meta.dirname, '../src/cli/main.ts')

/** Not spawnSync: the service that is checked lives in this process. */
async function oncekey(...args: string[]): Promise<{ status: number; stdout: string; stderr: string }> {
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  const [stdout, stderr, [status]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')])
  return { status, stdout, stderr }
}

async function orders(): Promise<string> {
  const { handle } = orderService()
  const protect = node.idempotency({
    store: memoryStore(),
    principal: ({ headers }) => headers.authorization ?? 'nobody',
  })
  return baseOf(await listening(createServer(protect(bridge(handle)))))
}

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'oncekey-check-'))
  onTestFinished(() => rmSync(path, { recursive: true }))
  return path
}

describe('X9: oncekey check URL', () => {
  it('is green for our own adapter: a report for people, progress on stderr, code 0', async () => {
    const base = await orders()
    const { status, stdout, stderr } = await oncekey(
      ...['check', `${base}/orders`, '--body', '{"amount":{{n}}}', '--header', 'Authorization: Bearer alice'],
      ...['--second-principal', 'Authorization: Bearer bob', '--slow-body', '{"slow":true}', '--timeout', '20s'],
      ...['--fail-body', '{"fail":true}', '--count-url', `${base}/count`, '--count-path', '/orders/made'],
    )
    expect(stdout).toMatch(/21 passed, 0 failed, 0 with a warning, 0 skipped\.\n$/)
    expect(stdout).toContain('Judged by the number of effects')
    expect(stdout).not.toContain('\u001b')
    expect(stderr).toMatch(/^21 cases, \d+ requests at most\.\n\[1\/21\] pass replay\.success\n/)
    expect(status).toBe(0)
  })

  it('is red for a service without idempotency: explained, as JSON and as JUnit, code 1', async () => {
    const base = baseOf(await careless('no idempotency at all'))
    const file = join(folder(), 'check.xml')
    const args = [
      'check',
      `${base}/orders`,
      '--body',
      '{"n":{{n}}}',
      '--only',
      'replay,conflict.body',
      '--only',
      'race',
    ]
    const people = await oncekey(...args)
    expect(people.status).toBe(1)
    expect(people.stdout).toMatch(/FAIL {2}replay\.success: .*\n {2}sent .*\n {2}came .*201.*\n {2}means .*ran again/)
    const { status, stdout } = await oncekey(...args, '--json', '--junit', file)
    expect(status).toBe(1)
    const report = JSON.parse(stdout) as CheckReport
    expect(report).toMatchObject({ format: 1, url: `${base}/orders`, totals: { fail: 3, pass: 1 } })
    expect(readFileSync(file, 'utf8')).toContain('failures="3"')
  })

  it('takes a body from a file', async () => {
    const base = await orders()
    const file = join(folder(), 'order.json')
    writeFileSync(file, '{"amount":{{n}}}')
    for (const body of [file, `@${file}`]) {
      const { status, stderr } = await oncekey('check', `${base}/orders`, '--body', body, '--only', 'conflict.body')
      expect(stderr).toContain('pass conflict.body')
      expect(status).toBe(0)
    }
  })

  it.each([
    [[], /Name the URL to check/],
    [['http://localhost/', 'http://localhost/'], /One URL at a time/],
    [['orders'], /The URL is "orders"; give one that begins with http/],
    [['http://localhost:1/', '--header', 'secret'], /^(?!.*secret).*--header has no colon/],
    [['http://localhost:1/', '--body', '{"a":'], /--body is neither JSON nor a file: "\{\\"a\\":"/],
    [['http://localhost:1/', '--body', '@/nowhere/at-all'], /--body: \/nowhere\/at-all cannot be read/],
    [['http://localhost:1/', '--timeout', 'soon'], /--timeout is "soon"; give for example 500ms/],
    [['http://localhost:1/', '--only', 'dance'], /There is no case "dance"/],
    [['http://127.0.0.1:1/'], /gave no answer: ECONNREFUSED/],
    [['http://127.0.0.1:1/', '--loud'], /--loud/],
    [['https://api.example.com/'], /sends real writes to api\.example\.com, .* Say --yes/],
  ])('%j is refused in words, with code 2', async (args, words) => {
    const { status, stdout, stderr } = await oncekey('check', ...args)
    expect(stderr).toMatch(words)
    expect(stdout).toBe('')
    expect(status).toBe(2)
  })

  it('has help with examples', async () => {
    const { status, stdout } = await oncekey('check', '--help')
    expect(status).toBe(0)
    expect(stdout).toContain("oncekey check http://localhost:3000/orders --body '{")
  })
})
