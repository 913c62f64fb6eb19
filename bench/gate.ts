/**
 * The gate beside a plain buffering proxy with nothing in it, and nginx where it is installed, in front of the same
 * service: `node bench/gate.ts [--rounds 3] [--seconds 3] [--json]`. Rounds are interleaved, so that a machine that
 * slows down slows all of them down. Each contestant is a process of its own. The gate is the one in `dist`: build first.
 */
import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createNetServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type Dispatcher, Pool } from 'undici'
import { Child, reply } from './child.ts'
import { built } from './contestants/built.ts'
import { ROUTE } from './contestants/workload.ts'
import type { LoadAsk, LoadResult } from './load.ts'

const CONNECTIONS = 64
const CONNECTIONS_MANY = 1_000
const REPLAYED_KEYS = 1_000
const ASK_MS_MAX = 120_000
const LEAD_IN_MS = 700
const CLOSE_MS_MAX = 5_000

interface Contestant {
  readonly name: string
  readonly port: number
  /** 0: every request has a new key. */
  readonly keys: number
  readonly child: Child | undefined
}

/** A slice, and what it cost the contestant's process, threads included. */
type Measured = LoadResult & { readonly cpuUsPerRequest: number }

interface Usage {
  readonly rssBytes: number
  /** Of the whole process, threads included, since its start. */
  readonly cpuUs: number
}

/** In MB, by contestant. */
type Rss = Readonly<Record<string, number>>

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      rounds: { type: 'string', default: '3' },
      seconds: { type: 'string', default: '3' },
      json: { type: 'boolean', default: false },
    },
  })
  const directory = await mkdtemp(join(tmpdir(), 'oncekey-gate-'))
  const children: Child[] = []
  const start = async (name: string, ...args: string[]): Promise<{ child: Child; port: number }> => {
    const child = new Child('./gate.ts', ['--role', name, ...args])
    children.push(child)
    const { port } = await child.ask<{ port: number }>(undefined, ASK_MS_MAX)
    return { child, port }
  }
  const load = new Child('./load.ts')
  children.push(load)
  let stopNginx = (): void => {}
  try {
    const upstream = await start('upstream')
    const plain = await start('plain', String(upstream.port))
    const sqlite = await start('gate-sqlite', String(upstream.port), join(directory, 'gate.db'))
    const memory = await start('gate-memory', String(upstream.port))
    const nginx = await startNginx(directory, upstream.port)
    stopNginx = nginx?.stop ?? stopNginx
    const contestants: Contestant[] = [
      { name: 'plain undici proxy', keys: 0, ...plain },
      { name: 'gate, sqlite, unique keys', keys: 0, ...sqlite },
      { name: 'gate, memory, unique keys', keys: 0, ...memory },
      { name: 'gate, memory, replays', keys: REPLAYED_KEYS, ...memory },
      { name: 'gate, sqlite, replays', keys: REPLAYED_KEYS, ...sqlite },
      ...(nginx ? [{ name: 'nginx proxy_pass', keys: 0, port: nginx.port, child: undefined }] : []),
      { name: 'the service itself', keys: 0, port: upstream.port, child: undefined },
    ]
    const measured = await rounds(load, contestants, Number(values.rounds), Number(values.seconds) * 1_000)
    const rss: Rss = {
      'plain undici proxy': await rssAt(load, { name: 'many', keys: 0, ...plain }, Number(values.seconds) * 1_000),
      'gate, sqlite': await rssAt(load, { name: 'many', keys: 0, ...sqlite }, Number(values.seconds) * 1_000),
    }
    report(contestants, measured, rss, nginx !== undefined, values.json)
  } finally {
    stopNginx()
    await Promise.all(children.map((child) => child.close(CLOSE_MS_MAX)))
    await rm(directory, { recursive: true, force: true })
  }
}

async function rounds(
  load: Child,
  contestants: readonly Contestant[],
  count: number,
  measureMs: number,
): Promise<Map<string, Measured[]>> {
  const measured = new Map<string, Measured[]>(contestants.map(({ name }) => [name, []]))
  for (let round = 0; round < count; round++) {
    for (const contestant of contestants) {
      process.stderr.write(`round ${round + 1} of ${count}: ${contestant.name}\n`)
      const result = await run(load, contestant, CONNECTIONS, round, measureMs)
      measured.get(contestant.name)?.push(result)
    }
  }
  return measured
}

async function run(
  load: Child,
  { port, keys, name, child }: Contestant,
  connections: number,
  round: number,
  measureMs: number,
) {
  // Replays use the same keys in every round; unique keys must not come back.
  const head = keys > 0 ? 'replays0' : `${String(round).padStart(2, '0')}${connections.toString(16).padStart(4, '0')}00`
  const ask: LoadAsk = {
    ask: 'load',
    port,
    connections,
    keyHead: `${head}-0000-4000-8000-`.padEnd(24, '0'),
    keys,
    requestsMax: 0,
    leadInMs: LEAD_IN_MS,
    measureMs,
  }
  const before = await child?.ask<Usage>({ ask: 'usage' }, ASK_MS_MAX)
  const result = await load.ask<LoadResult>(ask, ASK_MS_MAX)
  const after = await child?.ask<Usage>({ ask: 'usage' }, ASK_MS_MAX)
  if (result.wrong > 0) throw new Error(`${name}: ${result.wrong} wrong answers, such as ${result.wrongExample}`)
  const cpuUsPerRequest = before && after ? (after.cpuUs - before.cpuUs) / result.requestsTotal : 0
  return { ...result, cpuUsPerRequest }
}

/** The most that was seen while so many connections were busy, in MB. */
async function rssAt(load: Child, contestant: Contestant, measureMs: number): Promise<number> {
  let most = 0
  let over = false
  const watching = (async () => {
    while (!over) {
      const { rssBytes } = (await contestant.child?.ask<Usage>({ ask: 'usage' }, ASK_MS_MAX)) ?? {
        rssBytes: 0,
        cpuUs: 0,
      }
      most = Math.max(most, rssBytes)
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  })()
  // Watched from here, so not asked by the run.
  await run(load, { ...contestant, child: undefined }, CONNECTIONS_MANY, 99, measureMs)
  over = true
  await watching
  return Math.round(most / 1024 / 1024)
}

function report(
  contestants: readonly Contestant[],
  measured: ReadonlyMap<string, readonly Measured[]>,
  rss: Rss,
  hasNginx: boolean,
  asJson: boolean,
): void {
  const perSecond = (name: string): number =>
    median((measured.get(name) ?? []).map(({ requests, measuredMs }) => (requests / measuredMs) * 1_000))
  const plain = perSecond('plain undici proxy')
  const rows = contestants.map(({ name }) => ({
    name,
    perSecond: Math.round(perSecond(name)),
    ofPlain: Number((perSecond(name) / plain).toFixed(2)),
    p50Ms: Number(median((measured.get(name) ?? []).map(({ p50Ms }) => p50Ms)).toFixed(2)),
    cpuUs: Math.round(median((measured.get(name) ?? []).map(({ cpuUsPerRequest }) => cpuUsPerRequest))),
    p99Ms: Number(median((measured.get(name) ?? []).map(({ p99Ms }) => p99Ms)).toFixed(2)),
  }))
  if (asJson) return void console.log(JSON.stringify({ rows, rssMbAt1000Connections: rss, nginx: hasNginx }))
  for (const { name, perSecond: rate, ofPlain, p50Ms, p99Ms, cpuUs } of rows) {
    console.log(
      `${name.padEnd(28)} ${String(rate).padStart(7)}/s  ${ofPlain.toFixed(2)} of plain  p50 ${p50Ms} ms  p99 ${p99Ms} ms  cpu ${cpuUs} us each`,
    )
  }
  const sizes = Object.entries(rss).map(([name, mb]) => `${name} ${mb} MB`)
  console.log(`RSS at ${CONNECTIONS_MANY} busy connections: ${sizes.join('; ')}`)
  if (!hasNginx) console.log('nginx is not on the PATH, so it is not shown')
}

function median(numbers: readonly number[]): number {
  const sorted = [...numbers].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

/** A contestant's own process. */
async function play(name: string, [upstreamPort = '', file = '']: readonly string[]): Promise<void> {
  process.on('disconnect', () => process.exit(0))
  process.on('message', ({ ask }: { readonly ask: string }) => {
    if (ask === 'close') process.exit(0)
    const { user, system } = process.cpuUsage()
    reply({ rssBytes: process.memoryUsage.rss(), cpuUs: user + system } satisfies Usage)
  })
  const upstream = `http://127.0.0.1:${upstreamPort}`
  if (name === 'upstream') return reply({ port: await listen(serve) })
  if (name === 'plain') return reply({ port: await listen(plainProxy(upstream)) })
  const { startGate } = await built<typeof import('../src/gate/gate.ts')>('gate/gate.js')
  const { sqliteStore } = await built<typeof import('../src/stores/sqlite.ts')>('stores/sqlite.js')
  const { memoryStore } = await built<typeof import('../src/stores/memory.ts')>('stores/memory.js')
  const store = name === 'gate-sqlite' ? sqliteStore({ path: file }) : memoryStore()
  const gate = await startGate({ upstream, store, port: 0, principal: 'public' })
  reply({ port: Number(new URL(gate.url).port) })
}

let served = 0

/** The service: reads its request and answers with a small document, as cheaply as node:http can. */
function serve(request: IncomingMessage, response: ServerResponse): void {
  request.resume()
  request.on('end', () => {
    const body = `{"id":"pay_${(++served).toString(36)}","status":"captured","amount":129900,"currency":"EUR","route":"${ROUTE}"}`
    response.writeHead(201, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) })
    response.end(body)
  })
}

/** Reads the request, sends it on, reads the answer, sends it back: what a proxy that buffers does at the least. */
function plainProxy(upstream: string): (request: IncomingMessage, response: ServerResponse) => void {
  const pool = new Pool(upstream, { connections: 2_000 })
  return (request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      const headers: string[] = []
      const { rawHeaders, method = 'GET', url: path = '/' } = request
      for (let i = 0; i < rawHeaders.length; i += 2) {
        const name = rawHeaders[i] as string
        if (!HOP_BY_HOP.has(name.toLowerCase())) headers.push(name, rawHeaders[i + 1] as string)
      }
      const handler = new PlainHandler(response)
      pool.dispatch({ method: method as Dispatcher.HttpMethod, path, headers, body: Buffer.concat(chunks) }, handler)
    })
  }
}

const HOP_BY_HOP = new Set(['connection', 'keep-alive', 'transfer-encoding', 'upgrade', 'te', 'trailer', 'expect'])

class PlainHandler implements Dispatcher.DispatchHandler {
  readonly #response: ServerResponse
  readonly #chunks: Buffer[] = []
  #status = 0
  #headers: string[] = []

  constructor(response: ServerResponse) {
    this.#response = response
  }

  onRequestStart(): void {}

  onResponseStart(controller: Dispatcher.DispatchController, status: number): void {
    this.#status = status
    const raw = (controller.rawHeaders ?? []) as Buffer[]
    for (let i = 0; i < raw.length; i += 2) {
      const name = String(raw[i])
      if (!HOP_BY_HOP.has(name.toLowerCase())) this.#headers.push(name, String(raw[i + 1]))
    }
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#chunks.push(chunk)
  }

  onResponseEnd(): void {
    this.#response.writeHead(this.#status, this.#headers)
    this.#response.end(Buffer.concat(this.#chunks))
  }

  onResponseError(): void {
    this.#response.writeHead(502)
    this.#response.end()
  }
}

async function listen(listener: (request: IncomingMessage, response: ServerResponse) => void): Promise<number> {
  const server = createServer(listener)
  await new Promise<void>((resolve) => server.listen({ port: 0, host: '127.0.0.1', backlog: 1_024 }, resolve))
  return (server.address() as AddressInfo).port
}

/** nginx with one worker, as each of the others has; `undefined` when it is not installed. */
async function startNginx(
  directory: string,
  upstreamPort: number,
): Promise<{ readonly port: number; readonly stop: () => void } | undefined> {
  const port = await freePort()
  const config = `worker_processes 1; daemon off; pid ${directory}/nginx.pid; error_log ${directory}/error.log;
events { worker_connections 4096; }
http { access_log off; client_body_temp_path ${directory}/b; proxy_temp_path ${directory}/p; fastcgi_temp_path ${directory}/f;
uwsgi_temp_path ${directory}/u; scgi_temp_path ${directory}/s;
upstream service { server 127.0.0.1:${upstreamPort}; keepalive 256; }
server { listen 127.0.0.1:${port} backlog=1024; keepalive_requests 10000000;
location / { proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection ""; } } }`
  const file = join(directory, 'nginx.conf')
  await writeFile(file, config)
  const child = spawn('nginx', ['-c', file, '-p', directory], { stdio: 'ignore' })
  const failed = new Promise<'failed'>((resolve) => {
    child.on('error', () => resolve('failed'))
    child.on('exit', () => resolve('failed'))
  })
  const state = await Promise.race([failed, listensOn(port)])
  if (state === 'failed') return undefined
  return { port, stop: () => void child.kill('SIGQUIT') }
}

const TRIES_MAX = 100
const TRY_MS = 50

async function listensOn(port: number): Promise<'listens' | 'failed'> {
  for (let tries = 0; tries < TRIES_MAX; tries++) {
    const answered = await fetch(`http://127.0.0.1:${port}/`).then(
      () => true,
      () => false,
    )
    if (answered) return 'listens'
    await new Promise((resolve) => setTimeout(resolve, TRY_MS))
  }
  return 'failed'
}

async function freePort(): Promise<number> {
  const server = createNetServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}

const [role] = process.argv.slice(2)
if (role === '--role') await play(process.argv[3] ?? '', process.argv.slice(4))
else await main()
