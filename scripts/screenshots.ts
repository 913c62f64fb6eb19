/**
 * Makes the pictures of the dashboard in docs/images: a payment service that fails at random, a gate before it on SQLite,
 * and clients that retry. `node scripts/screenshots.ts [seconds of load, 70]`
 */
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import { startAdmin } from '../src/admin/server.ts'
import { startGate } from '../src/gate/gate.ts'
import { sqliteStore } from '../src/stores/sqlite.ts'
import { buildDashboard, CHROMIUM, startBrowser } from '../test/dashboard/browser.ts'
import { withPalette } from './png.ts'
import { ROOT } from './run.ts'

const LOAD_S = Number(process.argv[2] ?? 70)
const IMAGES = join(ROOT, 'docs/images')
const CLIENTS = ['acme', 'globex', 'initech', 'umbrella', 'hooli']
const ROUTES = ['/v1/charges', '/v1/refunds', '/v1/payouts', '/v1/transfers']
const SLOW_MS = 20_000
/** In tenths of a second. */
const TOLD_AT = 20
const STUCK_EVERY = 40

if (CHROMIUM === undefined) throw new Error('There is no chromium on this machine; install one to make pictures.')
await buildDashboard()
const folder = mkdtempSync(join(tmpdir(), 'oncekey-pictures-'))
const store = sqliteStore({ path: join(folder, 'once.db') })
const upstream = createServer((request, response) => {
  request.resume()
  request.once('end', () => void serve(request.headers['x-mood'], response))
})
await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve))
const upstreamUrl = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`
const gate = await startGate({
  upstream: upstreamUrl,
  store,
  port: 0,
  principal: { kind: 'header', name: 'x-account' },
})
const admin = await startAdmin({
  store,
  version: '0.1.0',
  port: 0,
  reveal: true,
  gate: () => ({
    info: { url: gate.url, upstream: upstreamUrl, contract: 'ietf', load: gate.load },
    gauges: [],
  }),
})
const browser = await startBrowser(CHROMIUM)
const isOver = new AbortController()
try {
  const clients = load(isOver)
  await pause(LOAD_S * 1_000)
  for (const theme of ['light', 'dark'] as const) {
    const page = await browser.newPage({ colorScheme: theme, viewport: { width: 1280, height: 800 } })
    await takePictures(page, theme)
    await page.close()
  }
  isOver.abort()
  await clients
} finally {
  isOver.abort()
  await browser.close()
  await admin.stop()
  upstream.closeAllConnections()
  await gate.stop()
  upstream.close()
  await store.close()
  rmSync(folder, { recursive: true, force: true })
}

async function takePictures(page: Page, theme: string): Promise<void> {
  const take = async (name: string): Promise<void> => {
    await page.mouse.move(1, 1)
    writeFileSync(join(IMAGES, `dashboard-${name}.${theme}.png`), withPalette(await page.screenshot()))
  }
  await page.goto(admin.url)
  await page.getByRole('button', { name: '1 min' }).click()
  await page.getByText('requests in the last 1 min').waitFor()
  await page.getByText('Since the start').waitFor()
  await page.getByText('watch them').waitFor()
  await take('overview')
  await page.goto(`${admin.url}/stuck`)
  await page.getByLabel('Lease left').first().waitFor()
  await take('stuck')
  await page.goto(`${admin.url}/operations`)
  await page.getByText('newest first').waitFor()
  await take('operations')
  await page.goto(`${admin.url}/operations?q=order-7421`)
  await page.getByRole('link', { name: 'order-7421-charge' }).click()
  await page.getByText('What happened').waitFor()
  await page.getByRole('button', { name: 'Show the body' }).click()
  await take('operation')
}

/** A service with moods: it answers, it is slow, or it breaks off after it has begun. */
async function serve(mood: string | string[] | undefined, response: ServerResponse): Promise<void> {
  await pause(mood === 'stuck' ? SLOW_MS : mood === 'slow' ? 700 : 5 + Math.random() * 40)
  if (mood === 'broken') return void response.destroy()
  const status = mood === 'declined' ? 402 : 201
  response.writeHead(status, { 'Content-Type': 'application/json', Location: '/v1/charges/ch_7421' })
  response.end(
    JSON.stringify({ id: 'ch_7421', status: status === 402 ? 'declined' : 'succeeded', amount: 4200, currency: 'eur' }),
  )
}

async function send(key: string, account: string, route: string, body: object, mood = 'well'): Promise<void> {
  const headers = {
    'Idempotency-Key': key,
    'X-Account': account,
    'X-Mood': mood,
    'Content-Type': 'application/json',
  }
  const url = gate.url + route
  await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
    .then((response) => response.arrayBuffer())
    .catch(() => {})
}

/** Clients whose networks come and go: quiet times, and storms of retries. */
async function load({ signal }: AbortController): Promise<void> {
  const pending: Array<Promise<void>> = []
  for (let i = 0; !signal.aborted; i++) {
    const storm = Math.max(0, Math.sin(i / 60)) ** 3
    for (let n = 0; n < 1 + Math.random() * 1.4 + storm; n++) pending.push(client(storm))
    if (i === TOLD_AT) pending.push(tell())
    if (i % STUCK_EVERY === 0) void send(newKey(), pick(CLIENTS), pick(ROUTES), { amount: 900 }, 'stuck')
    await pause(100)
  }
  await Promise.all(pending)
}

function pick<T>(values: readonly T[]): T {
  return values[Math.floor(Math.random() * values.length)] as T
}

function newKey(): string {
  return randomBytes(8).toString('hex')
}

async function client(storm: number): Promise<void> {
  const chance = Math.random()
  const mood = chance < 0.006 ? 'broken' : chance < 0.04 ? 'declined' : chance < 0.06 ? 'slow' : 'well'
  const key = newKey()
  const body = { amount: 100 * Math.ceil(Math.random() * 90), currency: 'eur' }
  const [account, route] = [pick(CLIENTS), pick(ROUTES)]
  const first = send(key, account, route, body, mood)
  if (Math.random() < 0.06 + storm * 0.2) await send(key, account, route, body, mood)
  await first
  const retries = Math.random() < 0.2 + storm * 0.5 ? 1 + Math.floor(Math.random() * 3) : 0
  for (let i = 0; i < retries; i++) {
    await pause(100 + Math.random() * 900)
    await send(key, account, route, body)
  }
  if (Math.random() < 0.025 + storm * 0.03) await send(key, account, route, { ...body, amount: 1 })
}

/** The operation whose story is shown. */
async function tell(): Promise<void> {
  const body = { amount: 4200, currency: 'eur', card: { last4: '4242' } }
  const ask = (changed: object = {}, mood = 'slow') =>
    send('order-7421-charge', 'acme', '/v1/charges', { ...body, ...changed }, mood)
  const first = ask()
  await pause(150)
  await ask()
  await pause(210)
  await ask()
  await first
  for (let i = 0; i < 5; i++) {
    await pause(300)
    await ask()
  }
  await pause(1_400)
  await ask({ amount: 5200, description: 'second try' })
  await pause(800)
  for (let i = 0; i < 3; i++) await ask()
}
