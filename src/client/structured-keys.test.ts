import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { formatStructuredKey, parseStructuredKey, type StructuredKeys, structuredKeys } from './structured-keys.ts'

let folder: string
let file: string
const opened: StructuredKeys[] = []
const open = (options: Partial<Parameters<typeof structuredKeys>[0]> = {}) => {
  const keys = structuredKeys({ file, ...options })
  opened.push(keys)
  return keys
}
const sequenceOf = (key: string) => {
  const parsed = parseStructuredKey(key)
  if (parsed.state === 'invalid') throw new Error(parsed.reason)
  return parsed.sequence
}

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'oncekey-keys-'))
  file = join(folder, 'client.db')
})
afterEach(() => {
  for (const keys of opened.splice(0)) keys.close()
  rmSync(folder, { recursive: true })
})

describe('the generator', () => {
  it('J7: keeps the client id, goes on with the sequence, and takes a new nonce at each start', () => {
    const seen: Array<{ clientId: string; nonce: string; sequences: number[] }> = []
    for (let start = 0; start < 3; start++) {
      const keys = open({ reserve: 4 })
      seen.push({ clientId: keys.clientId, nonce: keys.nonce, sequences: [1, 2, 3].map(() => sequenceOf(keys.next())) })
      keys.close()
    }
    expect(new Set(seen.map(({ clientId }) => clientId)).size).toBe(1)
    expect(new Set(seen.map(({ nonce }) => nonce)).size).toBe(3)
    expect(seen.every(({ nonce }) => /^[0-9a-f]{16}$/.test(nonce))).toBe(true)
    expect(seen.map(({ sequences }) => sequences)).toEqual([
      [1, 2, 3],
      [5, 6, 7],
      [9, 10, 11],
    ])
  })

  it('J7: takes a given client id, and stays with it', () => {
    const first = open({ clientId: 'host1.dc1:12345' })
    expect(first.next()).toBe(`host1.dc1:12345:1:${first.nonce}`)
    first.close()
    expect(open().clientId).toBe('host1.dc1:12345')
  })

  it('J7: no number comes twice, however often the process is killed with -9', async () => {
    const used = new Set<number>()
    let highest = 0
    for (let round = 0; round < 4; round++) {
      const numbers = await killedAfterSome(file, 5 + round)
      expect(numbers.length).toBeGreaterThan(4)
      for (const number of numbers) {
        expect(number).toBeGreaterThan(highest)
        highest = number
        used.add(number)
      }
    }
    expect(sequenceOf(open().next())).toBeGreaterThan(highest)
    expect(used.size).toBeGreaterThan(20)
  })

  it('one process has the file: a second is refused while the first lives', () => {
    const first = open()
    expect(() => open()).toThrow(/in use by another process/)
    first.next()
    expect(() => open()).toThrow(/in use by another process/)
    first.close()
    expect(() => first.next()).toThrow(/were closed/)
    expect(sequenceOf(open().next())).toBe(1_001)
  })

  it.each([
    [{ clientId: 'two words' }, /clientId has other characters/],
    [{ clientId: '' }, /clientId is empty/],
    [{ clientId: 'x'.repeat(201) }, /clientId is longer than 200/],
    [{ reserve: 0 }, /reserve is 0/],
    [{ file: '' }, /file must name/],
  ])('refuses %j', (options, reason) => {
    expect(() => open(options)).toThrow(reason)
  })

  it("refuses another client's file, a damaged one and one that cannot be made", () => {
    open({ clientId: 'a' }).close()
    expect(() => open({ clientId: 'b' })).toThrow(/belongs to the client a/)
    writeFileSync(file, 'this is not a state file '.repeat(400))
    expect(() => open()).toThrow(/cannot be used/)
    expect(() => open({ file: join(folder, 'none', 'client.db') })).toThrow(/cannot be used/)
  })
})

describe('the parser', () => {
  const NONCE = 'a1b2c3d4e5f60718'
  const visible = fc.string({ minLength: 1, maxLength: 200, unit: fc.integer({ min: 0x21, max: 0x7e }).map(toChar) })
  const clientIds = visible.filter((id) => !id.includes('"'))
  const nonces = fc.string({ minLength: 16, maxLength: 16, unit: fc.constantFrom(...'0123456789abcdef') })

  it('J7: gives back what was put together, also with colons in the client id', () => {
    const keys = fc.record({ clientId: clientIds, sequence: fc.maxSafeNat(), nonce: nonces })
    fc.assert(
      fc.property(keys, (key) => {
        expect(parseStructuredKey(formatStructuredKey(key))).toEqual({ state: 'valid', ...key })
      }),
    )
  })

  it('J7: whatever it accepts is exactly the text of its parts, and anything else gets a reason', () => {
    const nearly = fc
      .tuple(fc.string(), fc.oneof(fc.string(), fc.nat().map(String)), fc.oneof(fc.string(), nonces))
      .map((parts) => parts.join(':'))
    fc.assert(
      fc.property(fc.oneof(fc.string(), nearly), (text) => {
        const parsed = parseStructuredKey(text)
        if (parsed.state === 'valid') expect(formatStructuredKey(parsed)).toBe(text)
        else expect(parsed.reason).toMatch(/^The key has .+; it must be \{client_id\}:\{sequence\}:\{nonce\}\.$/)
      }),
      { numRuns: 1_000 },
    )
  })

  it.each([
    ['', /fewer than three parts/],
    ['client', /fewer than three parts/],
    [`client:${NONCE}`, /fewer than three parts/],
    [`:1:${NONCE}`, /client id that is empty/],
    [`a b:1:${NONCE}`, /client id that has other characters/],
    [`${'x'.repeat(201)}:1:${NONCE}`, /client id that is longer/],
    [`c::${NONCE}`, /not a plain whole number/],
    [`c:01:${NONCE}`, /not a plain whole number/],
    [`c:-1:${NONCE}`, /not a plain whole number/],
    [`c:1.5:${NONCE}`, /not a plain whole number/],
    [`c:１:${NONCE}`, /not a plain whole number/],
    [`c:9007199254740992:${NONCE}`, /sequence above/],
    ['c:1:', /nonce that is not/],
    ['c:1:a1b2c3d4e5f6g7h8', /nonce that is not/],
    [`c:1:${NONCE.toUpperCase()}`, /nonce that is not/],
    [`c:1:${NONCE}0`, /nonce that is not/],
    [`c:1:${NONCE}\n`, /nonce that is not/],
  ])('J7: rejects %j', (text, reason) => {
    expect(parseStructuredKey(text)).toEqual({ state: 'invalid', reason: expect.stringMatching(reason) })
  })
})

function toChar(code: number): string {
  return String.fromCharCode(code)
}

const MAKER = `
  const { structuredKeys } = await import(${JSON.stringify(join(import.meta.dirname, 'structured-keys.ts'))})
  const keys = structuredKeys({ file: process.argv[1], reserve: 3 })
  for (;;) process.stdout.write(keys.next() + '\\n') || (await new Promise((done) => process.stdout.once('drain', done)))`

/** The numbers that a process gave out before it was killed in the middle of its work. */
async function killedAfterSome(path: string, count: number): Promise<number[]> {
  const args = ['--disable-warning=ExperimentalWarning', '--input-type=module', '-e', MAKER, path]
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] })
  const exited = once(child, 'exit')
  let text = ''
  for await (const chunk of child.stdout) {
    text += chunk
    if (text.split('\n').length > count) child.kill('SIGKILL')
  }
  await exited
  return text.split('\n').slice(0, -1).map(sequenceOf)
}
