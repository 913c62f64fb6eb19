import type { ChildProcess } from 'node:child_process'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { describe, expect, it, onTestFinished } from 'vitest'
import { claimOf, connect, open, tempFile } from '../../../test/support/sqlite.ts'

const CHILD = fileURLToPath(new URL('../../../test/fixtures/sqlite-child.ts', import.meta.url))
const PROCESSES = 50

function start(...args: string[]): ChildProcess & {
  stdin: NonNullable<ChildProcess['stdin']>
  stdout: NonNullable<ChildProcess['stdout']>
  stderr: NonNullable<ChildProcess['stderr']>
} {
  const child = spawn(process.execPath, [CHILD, ...args], { stdio: 'pipe' })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  return child
}

describe('several processes on one file', () => {
  it(`S9: ${PROCESSES} processes race to make the file and to claim one key: one effect, and nobody sees a lock`, async () => {
    const path = tempFile()
    const children = Array.from({ length: PROCESSES }, () => start('race', path, 'key'))
    const outputs = children.map(async (child) => {
      const lines: string[] = []
      for await (const line of createInterface(child.stdout)) {
        lines.push(line)
        if (line === 'ready') ready()
      }
      return lines[1] ?? (await text(child.stderr))
    })
    let readyCount = 0
    let allReady = (): void => {}
    const everyoneReady = new Promise<void>((resolve) => {
      allReady = resolve
    })
    function ready(): void {
      readyCount += 1
      if (readyCount === PROCESSES) allReady()
    }
    await everyoneReady
    for (const child of children) child.stdin.write('go\n')
    const states = await Promise.all(outputs)
    expect(states.filter((state) => state === 'acquired')).toHaveLength(1)
    expect(states.filter((state) => !['acquired', 'running', 'settled'].includes(state))).toEqual([])
    expect(readFileSync(`${path}.effects`, 'utf8').trim().split('\n')).toHaveLength(1)
    expect(await open(path).read('key')).toMatchObject({ state: 'settled', attempt: 1 })
  })

  it('S9: kill -9 in the middle of writing: the file is good, and what was acknowledged is there', async () => {
    const path = tempFile()
    const child = start('write', path, 'id')
    const acknowledged: string[] = []
    for await (const line of createInterface(child.stdout)) {
      acknowledged.push(line)
      if (acknowledged.length === 2_000) child.kill('SIGKILL')
    }
    expect(acknowledged.length).toBeGreaterThanOrEqual(2_000)
    const db = connect(path)
    expect(db.prepare('PRAGMA integrity_check').get()).toEqual({ integrity_check: 'ok' })
    const store = open(path)
    const lost: string[] = []
    for (const line of acknowledged) {
      const [what, id = ''] = line.split(' ')
      const record = await store.read(id)
      const isKept = what === 'settled' ? record?.state === 'settled' : record !== undefined
      if (!isKept) lost.push(line)
    }
    expect(lost).toEqual([])
    expect(await store.claim(claimOf('after'))).toMatchObject({ state: 'acquired' })
  })

  it('X5: a waiter is woken when another process settles', async () => {
    const path = tempFile()
    const store = open(path)
    await store.claim(claimOf('a'))
    const waited = store.waitFor?.('a', new AbortController().signal)
    const child = start('settle', path, 'a')
    expect(await text(child.stdout)).toBe('true\n')
    await waited
    expect(await store.read('a')).toMatchObject({ state: 'settled' })
  })

  it('a process that closes nothing ends by itself, and nothing is printed but its own words', async () => {
    const path = tempFile()
    const child = start('leave', path, 'a')
    const [out, err, [exitCode]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
    expect({ out, err, exitCode }).toEqual({ out: 'acquired\n', err: '', exitCode: 0 })
    expect(await open(path).read('a')).toMatchObject({ state: 'running' })
  })

  it('a disk that takes no more refuses the write; what was kept is still read', async () => {
    const path = tempFile()
    // A limit on the size of files, whose signal is ignored, is the nearest to a full disk that needs no privilege.
    const script = `trap '' XFSZ; ulimit -f 4096; exec "$0" "$@"`
    const child = spawn('bash', ['-c', script, process.execPath, CHILD, 'fill', path, 'id'], { stdio: 'pipe' })
    onTestFinished(() => {
      child.kill('SIGKILL')
    })
    const lines = (await text(child.stdout)).trim().split('\n')
    expect(lines.slice(-2)).toEqual(['refused store-unavailable', 'first settled'])
    const store = open(path)
    const kept = lines.filter((line) => line.startsWith('settled '))
    const records = await Promise.all(kept.map((line) => store.read(line.slice('settled '.length))))
    expect(kept.length).toBeGreaterThan(0)
    expect(records.filter((record) => record?.state !== 'settled')).toEqual([])
  })
})
