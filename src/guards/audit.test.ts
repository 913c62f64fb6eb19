import { spawn, spawnSync } from 'node:child_process'
import { hash } from 'node:crypto'
import { channel } from 'node:diagnostics_channel'
import { existsSync, readFileSync, statSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { describe, expect, it, onTestFinished } from 'vitest'
import { tempFile } from '../../test/support/sqlite.ts'
import { oncekey } from '../oncekey.ts'
import { canonicalValue } from '../operation/canonical.ts'
import { memoryStore } from '../stores/memory.ts'
import { manualClock } from '../testing/manual-clock.ts'
import { type AuditEntry, type AuditLog, type AuditOptions, openAudit, requestHash, verifyAudit } from './audit.ts'

const HOUR_MS = 3_600_000
const AUDIT_URL = new URL('./audit.ts', import.meta.url).href
const idOf = (name: string) => hash('sha256', name, 'hex')
const one = { id: idOf('one') }
const two = { id: idOf('two') }
const REQUEST = idOf('request')
const event = { kind: 'event', requestHash: REQUEST, data: { amount: 1999 } }

async function openLog(options: Partial<AuditOptions> = {}): Promise<AuditLog & { readonly file: string }> {
  const file = options.file ?? tempFile()
  const log = await openAudit({ file, ...options })
  onTestFinished(() => log.close())
  return Object.assign(log, { file })
}

const linesOf = (file: string): string[] => readFileSync(file, 'utf8').trimEnd().split('\n')
const entriesOf = (file: string): AuditEntry[] => linesOf(file).map((line) => JSON.parse(line))

describe('openAudit', () => {
  it('S8: writes lines that anybody can verify: SHA-256 of the RFC 8785 form, linked to the line before', async () => {
    const clock = manualClock()
    const log = await openLog({ clock })
    const entry = await log.append(one, event)
    expect(entry).toMatchObject({
      seq: 1,
      time: '2026-01-01T00:00:00.000Z',
      kind: 'event',
      operation: one.id,
      request_hash: REQUEST,
      data: { amount: 1999 },
    })
    const [genesis, written] = entriesOf(log.file)
    expect(written).toEqual(entry)
    expect(genesis).toMatchObject({
      seq: 0,
      kind: 'genesis',
      prev: '0'.repeat(64),
      data: { format: 'oncekey-audit/1' },
    })
    expect(entry.prev).toBe(genesis?.hash)
    const { hash: own, ...rest } = entry
    expect(own).toBe(hash('sha256', canonicalValue(rest), 'hex'))
    expect(log.head).toEqual({ seq: 1, hash: own })
    expect(statSync(log.file).mode & 0o777).toBe(0o600)
  })

  it('S8: an operation has one line for one event, in one batch, later, and after a restart', async () => {
    const log = await openLog()
    const [first, same] = await Promise.all([
      log.append(one, event),
      log.append(one, { ...event, data: { amount: 2 } }),
    ])
    expect(same).toEqual(first)
    expect(await log.append(one, event)).toEqual(first)
    await log.close()
    const again = await openLog({ file: log.file })
    expect(await again.append(one, { ...event, data: { amount: 3 } })).toEqual(first)
    expect(await again.append(two, event)).toMatchObject({ seq: 2, operation: two.id })
    expect(await again.append(one, { ...event, kind: 'refund' })).toMatchObject({ seq: 3, kind: 'refund' })
    expect(await again.append(one, { ...event, requestHash: idOf('other') })).toMatchObject({ seq: 4 })
    expect(await verifyAudit(log.file)).toMatchObject({ state: 'intact', lines: 5 })
  })

  it('takes what happens under a key that is new again for a new event', async () => {
    const clock = manualClock()
    const log = await openLog({ clock, keyTtlMs: 24 * HOUR_MS })
    const first = await log.append(one, event)
    await clock.advance(24 * HOUR_MS - 1)
    expect(await log.append(one, event)).toEqual(first)
    await clock.advance(1)
    expect(await log.append(one, event)).toMatchObject({ seq: 2 })
  })

  it('S8: notes retries from the engine under the same request_hash, and no others', async () => {
    const store = memoryStore()
    const log = await openLog()
    const once = oncekey({ store })
    const pay = () => once.run({ key: 'k-1', scope: 'anna' }, async (run) => (await log.append(run, event)).seq)
    const rest = () => once.run({ key: 'k-2', scope: 'anna' }, () => 'not audited')
    expect([await pay(), await pay(), await pay(), await rest(), await rest()]).toEqual([
      1,
      1,
      1,
      'not audited',
      'not audited',
    ])
    await log.idle()
    const found = await log.find(REQUEST)
    expect(found.map(({ seq, kind, data }) => [seq, kind, data])).toEqual([
      [1, 'event', { amount: 1999 }],
      [2, 'retry', { status: 200 }],
      [3, 'retry', { status: 200 }],
    ])
    expect(new Set(found.map(({ operation }) => operation)).size).toBe(1)
    expect(await log.find(idOf('unheard of'))).toEqual([])
    expect(await log.find(REQUEST, 1)).toHaveLength(1)
    await log.close()
    const again = await openLog({ file: log.file })
    await pay()
    await again.idle()
    expect(await again.find(REQUEST)).toHaveLength(4)
    expect(await verifyAudit(log.file)).toMatchObject({ state: 'intact', lines: 5 })
  })

  it('S8: more retries than can wait are not lost in silence: the next line counts them', async () => {
    const log = await openLog()
    await log.append(one, event)
    const replays = channel('oncekey')
    for (let i = 0; i < 10_050; i++) replays.publish({ type: 'replayed', id: one.id, store: 'test', contract: 'test' })
    await log.idle()
    replays.publish({ type: 'replayed', id: one.id, store: 'test', contract: 'test' })
    await log.idle()
    expect(entriesOf(log.file).at(-1)).toMatchObject({ seq: 10_002, kind: 'retry', data: { missed: 50 } })
  })

  it('keeps a thousand concurrent appends in one chain', async () => {
    const log = await openLog()
    const entries = await Promise.all(
      Array.from({ length: 1_000 }, (_, i) => log.append({ id: idOf(`op ${i}`) }, { ...event, data: { i } })),
    )
    expect(new Set(entries.map(({ seq }) => seq)).size).toBe(1_000)
    expect(await verifyAudit(log.file)).toMatchObject({ state: 'intact', lines: 1_001, head: log.head.hash })
  })

  it('refuses a second writer, in this process and in another, until the first is gone', async () => {
    const log = await openLog()
    const words = new RegExp(`open for writing in process ${process.pid} already`)
    await expect(openAudit({ file: log.file })).rejects.toThrow(words)
    expect(openElsewhere(log.file)).toMatch(words)
    await log.close()
    expect(openElsewhere(log.file)).toBe('opened')
    // That process has ended without closing it.
    await openLog({ file: log.file })
  })

  it.each([
    [{ file: '' }, /file must name/],
    [{ keyTtlMs: 0 }, /keyTtlMs is 0/],
  ])('refuses the options %j', async (wrong, text) => {
    await expect(openAudit({ file: tempFile(), ...wrong })).rejects.toThrow(text)
  })

  it.each([
    ['a kind of its own', { kind: 'retry' }, /kind is "retry"/],
    ['a kind in capitals', { kind: 'Event' }, /kind is "Event"/],
    ['a hash that is none', { requestHash: 'abc' }, /requestHash must be/],
    ['undefined', { data: { n: undefined } }, /data must be/],
    ['a negative zero', { data: { n: -0 } }, /data must be/],
    ['a BigInt', { data: { n: 1n } }, /data must be/],
    ['a text that is too long', { data: { text: 'x'.repeat(65_536) } }, /data must be/],
    ['half a character', { data: { text: '\ud800' } }, /data must be/],
  ])('refuses %s before anything is written', async (_what, wrong, text) => {
    const log = await openLog()
    await expect(log.append(one, { ...event, ...wrong })).rejects.toThrow(text)
    await expect(log.append({ id: 'k' }, event)).rejects.toThrow(/run has no id/)
    expect(linesOf(log.file)).toHaveLength(1)
  })

  it('after close() it refuses in words', async () => {
    const log = await openLog()
    await log.close()
    await expect(log.append(one, event)).rejects.toMatchObject({ code: 'store-closed' })
    await expect(log.find(REQUEST)).rejects.toMatchObject({ code: 'store-closed' })
  })
})

describe('openAudit after a crash', () => {
  const written = async () => {
    const log = await openLog()
    await log.append(one, event)
    await log.append(two, event)
    await log.close()
    return log.file
  }

  it('cuts off a torn last line wherever it was torn, with a note of it, and keeps every whole line', async () => {
    const file = await written()
    const whole = readFileSync(file)
    const [genesis = '', first = ''] = linesOf(file)
    const keptBytes = genesis.length + first.length + 2
    for (const endBytes of [keptBytes + 1, keptBytes + 100, whole.length - 2]) {
      writeFileSync(file, whole.subarray(0, endBytes))
      const log = await openLog({ file })
      expect(await log.append(two, event)).toMatchObject({ seq: 3 })
      await log.close()
      const [, , repair] = entriesOf(file)
      const cut = whole.subarray(keptBytes, endBytes)
      expect(linesOf(file).slice(0, 2)).toEqual([genesis, first])
      expect(repair).toMatchObject({
        kind: 'repair',
        data: { cut_bytes: cut.length, cut_sha256: hash('sha256', cut, 'hex') },
      })
      expect(await verifyAudit(file)).toMatchObject({ state: 'intact', lines: 4 })
    }
  })

  it('kill -9 of the writer loses nothing that was acknowledged, and the next one goes on', async () => {
    const file = tempFile()
    const child = spawn(process.execPath, ['--input-type=module', '-e', writeForEver(file)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const acknowledged: string[] = []
    for await (const line of createInterface({ input: child.stdout })) {
      if (acknowledged.push(line) === 200) child.kill('SIGKILL')
    }
    const log = await openLog({ file })
    await log.append(one, event)
    const hashes = new Set(entriesOf(file).map(({ hash }) => hash))
    expect(acknowledged.length).toBeGreaterThanOrEqual(200)
    expect(acknowledged.filter((hash) => !hashes.has(hash))).toEqual([])
    expect(await verifyAudit(file)).toMatchObject({ state: 'intact' })
  })

  it.skipIf(!existsSync('/dev/full'))(
    'a full disk is an error in words (shown where there is a /dev/full)',
    async () => {
      const file = tempFile()
      symlinkSync('/dev/full', file)
      await expect(openAudit({ file })).rejects.toThrow(/cannot be written: ENOSPC/)
    },
  )

  it('keeps a line that lacks nothing but its line feed', async () => {
    const file = await written()
    const whole = readFileSync(file, 'utf8')
    truncateSync(file, whole.length - 1)
    const log = await openLog({ file })
    expect(await log.append(two, event)).toMatchObject({ seq: 2 })
    expect(readFileSync(file, 'utf8')).toBe(whole)
  })

  it('begins anew when not even the first line was whole', async () => {
    const file = await written()
    truncateSync(file, 50)
    await openLog({ file })
    expect(entriesOf(file).map(({ kind }) => kind)).toEqual(['genesis', 'repair'])
  })

  it('refuses a chain that is broken, or a file that is no log, and changes nothing', async () => {
    const file = await written()
    writeFileSync(file, readFileSync(file, 'utf8').replace('1999', '9999'))
    const broken = readFileSync(file)
    await expect(openAudit({ file })).rejects.toThrow(/broken at line 2: its content has the hash/)
    expect(readFileSync(file)).toEqual(broken)
    for (const text of ['no log of ours', 'no log of ours\n', '{"data":{}}']) {
      writeFileSync(file, text)
      await expect(openAudit({ file })).rejects.toMatchObject({ code: 'store-incompatible' })
      expect(readFileSync(file, 'utf8')).toBe(text)
    }
  })
})

describe('requestHash', () => {
  it('S1: is the SHA-256 of the RFC 8785 form: order and white space do not count, values do', () => {
    const of = (text: string) => requestHash(Buffer.from(text))
    expect(of('{"b":2,"a":1}')).toBe(hash('sha256', '{"a":1,"b":2}', 'hex'))
    expect(of(' { "a" : 1.0, "b" : 2 } ')).toBe(of('{"b":2,"a":1}'))
    expect(of('{"a":1,"b":3}')).not.toBe(of('{"a":1,"b":2}'))
    expect(of('{"a":1,"a":2}')).toBeUndefined()
  })
})

function writeForEver(file: string): string {
  return `
    import { hash } from 'node:crypto'
    import { openAudit } from ${JSON.stringify(AUDIT_URL)}
    const log = await openAudit({ file: ${JSON.stringify(file)} })
    const requestHash = hash('sha256', 'request', 'hex')
    const one = async (name) => {
      for (let i = 0; ; i++) {
        const run = { id: hash('sha256', name + i, 'hex') }
        console.log((await log.append(run, { kind: 'event', requestHash })).hash)
      }
    }
    await Promise.all(['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'].map(one))`
}

function openElsewhere(file: string): string {
  const script = `
    import { openAudit } from ${JSON.stringify(AUDIT_URL)}
    try { await openAudit({ file: ${JSON.stringify(file)} }); console.log('opened') } catch (error) { console.log(error.message) }
    process.exit()`
  return spawnSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' }).stdout.trim()
}
