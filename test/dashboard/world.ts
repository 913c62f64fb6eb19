import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import { expect, onTestFinished } from 'vitest'
import { idempotency } from '../../src/adapters/node.ts'
import { type Admin, type AdminOptions, startAdmin } from '../../src/admin/server.ts'
import type { Store } from '../../src/store.ts'
import { memoryStore } from '../../src/stores/memory.ts'

export interface World {
  readonly admin: Admin
  readonly store: Store
  /** Status of the answer, and whether it was a replay. */
  pay(
    key: string,
    body?: object,
    options?: { user?: string; path?: string },
  ): Promise<{ status: number; isReplay: boolean }>
  runs(): number
}

/** A service that protects itself, and its admin API; all of it ends with the test. */
export async function startWorld(options: Partial<AdminOptions> = {}): Promise<World> {
  const store = options.store ?? memoryStore()
  let runs = 0
  const protect = idempotency({ store, labels: true, principal: (request) => String(request.headers['x-user']) })
  const service = createServer(
    protect((request, response) => {
      runs += 1
      response.writeHead(201, { 'Content-Type': 'application/json' })
      response.end(JSON.stringify({ charge: `ch_${runs}`, path: request.url }))
    }),
  )
  await new Promise<void>((resolve) => service.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(service.address() as AddressInfo).port}`
  const admin = await startAdmin({ version: '1.2.3', port: 0, reveal: true, ...options, store })
  onTestFinished(async () => {
    await admin.stop()
    service.closeAllConnections()
    await new Promise((resolve) => service.close(resolve))
    await store.close()
  })
  return {
    admin,
    store,
    runs: () => runs,
    async pay(key, body = { amount: 1 }, { user = 'anna', path = '/pay' } = {}) {
      const headers = { 'Idempotency-Key': key, 'X-User': user, 'Content-Type': 'application/json' }
      const response = await fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })
      await response.arrayBuffer()
      return { status: response.status, isReplay: response.headers.has('Idempotent-Replayed') }
    },
  }
}

/** Whose owner has given it up: nobody knows its outcome. */
export async function leaveUnknown(store: Store, key: string): Promise<string> {
  const id = Buffer.from(key.padEnd(32, '.')).toString('hex')
  const labels = { key, principal: 'anna', method: 'POST', route: '/pay' }
  await store.claim({ ...CLAIM, id, labels })
  await store.renew(id, CLAIM.token, 0)
  return id
}

export const CLAIM = {
  token: 'owner',
  fingerprint: 'print',
  leaseMs: 30_000,
  unknownTtlMs: 3_600_000,
  takeover: false,
} as const

const WAIT_MS_MAX = 30_000

/** What the browser itself says when a request is refused; tests that provoke it allow for it. */
export const REFUSALS = /Failed to load resource/

/** A tab of its own. When the test is over it must not have complained: neither of an error nor of the policy. */
export async function openTab(
  browser: Browser,
  url: string,
  options: BrowserContextOptions & { allowed?: RegExp } = {},
): Promise<Page> {
  const { allowed, ...contextOptions } = options
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...contextOptions })
  context.setDefaultTimeout(WAIT_MS_MAX)
  const page = await context.newPage()
  const complaints: string[] = []
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(String(error)))
  onTestFinished(async () => {
    await context.close()
    expect(complaints.filter((complaint) => !allowed?.test(complaint))).toEqual([])
  })
  await page.goto(url)
  return page
}

/** Waits until `expression` is `value` in the page, where the policy lets no string be run but by the debugger. */
export async function waitFor(page: Page, expression: string, value: unknown): Promise<void> {
  await expect.poll(() => page.evaluate(expression), { timeout: WAIT_MS_MAX }).toBe(value)
}

export async function focusIsOn(page: Page, text: string | undefined): Promise<void> {
  await waitFor(page, 'document.activeElement.textContent', text)
}
