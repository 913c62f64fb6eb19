import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { request as httpsRequest } from 'node:https'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { freePort } from '../services/index.ts'
import { folder, Going, oncekey } from './run.ts'

/** Counts what it has done under each name, and can be made to wait. */
class Orders {
  readonly made = new Map<string, number>()
  readonly held: Array<() => void> = []
  url = ''
  readonly #waiting: Array<() => void> = []

  static async start(): Promise<Orders> {
    const orders = new Orders()
    const server = createServer((request, response) => void orders.#take(request, response)).listen(0, '127.0.0.1')
    await once(server, 'listening')
    onTestFinished(() => {
      server.closeAllConnections()
      server.close()
    })
    orders.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    return orders
  }

  /** When so many requests wait in the service. */
  async holds(count: number): Promise<void> {
    while (this.held.length < count) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }

  async #take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    let text = ''
    for await (const chunk of request) text += chunk
    // Somebody only looks whether the gate still answers.
    if (text === '') return void response.writeHead(204).end()
    const { name, hold } = JSON.parse(text) as { name: string; hold?: boolean }
    const count = (this.made.get(name) ?? 0) + 1
    this.made.set(name, count)
    if (hold) {
      await new Promise<void>((resolve) => {
        this.held.push(resolve)
        for (const wake of this.#waiting.splice(0)) wake()
      })
    }
    response.writeHead(201, { 'Content-Type': 'application/json' })
    response.end(JSON.stringify({ name, count }))
  }
}

function post(gate: string, key: string, order: object): Promise<Response> {
  return fetch(`${gate}/orders`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key, 'X-User': 'anna', Connection: 'close' },
    body: JSON.stringify(order),
  })
}

interface Place {
  readonly orders: Orders
  readonly going: Going
  readonly gate: string
  readonly admin: string
  readonly store: string
}

async function gateOn(...more: string[]): Promise<Place> {
  const orders = await Orders.start()
  const store = `sqlite:${join(folder(), 'keys.db')}`
  const args = ['--upstream', orders.url, '--principal', 'header:X-User', '--store', store]
  const going = new Going(['gate', ...args, '--port', '0', '--admin-port', '0', '--json', ...more])
  const ready = await going.event('ready')
  expect(Object.keys(ready)).toEqual(['event', 'gate', 'admin'])
  return { orders, going, gate: String(ready.gate), admin: String(ready.admin), store }
}

describe('oncekey gate', () => {
  it('X8: is ready with one line for people, and everything of it from a config file', async () => {
    const orders = await Orders.start()
    const config = `export default { upstream: ${JSON.stringify(orders.url)}, principal: 'public', port: 0, adminPort: 0 }`
    const going = new Going(['gate'], { cwd: folder({ 'oncekey.config.ts': config }) })
    const line = await going.out.find(/^oncekey gate on /)
    const [, gate, admin] = /on (\S+) → \S+, keys in sqlite:oncekey\.db; dashboard on (\S+)$/.exec(line) ?? []
    expect((await post(String(gate), 'k', { name: 'tea' })).status).toBe(201)
    expect((await post(String(gate), 'k', { name: 'tea' })).headers.get('idempotent-replayed')).toBe('true')
    expect((await fetch(`${admin}/readyz`)).status).toBe(200)
    expect(orders.made.get('tea')).toBe(1)
    expect(await going.stop()).toBe(0)
    expect([going.out.all.length, going.err.all]).toEqual([1, []])
  })

  it('SIGTERM lets what runs come to its end: its client gets the answer, and the code is 0', async () => {
    const { orders, going, gate, store } = await gateOn()
    const answer = post(gate, 'slow', { name: 'tea', hold: true })
    await orders.holds(1)
    const ended = going.stop()
    // Closed to others from now on.
    await expect
      .poll(() =>
        fetch(gate, { headers: { Connection: 'close' } }).then(
          ({ status }) => status,
          () => 'refused',
        ),
      )
      .toBe('refused')
    orders.held[0]?.()
    expect([(await answer).status, await (await answer).json()]).toEqual([201, { name: 'tea', count: 1 }])
    expect(await ended).toBe(0)
    const { stdout } = await oncekey(['show', 'slow', '--store', store, '--json'])
    expect(JSON.parse(stdout)).toMatchObject({ state: 'settled', status: 201 })
  })

  it('X10: in shadow mode it blocks nothing and says so', async () => {
    const orders = await Orders.start()
    const args = ['--upstream', orders.url, '--principal', 'public', '--store', 'memory:', '--shadow']
    const going = new Going(['gate', ...args, '--port', '0', '--admin-port', '0'])
    const [, gate] = /^oncekey gate in shadow mode on (\S+) /.exec(await going.out.find(/^oncekey gate/)) ?? []
    for (const name of ['tea', 'tea', 'milk']) expect((await post(String(gate), 'k', { name })).status).toBe(201)
    expect(orders.made.get('tea')).toBe(2)
    expect(await going.stop()).toBe(0)
  })
})

const hasOpenssl = spawnSync('openssl', ['version']).status === 0

describe.skipIf(!hasOpenssl)('oncekey gate --principal mtls (openssl makes the certificates)', () => {
  it('takes whose a key is from the certificate, and nobody without one', async () => {
    const directory = folder()
    const [key, cert] = [join(directory, 'key.pem'), join(directory, 'cert.pem')]
    // One for both sides, and its own authority.
    const subject = ['-subj', '/CN=ann', '-addext', 'subjectAltName=IP:127.0.0.1', '-days', '2']
    spawnSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', key, '-out', cert, ...subject])
    const tls = ['--tls-key', key, '--tls-cert', cert, '--tls-ca', cert]
    const { orders, going, gate, store } = await gateOn('--principal', 'mtls', ...tls)
    expect(gate).toMatch(/^https:/)
    const ca = readFileSync(cert)
    const send = async (own: object): Promise<number | undefined> => {
      const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': 'k' }
      const sent = httpsRequest(`${gate}/orders`, { method: 'POST', headers, ca, agent: false, ...own })
      sent.end('{"name":"tea"}')
      const [response] = (await once(sent, 'response')) as [IncomingMessage]
      response.resume()
      return response.statusCode
    }
    expect(await send({ key: readFileSync(key), cert: ca })).toBe(201)
    await expect(send({})).rejects.toThrow()
    expect([...orders.made]).toEqual([['tea', 1]])
    expect((await oncekey(['list', '--store', store, '--reveal'])).stdout).toMatch(/order.*ann/)
    expect(await going.stop()).toBe(0)
  })
})

describe('oncekey gate --workers 2 on SQLite', () => {
  it('X8: a race through both has one effect; a worker that is killed is replaced; all end with 0', async () => {
    const port = await freePort()
    const { orders, going, gate, admin } = await gateOn('--port', String(port), '--workers', '2')
    expect(gate).toBe(`http://127.0.0.1:${port}`)
    const names = Array.from({ length: 10 }, (_, i) => `order-${i}`)
    const answers = await Promise.all(
      names.flatMap((name) => Array.from({ length: 6 }, () => post(gate, name, { name }).then(({ status }) => status))),
    )
    // A duplicate is either told to wait, or comes late enough for the replay.
    expect(answers.filter((status) => status !== 201 && status !== 409)).toEqual([])
    expect([...orders.made]).toEqual(expect.arrayContaining(names.map((name) => [name, 1])))
    expect([...orders.made.values()].every((count) => count === 1)).toBe(true)

    const workers = async () => {
      const { gate } = (await (await fetch(`${admin}/api/status`)).json()) as { gate: { workers: number } }
      return gate.workers
    }
    expect(await workers()).toBe(2)
    const [first] = childrenOf(going.child.pid ?? 0)
    process.kill(first ?? 0, 'SIGKILL')
    await going.err.find(new RegExp(`^worker ${first} ended \\(SIGKILL\\); another takes its place$`))
    await expect.poll(() => childrenOf(going.child.pid ?? 0).length, { timeout: 30_000 }).toBe(2)
    const again = await post(gate, 'order-0', { name: 'order-0' })
    expect([again.status, again.headers.get('idempotent-replayed')]).toEqual([201, 'true'])

    // What the workers do is seen by the one admin API.
    const { counters } = (await (await fetch(`${admin}/api/status`)).json()) as { counters: Record<string, number> }
    expect(counters.claimed).toBe(names.length)
    expect(await going.stop()).toBe(0)
  })

  it('SIGTERM lets what runs in the workers come to its end', async () => {
    const { orders, going, gate } = await gateOn('--port', String(await freePort()), '--workers', '2')
    const answers = ['a', 'b', 'c', 'd'].map((name) => post(gate, name, { name, hold: true }))
    await orders.holds(4)
    const ended = going.stop()
    for (const go of orders.held) go()
    expect((await Promise.all(answers)).map(({ status }) => status)).toEqual([201, 201, 201, 201])
    expect(await ended).toBe(0)
  })
})

describe('the commands of operators', () => {
  it('list, show, stats, forget, release, sweep and tail against the store of a gate that runs', async () => {
    const { orders, going, gate, admin, store } = await gateOn()
    const tail = new Going(['tail', '--admin', admin, '--type', 'replayed', '--type', 'conflict'])
    for (const name of ['tea', 'milk', 'honey']) await post(gate, `order-${name}`, { name })
    // As soon as one is told, the stream stands.
    const told = tail.out.find(/ replayed +\w{12} {2}POST \/orders .*201$/)
    let isTold = false
    void told.then(() => {
      isTold = true
    })
    while (!isTold) await post(gate, 'order-tea', { name: 'tea' })
    await post(gate, 'order-tea', { name: 'coffee' })
    await tail.out.find(/ conflict /)
    expect(tail.out.all.every((line) => / (?:replayed|conflict) /.test(line))).toBe(true)
    tail.child.kill()

    const on = ['--store', store]
    const list = await oncekey(['list', ...on, '--reveal'])
    expect(list.stdout).toMatch(/^id +state +status/)
    for (const name of ['tea', 'milk', 'honey']) {
      expect(list.stdout).toMatch(new RegExp(`settled +201 +POST +/orders +order-${name} +anna`))
    }
    expect((await oncekey(['list', ...on, '--state', 'unknown'])).stdout).toBe('No operation.\n')
    expect((await oncekey(['list', ...on])).stdout).not.toContain('order-tea')
    const page = JSON.parse((await oncekey(['list', ...on, '--key', 'order-tea', '--json'])).stdout)
    expect(page.operations).toHaveLength(1)

    const shown = (await oncekey(['show', 'order-tea', ...on, '--reveal'])).stdout
    expect(shown).toMatch(/^\w{64}\nsettled: It ran, and this is its answer/)
    expect(shown).toContain('{"name":"tea","count":1}')
    expect((await oncekey(['show', 'order-tea', ...on])).stdout).not.toContain('"count"')

    const stats = JSON.parse((await oncekey(['stats', ...on, '--json'])).stdout)
    expect(stats).toMatchObject({
      records: 3,
      byState: { settled: 3 },
      byStatus: { 201: 3 },
      byRoute: { 'POST /orders': 3 },
    })

    // Nobody is there to ask.
    const asked = await oncekey(['forget', 'order-tea', ...on])
    expect([asked.status, asked.stderr]).toEqual([2, expect.stringContaining('say --yes')])
    expect((await oncekey(['forget', 'order-tea', ...on, '--yes'])).status).toBe(0)
    const after = await post(gate, 'order-tea', { name: 'tea' })
    expect([after.status, orders.made.get('tea')]).toEqual([409, 1])

    expect((await oncekey(['release', 'order-milk', ...on, '--yes'])).status).toBe(0)
    expect((await post(gate, 'order-milk', { name: 'milk' })).status).toBe(201)
    expect(orders.made.get('milk')).toBe(2)

    expect(JSON.parse((await oncekey(['sweep', ...on, '--json'])).stdout)).toEqual({ freed: 0 })
    expect(await going.stop()).toBe(0)
  })

  it.each([
    [['list', '--store', 'sqlite:none.db'], 2, /There is no file none\.db; say --store/],
    [['list', '--store', 'sqlite:none.db', '--state', 'lost'], 2, /--state is "lost"; give one of running/],
    [['list', '--store', 'memory:', '--limit', '0'], 2, /--limit is "0"/],
    [['show', '--store', 'memory:'], 2, /Say which: a key, an id/],
    [['show', 'no-such', '--store', 'memory:'], 2, /memory:, which no other process can look into/],
    [['stats', '--store', 'redis://127.0.0.1:1'], 1, /ECONNREFUSED/],
    [['tail', '--admin', 'http://127.0.0.1:7'], 1, /No gate answers at http:\/\/127\.0\.0\.1:7/],
    [['tail', '--admin', 'here'], 2, /--admin is "here", which is not an address/],
    [['tail', '--type', 'kept', '--type', 'bogus'], 2, /--type is "bogus", which a gate never tells; give claimed, /],
  ])('%j ends with %d', async (args, code, words) => {
    const { status, stdout, stderr } = await oncekey(args, { cwd: folder() })
    expect(stderr).toMatch(words)
    expect(stderr).not.toMatch(/^ +at /m)
    expect([status, stdout]).toEqual([code, ''])
  })
})

function childrenOf(pid: number): readonly number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
  return text.trim().split(' ').filter(Boolean).map(Number)
}
