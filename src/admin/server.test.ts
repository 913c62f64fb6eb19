import { channel } from 'node:diagnostics_channel'
import { createServer, request as httpRequest, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, describe, expect, it } from 'vitest'
import { idempotency } from '../adapters/node.ts'
import type { Store } from '../store.ts'
import { memoryStore } from '../stores/memory.ts'
import { type Admin, type AdminOptions, type Status, startAdmin } from './server.ts'

const TOKEN = 'a-token-that-is-long-enough'
const ends: Array<() => unknown> = []

afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

describe('what the admin API tells', () => {
  it('finds operations by state, key, route and principal, page by page', async () => {
    const { admin, pay } = await world({ reveal: true })
    for (let i = 0; i < 25; i++) await pay(`order-${i}`, '{}', i < 5 ? 'berta' : 'anna')
    const all = await get(admin, '/api/operations')
    expect(all.operations).toHaveLength(25)
    expect(all.next).toBeNull()
    expect((await get(admin, '/api/operations?q=order-7')).operations).toMatchObject([
      {
        state: 'settled',
        outcome: 'committed',
        status: 201,
        labels: { key: 'order-7', principal: 'anna', route: '/pay' },
      },
    ])
    expect((await get(admin, '/api/operations?principal=berta')).operations).toHaveLength(5)
    expect((await get(admin, '/api/operations?route=pay&state=unknown')).operations).toHaveLength(0)
    const ids: string[] = []
    for (let after = ''; ; ) {
      const page = await get(admin, `/api/operations?limit=10&after=${after}`)
      ids.push(...page.operations.map(({ id }) => id))
      if (page.next === null) break
      after = page.next
    }
    expect(new Set(ids).size).toBe(25)
    expect(await status(admin, '/api/operations?state=lost')).toBe(400)
    expect(await status(admin, '/api/operations?limit=0')).toBe(400)
  })

  it('tells the story of one operation, and hides keys, principals and bodies unless it may reveal them', async () => {
    for (const reveal of [false, true]) {
      const { admin, pay } = await world({ reveal })
      await pay('order-secret-1', '{"amount":1}')
      await pay('order-secret-1', '{"amount":1}')
      await pay('order-secret-1', '{"amount":2}')
      const [{ id }] = (await get(admin, '/api/operations?q=order-secret-1')).operations
      const text = await (await fetch(`${admin.url}/api/operations/${id}`)).text()
      const shown = JSON.parse(text)
      expect(shown.history.map(({ type }: { type: string }) => type)).toEqual([
        'claimed',
        'kept',
        'replayed',
        'conflict',
      ])
      expect(text.includes('order-secret-1')).toBe(reveal)
      expect(text.includes('paid')).toBe(reveal)
      expect(shown.answer).toMatchObject({ status: 201, bytes: 4, isHidden: !reveal })
    }
  })

  it('streams what happens, and goes on where a reader left off', async () => {
    const { admin, pay } = await world()
    const first = await stream(admin)
    await pay('a', '{}')
    const seen = await first.next(2)
    expect(seen.map(({ type }) => type)).toEqual(['claimed', 'kept'])
    first.close()
    await pay('a', '{}')
    const again = await stream(admin, String(seen[0]?.seq))
    expect((await again.next(2)).map(({ type }) => type)).toEqual(['kept', 'replayed'])
    again.close()
    const newcomer = await stream(admin, undefined, '?recent=1')
    expect((await newcomer.next(1)).map(({ type }) => type)).toEqual(['replayed'])
    newcomer.close()
  })

  it('hides keys and principals in what the gate tells, too', async () => {
    const { admin } = await world()
    const labels = { key: 'order-secret-1', principal: 'berta-secret', route: '/pay' }
    channel('oncekey:gate').publish({ type: 'shadow', would: 'replay', id: 'f'.repeat(64), labels, status: 201 })
    const text = await (await fetch(`${admin.url}/api/operations/${'f'.repeat(64)}`)).text()
    expect(text).not.toContain('secret')
    expect(JSON.parse(text).history).toMatchObject([{ status: 201, detail: 'would replay', labels: { route: '/pay' } }])
  })

  it('a reader that missed more than can be sent at once is not cut off for it', async () => {
    const { admin, pay } = await world()
    for (let i = 0; i < 4; i++) await pay('a', '{}')
    const gate = channel('oncekey:gate')
    for (let i = 0; i < 6_000; i++) gate.publish({ type: 'shed', reason: 'x'.repeat(250) })
    const late = await stream(admin, '0')
    expect((await late.next(1_000)).map(({ type }) => type)).not.toContain('claimed')
    await pay('b', '{}')
    expect((await late.next(1_002)).slice(-2).map(({ type }) => type)).toEqual(['claimed', 'kept'])
    late.close()
  })

  it('counts: rates, metrics, expiry and status', async () => {
    const { admin, pay } = await world()
    for (let i = 0; i < 3; i++) await pay('a', '{}')
    const { series } = await get(admin, '/api/rates?window=60')
    const sum = (values: number[]) => values.reduce((a, b) => a + b, 0)
    expect([sum(series.executed), sum(series.replayed)]).toEqual([1, 2])
    const metrics = await (await fetch(`${admin.url}/metrics`)).text()
    expect(metrics).toContain('oncekey_events_total{type="replayed"} 2')
    expect(await get(admin, '/api/expiry')).toMatchObject({
      states: { settled: 1, running: 0 },
      bodyBytes: 4,
      scanned: 1,
      complete: true,
    })
    expect(await get(admin, '/api/status')).toMatchObject({
      version: '1.2.3',
      store: { name: 'memory', ok: true },
      counters: { claimed: 1, kept: 1, replayed: 2 },
    })
  })

  it('is alive without its store, but not ready', async () => {
    const { admin, store } = await world()
    expect([await status(admin, '/livez'), await status(admin, '/readyz')]).toEqual([200, 200])
    await store.close()
    expect([await status(admin, '/livez'), await status(admin, '/readyz')]).toEqual([200, 503])
    expect(await status(admin, '/api/operations')).toBe(503)
    // Why is for those who may ask.
    expect(await (await fetch(`${admin.url}/readyz`)).text()).toBe('the store does not answer\n')
    const { store: told } = (await (await fetch(`${admin.url}/api/status`)).json()) as Status
    expect(told).toMatchObject({ ok: false, error: expect.stringContaining('closed') })
  })

  it('describes every route that it has', async () => {
    const { admin, pay } = await world()
    await pay('a', '{}')
    const [{ id }] = (await get(admin, '/api/operations')).operations
    const { paths } = await get(admin, '/openapi.json')
    for (const [path, verbs] of Object.entries(paths)) {
      if (path === '/api/events' || path === '/openapi.json') continue
      const url = path.replace('{id}', id)
      const response = await fetch(admin.url + url, { method: 'post' in verbs ? 'POST' : 'GET', headers: ACTS })
      expect([200, 404, 409], url).toContain(response.status)
      if (response.status === 404) expect(await response.text(), url).not.toContain('nothing at')
    }
    expect(await status(admin, '/api/nothing')).toBe(404)
  })
})

describe('what operators can do', () => {
  it('release of what is running needs force: a retry would run beside it', async () => {
    const { admin, store } = await world()
    const id = 'e'.repeat(64)
    await store.claim({ id, token: 't', fingerprint: 'p', leaseMs: 60_000, unknownTtlMs: 60_000, takeover: false })
    expect(await act(admin, id, 'release')).toMatchObject({ status: 409 })
    expect(await store.read(id)).toMatchObject({ state: 'running' })
    expect(await act(admin, id, 'release', { force: true })).toMatchObject({ status: 200 })
    expect(await store.read(id)).toBeUndefined()
  })

  it('release: the next request with the key runs', async () => {
    const { admin, pay, runs } = await world()
    await pay('a', '{}')
    const [{ id }] = (await get(admin, '/api/operations')).operations
    expect(await act(admin, id, 'release')).toMatchObject({ status: 200 })
    expect(await act(admin, id, 'release')).toMatchObject({ status: 404 })
    await pay('a', '{}')
    expect(runs()).toBe(2)
  })

  it('redact: the answer is gone, the claim is not', async () => {
    const { admin, pay, runs } = await world({ reveal: true })
    await pay('a', '{}')
    const [{ id }] = (await get(admin, '/api/operations')).operations
    expect(await act(admin, id, 'redact')).toMatchObject({ status: 200 })
    expect((await get(admin, '/api/operations')).operations).toMatchObject([{ id, state: 'settled', labels: {} }])
    const { history } = await get(admin, `/api/operations/${id}`)
    expect(history.map(({ type }) => type)).toEqual(['claimed', 'kept', 'operator-redacted'])
    expect(history.filter((event) => 'labels' in event)).toEqual([])
    const retry = await pay('a', '{}')
    expect(retry.status).toBe(409)
    expect(await retry.text()).toContain('answer-not-kept')
    expect(runs()).toBe(1)
  })

  it('fail: decides an unknown outcome, and only that', async () => {
    const { admin, pay, store } = await world()
    await pay('a', '{}')
    const [{ id }] = (await get(admin, '/api/operations')).operations
    expect(await act(admin, id, 'fail')).toMatchObject({ status: 409 })
    expect(await act(admin, id, 'fail', { status: 200 })).toMatchObject({ status: 400 })
    const lost = {
      id: 'f'.repeat(64),
      token: 't',
      fingerprint: 'print',
      leaseMs: 1,
      unknownTtlMs: 60_000,
      takeover: false,
    }
    await store.claim(lost)
    await store.renew(lost.id, 't', 0)
    expect(await act(admin, lost.id, 'fail', { status: 410, note: 'the bank says no' })).toMatchObject({ status: 200 })
    const record = await store.read(lost.id)
    expect(record).toMatchObject({ state: 'settled', outcome: 'rejected', answer: { status: 410 } })
  })
})

describe('who may ask', () => {
  it('changes need the header, no other origin, and no read-only switch', async () => {
    const { admin, pay } = await world()
    await pay('a', '{}')
    const [{ id }] = (await get(admin, '/api/operations')).operations
    const url = `${admin.url}/api/operations/${id}/release`
    const ask = async (headers: Record<string, string>) => (await fetch(url, { method: 'POST', headers })).status
    expect(await ask({})).toBe(403)
    expect(await ask({ ...ACTS, Origin: 'https://evil.example' })).toBe(403)
    expect((await fetch(url, { headers: ACTS })).status).toBe(405)
    expect(await ask({ ...ACTS, Origin: admin.url })).toBe(200)
    const readOnly = await world({ readOnly: true })
    await readOnly.pay('a', '{}')
    expect(await act(readOnly.admin, id, 'release')).toMatchObject({ status: 403 })
    expect((await get(readOnly.admin, '/api/operations')).operations).toHaveLength(1)
  })

  it('with a token nobody sees anything without it', async () => {
    const { admin } = await world({ token: TOKEN })
    for (const path of ['/api/operations', '/api/events', '/metrics', '/openapi.json', '/api/status']) {
      expect(await status(admin, path), path).toBe(401)
    }
    const headers = { Authorization: `Bearer ${TOKEN}` }
    expect((await fetch(`${admin.url}/api/status`, { headers })).status).toBe(200)
    expect((await fetch(`${admin.url}/api/status`, { headers: { Authorization: 'Bearer wrong' } })).status).toBe(401)
    expect(await status(admin, '/livez')).toBe(200)
  })

  it('off loopback only with a token, and with one that is worth its name', async () => {
    const start = (options: Partial<AdminOptions>) =>
      startAdmin({ store: memoryStore(), version: '1', port: 0, ...options })
    await expect(start({ host: '0.0.0.0' })).rejects.toThrow('--admin-token')
    await expect(start({ token: 'short' })).rejects.toThrow('fewer than')
  })

  it('a name of another site that points here is not answered', async () => {
    const { admin } = await world()
    const { port } = new URL(admin.url)
    const asked = await new Promise<number | undefined>((resolve, reject) => {
      httpRequest(
        { port, host: '127.0.0.1', path: '/api/operations', headers: { Host: 'evil.example' } },
        (response) => {
          response.resume()
          resolve(response.statusCode)
        },
      )
        .once('error', reject)
        .end()
    })
    expect(asked).toBe(421)
  })

  it('everything is sent with a strict policy', async () => {
    const { admin } = await world()
    for (const path of ['/', '/api/status', '/livez']) {
      const { headers } = await fetch(admin.url + path)
      expect(headers.get('content-security-policy'), path).toContain("default-src 'none'")
      expect(headers.get('x-content-type-options'), path).toBe('nosniff')
    }
  })
})

const ACTS = { 'X-Oncekey-Admin': '1' }

async function world(options: Partial<AdminOptions> = {}) {
  const store: Store = memoryStore()
  let runs = 0
  const protect = idempotency({ store, labels: true, principal: (request) => String(request.headers['x-user']) })
  const service = createServer(
    protect((_, response) => {
      runs++
      response.writeHead(201, { 'Content-Type': 'text/plain' })
      response.end('paid')
    }),
  )
  const url = await listen(service)
  const admin = await startAdmin({ store, version: '1.2.3', port: 0, ...options })
  ends.push(() => admin.stop())
  const pay = (key: string, body: string, user = 'anna') =>
    fetch(`${url}/pay`, { method: 'POST', body, headers: { 'Idempotency-Key': key, 'X-User': user } })
  return { store, admin, pay, runs: () => runs }
}

async function listen(server: Server): Promise<string> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  ends.push(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** What the tests look at; each answer has some of it. */
interface Told {
  readonly operations: Array<{ readonly id: string }> & [{ readonly id: string }]
  readonly next: string | null
  readonly series: { readonly executed: number[]; readonly replayed: number[] }
  readonly paths: Readonly<Record<string, object>>
  readonly history: ReadonlyArray<{ readonly type: string }>
}

async function get(admin: Admin, path: string): Promise<Told> {
  const response = await fetch(admin.url + path)
  expect(response.status, path).toBe(200)
  return (await response.json()) as Told
}

async function status(admin: Admin, path: string): Promise<number> {
  const response = await fetch(admin.url + path)
  await response.body?.cancel()
  return response.status
}

async function act(admin: Admin, id: string, verb: string, body: object = {}): Promise<{ status: number }> {
  const headers = { ...ACTS, 'Content-Type': 'application/json' }
  const url = `${admin.url}/api/operations/${id}/${verb}`
  return fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
}

async function stream(admin: Admin, lastEventId?: string, query = '') {
  const controller = new AbortController()
  const headers: Record<string, string> = lastEventId === undefined ? {} : { 'Last-Event-ID': lastEventId }
  const response = await fetch(`${admin.url}/api/events${query}`, { headers, signal: controller.signal })
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
  const events: Array<{ seq: number; type: string }> = []
  let rest = ''
  const next = async (count: number) => {
    while (events.length < count) {
      const { value, done } = (await reader?.read()) ?? { done: true }
      if (done) throw new Error(`the stream ended after ${events.length} events`)
      const lines = (rest + value).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) if (line.startsWith('data: ')) events.push(JSON.parse(line.slice(6)))
    }
    return events
  }
  return { next, close: () => controller.abort() }
}
