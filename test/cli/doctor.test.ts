import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import express from 'express'
import { afterAll, describe, expect, it, onTestFinished } from 'vitest'
import { idempotency } from '../../src/adapters/express.ts'
import type { Finding } from '../../src/cli/doctor/finding.ts'
import { judgeNode } from '../../src/cli/doctor/settings.ts'
import { judgeSkew } from '../../src/cli/doctor/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { freePort, launch, postgres, redis, type Server, Unavailable } from '../services/index.ts'
import { folder, oncekey } from './run.ts'

async function doctor(...args: string[]): Promise<{ status: number | null; findings: readonly Finding[] }> {
  const { status, stdout, stderr } = await oncekey(['doctor', ...args, '--json'], { cwd: folder() })
  expect(stderr).toBe('')
  const { findings } = JSON.parse(stdout) as { findings: Finding[] }
  for (const { level, means, next } of findings) if (level !== 'ok') expect([means, next]).not.toContain('')
  return { status, findings }
}

const of = (findings: readonly Finding[], id: string): readonly Finding[] => findings.filter((one) => one.id === id)

async function serving(listener: RequestListener): Promise<string> {
  const server = createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

async function launched(recipe: () => Parameters<typeof launch>[0]): Promise<Server | string> {
  try {
    return await launch(recipe())
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

describe('oncekey doctor', () => {
  it('finds nothing wrong where nothing is, and leaves nothing in the store', async () => {
    const path = join(folder(), 'keys.db')
    const made = sqliteStore({ path })
    await made.sweep()
    await made.close()
    const upstream = await serving((_, response) => response.end())
    const { status, findings } = await doctor(
      '--store',
      `sqlite:${path}`,
      '--principal',
      'public',
      '--upstream',
      upstream,
    )
    expect(findings.filter(({ level }) => level === 'fail')).toEqual([])
    const ids = [
      'node',
      'principal',
      'memory',
      'ttl',
      'lease',
      'store',
      'clock',
      'durability',
      'disk',
      'disk-kind',
      'fsync',
    ]
    expect(findings.map(({ id }) => id)).toEqual([...ids, 'upstream'])
    expect(status).toBe(0)
    const store = sqliteStore({ path })
    expect(await store.list()).toEqual([])
    await store.close()
  })

  it('explains for people: what, what it means, what to do', async () => {
    const { status, stdout } = await oncekey(['doctor', '--store', 'memory:', '--workers', '2'], { cwd: folder() })
    expect(stdout).toMatch(
      /^fail {2}principal +Nothing says whose a key is\.\n {6}means .*\n {6}do {4}Say --principal/m,
    )
    expect(stdout).toMatch(/^fail {2}memory +2 workers, each with records in its own memory\.\n {6}means A retry/m)
    expect(stdout).toMatch(/\d ok, \d to know of, 2 wrong\.\n$/)
    expect(stdout).not.toContain('\u001b')
    expect(status).toBe(1)
  })

  it('a file that is not there yet is not made; a folder that is not there is wrong', async () => {
    const { findings } = await doctor('--principal', 'public', '--store', 'sqlite:new.db')
    expect(of(findings, 'store')).toMatchObject([{ level: 'ok', found: expect.stringContaining('not there yet') }])
    const lost = await doctor('--principal', 'public', '--store', 'sqlite:/no/such/folder/new.db')
    expect(of(lost.findings, 'disk')).toMatchObject([{ level: 'fail', found: 'There is no folder /no/such/folder.' }])
    expect(lost.status).toBe(1)
  })

  it('a store and a service that do not answer', async () => {
    const args = ['--store', 'redis://:secret@127.0.0.1:1', '--upstream', 'http://127.0.0.1:1', '--principal', 'public']
    const { status, findings } = await doctor(...args)
    expect(of(findings, 'store')).toMatchObject([{ level: 'fail', found: expect.stringContaining('ECONNREFUSED') }])
    expect(of(findings, 'upstream')).toMatchObject([{ level: 'fail', found: expect.stringContaining('ECONNREFUSED') }])
    expect(JSON.stringify(findings)).not.toContain('secret')
    expect(status).toBe(1)
  })

  it('a TTL shorter than the retry window, also of one route alone', async () => {
    const plain = ['--store', 'memory:', '--principal', 'public']
    const week = await doctor(...plain, '--retry-window', '7d')
    expect(of(week.findings, 'ttl')).toMatchObject([
      { level: 'fail', found: expect.stringContaining('forgets a key after 24 h') },
    ])
    expect(week.status).toBe(1)
    expect(of((await doctor(...plain, '--retry-window', '1h')).findings, 'ttl')).toMatchObject([{ level: 'ok' }])

    const hour = 3_600_000
    const routes = [
      { template: '/short', changes: { ttl: { committedMs: hour } } },
      { template: '/refused', changes: { ttl: { committedMs: hour, rejectedMs: hour, expiredMs: 48 * hour } } },
      { template: '/slow', limits: { upstreamMsMax: 1_800_000 } },
      { template: '/hasty', changes: { lease: { ms: 100 }, storeFailure: 'open' } },
      { template: '/stubborn', changes: { lease: { ms: 700_000 } } },
    ]
    const file = join(folder({ 'routes.json': JSON.stringify(routes) }), 'routes.json')
    const { findings } = await doctor(...plain, '--routes', file)
    const said = (id: string, template: string) =>
      findings
        .filter((one) => one.id === id && one.found.includes(`${template})`))
        .map(({ level, found }) => `${level} ${found}`)
    expect(said('ttl', '/short')).toEqual([expect.stringMatching(/^fail .* after 60 min \(ttl.committedMs\)/)])
    expect(said('ttl', '/refused')).toEqual([
      expect.stringMatching(/^warn .*keeps answers for 60 min, and refuses the key/),
    ])
    expect(said('lease', '/slow')).toEqual([
      expect.stringMatching(/^warn .*15 min at most .* the service may take 30 min/),
    ])
    expect(said('lease', '/hasty')).toEqual([expect.stringMatching(/^warn .*leases of 100 ms/)])
    expect(said('lease', '/stubborn')).toEqual([expect.stringMatching(/^warn .*leases of 12 min/)])
    expect(said('store-failure', '/hasty')).toEqual([expect.stringMatching(/^warn .*storeFailure: open/)])
  })

  it.each([
    ['public', 'warn', /share one namespace/],
    ['header:X-User', 'warn', /believed as it comes/],
    ['jwt-claim:sub', 'warn', /believed as it comes/],
  ])('principal %s', async (principal, level, found) => {
    const { findings } = await doctor('--store', 'memory:', '--principal', principal)
    expect(of(findings, 'principal')).toMatchObject([{ level, found: expect.stringMatching(found) }])
  })

  it('an old Node, and clocks that disagree', () => {
    expect(judgeNode('22.12.9').level).toBe('fail')
    expect(judgeNode('20.19.0').level).toBe('fail')
    expect(judgeNode('22.13.0').level).toBe('ok')
    expect(judgeNode('24.0.0').level).toBe('ok')
    const now = Date.UTC(2026, 10, 15)
    expect(judgeSkew(0, now).level).toBe('ok')
    expect(judgeSkew(61_000, now)).toMatchObject({ level: 'warn', found: expect.stringContaining('61 s ahead of') })
    expect(judgeSkew(-3_500, now)).toMatchObject({ level: 'warn', found: expect.stringContaining('3.5 s behind') })
    expect(judgeSkew(0, 0).level).toBe('fail')
  })

  it.each([
    [['--retry-window', '24'], /--retry-window is "24"; give a number with its unit/],
    [['--url', 'orders'], /--url is "orders"/],
    [['--url', 'https://api.example.com/'], /writes to api\.example\.com, which is not this machine; say --yes/],
    [['--url', 'http://127.0.0.1:1', '--header', 'secret'], /^(?!.*secret).*--header has no colon/],
    [['--store', 'oracle:x', '--principal', 'public'], /--store is "oracle:x"/],
    [['--contract', 'nope', '--principal', 'public'], /--contract is "nope"/],
    [['all'], /"all" is too much/],
    [['--loud'], /--loud/],
  ])('%j is refused in words, with code 2', async (args, words) => {
    const { status, stdout, stderr } = await oncekey(['doctor', ...args], { cwd: folder() })
    expect(stderr).toMatch(words)
    expect(stdout).toBe('')
    expect(status).toBe(2)
  })
})

describe('oncekey doctor --url', () => {
  const plain = ['--store', 'memory:', '--principal', 'public', '--body', '{"amount":1}']
  const protect = () => idempotency({ store: memoryStore(), principal: 'public' })

  it('a write that is replayed', async () => {
    const app = express().post('/orders', protect(), (_, response) => void response.status(201).json({ id: 1 }))
    const { status, findings } = await doctor(...plain, '--url', `${await serving(app)}/orders`)
    expect(of(findings, 'app')).toMatchObject([{ level: 'ok' }])
    expect(status).toBe(0)
  })

  it('a body parser that stands before idempotency()', async () => {
    const app = express()
    app.use((request, _, next) => void request.resume().once('end', next))
    app.post('/orders', protect(), (_, response) => void response.json({}))
    const { status, findings } = await doctor(...plain, '--url', `${await serving(app)}/orders`)
    expect(of(findings, 'body-parser')).toMatchObject([
      { level: 'fail', next: expect.stringContaining('Put idempotency() before') },
    ])
    expect(status).toBe(1)
  })

  it('a service that nothing protects, one that refuses, and one that is not there', async () => {
    const bare = await doctor(...plain, '--url', await serving((_, response) => response.end('{}')))
    expect(of(bare.findings, 'app')).toMatchObject([
      { level: 'fail', found: expect.stringContaining('200 to the same again') },
    ])
    const refusing = await serving((request, response) => {
      response.statusCode = request.headers.authorization === 'Bearer me' ? 200 : 401
      response.end('{}')
    })
    expect(of((await doctor(...plain, '--url', refusing)).findings, 'app')).toMatchObject([{ level: 'warn' }])
    const named = await doctor(...plain, '--url', refusing, '--header', 'Authorization: Bearer me')
    expect(of(named.findings, 'app')).toMatchObject([{ level: 'fail' }])
    expect(
      of((await doctor(...plain, '--url', `http://127.0.0.1:${await freePort()}/`)).findings, 'app'),
    ).toMatchObject([{ level: 'fail', found: expect.stringContaining('ECONNREFUSED') }])
  })
})

const evicting = await launched(() => redis(['--maxmemory-policy', 'allkeys-lru']))
const forgetful = await launched(() => redis(['--appendonly', 'no']))
const lax = await launched(() => postgres(['-c', 'fsync=off', '-c', 'synchronous_commit=off']))
afterAll(async () => {
  for (const server of [evicting, forgetful, lax]) if (typeof server !== 'string') await server.stop()
})

describe.skipIf(typeof evicting === 'string')(`oncekey doctor on a Redis that forgets: ${skipped(evicting)}`, () => {
  it('evictable: refused, with what to set', async () => {
    const { status, findings } = await doctor('--principal', 'public', '--store', (evicting as Server).url)
    expect(of(findings, 'durability')).toMatchObject([
      {
        level: 'fail',
        found: expect.stringMatching(/maxmemory-policy is allkeys-lru.*Set maxmemory-policy to noeviction/),
      },
    ])
    expect(status).toBe(1)
  })

  it('without an append-only file: a warning', async () => {
    const { status, findings } = await doctor('--principal', 'public', '--store', (forgetful as Server).url)
    expect(of(findings, 'store')).toMatchObject([{ level: 'ok' }])
    expect(of(findings, 'durability')).toMatchObject([
      { level: 'warn', found: expect.stringContaining('keeps no append-only file'), next: 'Set appendonly to yes.' },
    ])
    expect(status).toBe(0)
  })
})

describe.skipIf(typeof lax === 'string')(`oncekey doctor on a lax PostgreSQL: ${skipped(lax)}`, () => {
  it('says what a crash would take', async () => {
    const { findings } = await doctor('--principal', 'public', '--store', (lax as Server).url)
    expect(of(findings, 'store')).toMatchObject([{ level: 'ok' }])
    expect(of(findings, 'durability').map(({ level }) => level)).toContain('warn')
    expect(JSON.stringify(findings)).toContain('fsync')
  })
})

function skipped(server: Server | string): string {
  return typeof server === 'string' ? server : server.title
}
