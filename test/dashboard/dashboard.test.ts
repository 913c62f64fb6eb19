import { channel } from 'node:diagnostics_channel'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { buildDashboard, CHROMIUM, startBrowser } from './browser.ts'
import { manyRecords } from './many.ts'
import { CLAIM, focusIsOn, leaveUnknown, openTab, REFUSALS, startWorld, type World, waitFor } from './world.ts'

const PATHS = ['/', '/live', '/operations', '/stuck', '/store'] as const
let browser: Browser

if (CHROMIUM === undefined) console.warn('The dashboard is not tested: there is no chromium on this machine.')

describe.skipIf(CHROMIUM === undefined)('the dashboard, in a real browser (skipped where there is no chromium)', () => {
  beforeAll(async () => {
    await buildDashboard()
    browser = await startBrowser(CHROMIUM ?? '')
  })
  afterAll(() => browser?.close())

  describe('views', () => {
    it('tells rates, counters and the state of the store', async () => {
      const world = await startWorld({ gate: () => ({ info: { upstream: 'http://orders.internal' }, gauges: [] }) })
      await busy(world)
      // Reading the chart's pixels is the test's own doing.
      const page = await openTab(browser, world.admin.url, { allowed: /willReadFrequently/ })
      await page.getByRole('button', { name: /^Executed\s*3/ }).waitFor()
      await page.getByRole('button', { name: /^Replayed\s*2/ }).waitFor()
      await page.getByRole('button', { name: /^Conflict\s*1/ }).waitFor()
      await page.getByText('memory, answers in').waitFor()
      await page.getByText('http://orders.internal').waitFor()
      // A second that is not over is not drawn yet.
      await waitFor(page, CHART_HAS_EXECUTED, true)
      await page.getByRole('button', { name: /^Executed/ }).click()
      await waitFor(page, CHART_HAS_EXECUTED, false)
      const chart = page.getByRole('img', { name: /Rates by outcome/ })
      await chart.hover()
      await page.getByText(/^Rates at \d\d:\d\d:\d\d/).waitFor()
    })

    it('has words for an empty store in every view', async () => {
      const { admin } = await startWorld()
      const page = await openTab(browser, admin.url)
      await page.getByText('Nothing came in the last 5 min.').waitFor()
      await page.getByText('None. Every operation that has ended has an answer.').waitFor()
      for (const [name, words] of [
        ['Live', 'Nothing has happened yet.'],
        ['Operations', 'The store is empty.'],
        ['In flight', 'Nothing is in flight, and nothing is stuck.'],
        ['Store', 'The store is empty.'],
      ] as const) {
        await page.getByRole('link', { name, exact: true }).click()
        await page.getByText(words).waitFor()
      }
    })

    it('says in words what went wrong, in every view', async () => {
      const { admin, store } = await startWorld()
      await store.close()
      const page = await openTab(browser, admin.url, { allowed: REFUSALS })
      await page
        .getByText(/does not answer: /)
        .first()
        .waitFor()
      for (const path of ['/operations', '/stuck', '/store', `/operations/${'a'.repeat(64)}`]) {
        await page.goto(admin.url + path)
        await page.getByText(/could not be loaded\.$/).waitFor()
        await page
          .getByText(/closed/)
          .first()
          .waitFor()
      }
      await page.goto(`${admin.url}/operations`)
      await page.getByRole('button', { name: 'Try again' }).click()
      await page.getByText('The operations could not be loaded.').waitFor()
    })

    it('shows what happens as it happens; pauses, and shows one type only', async () => {
      const { admin, pay } = await startWorld()
      await pay('before')
      const page = await openTab(browser, `${admin.url}/live`)
      await row(page, 'before').first().waitFor()
      await pay('first')
      await row(page, 'first').first().waitFor()
      await page.keyboard.press('p')
      await pay('second')
      await page.getByText('Paused. 2 events came since.').waitFor()
      expect(await row(page, 'second').count()).toBe(0)
      await page.getByRole('button', { name: 'Go on' }).click()
      await row(page, 'second').first().waitFor()
      await pay('second')
      await page.getByRole('link', { name: 'Replayed' }).waitFor()
      await page.getByLabel('Type').selectOption('replayed')
      await page.waitForURL('**/live?type=replayed')
      await page.getByRole('link', { name: 'Executed' }).first().waitFor({ state: 'detached' })
      expect(await page.getByRole('listitem').count()).toBe(1)
    })

    it('tells the story of an operation, with what differed in a conflict, and its answer when asked', async () => {
      const { admin, pay } = await startWorld()
      await pay('order-1')
      for (let i = 0; i < 3; i++) await pay('order-1')
      await pay('order-1', { amount: 2 })
      const page = await openTab(browser, `${admin.url}/operations?q=order-1`)
      await page.getByRole('link', { name: 'order-1' }).click()
      await page.getByText('Replayed ×3').waitFor()
      const titles = await page.locator('.timeline strong').allInnerTexts()
      expect(titles).toEqual(['Claimed', 'Executed', 'Replayed ×3', 'Conflict'])
      const id = page.url().split('/').at(-1)
      // As the gate tells it, right after the conflict.
      channel('oncekey:gate').publish({
        type: 'conflict-paths',
        id,
        changes: [{ path: '/amount', was: 'aaaa1111', is: 'bbbb2222' }],
      })
      await pay('order-1')
      await page.getByRole('cell', { name: '/amount' }).waitFor()
      await page.getByRole('cell', { name: 'bbbb2222' }).waitFor()
      expect(await page.getByText('"charge"').count()).toBe(0)
      await page.getByRole('button', { name: /^Show the body/ }).click()
      await page.getByText('"charge": "ch_1"').waitFor()
    })

    it('says so when an operation is not there, or was seen by others only', async () => {
      const { admin, store } = await startWorld()
      const page = await openTab(browser, `${admin.url}/operations/${'a'.repeat(64)}`, { allowed: REFUSALS })
      await page.getByText('There is no such operation.').waitFor()
      const id = await leaveUnknown(store, 'of-another-gate')
      await page.goto(`${admin.url}/operations/${id}`)
      await page.getByText('This process has seen nothing of it').waitFor()
      await page.getByText('Claimed').waitFor()
    })

    it('shows keys, principals and bodies only where the API may reveal them', async () => {
      const { admin, pay } = await startWorld({ reveal: false })
      await pay('order-secret-1')
      const page = await openTab(browser, `${admin.url}/operations?q=order-secret-1`)
      await page.getByRole('listitem').getByRole('link').click()
      await page.getByText('the admin API was started without --reveal').waitFor()
      expect(await page.content()).not.toContain('order-secret-1')
    })

    it('counts the lease down, and tells health, sizes and when records are gone', async () => {
      const { admin, store, pay } = await startWorld()
      await pay('settled-1')
      await leaveUnknown(store, 'lost')
      await store.claim({ ...CLAIM, id: 'b'.repeat(64), labels: { key: 'at-work' } })
      const page = await openTab(browser, `${admin.url}/stuck`)
      await page.getByText('1 unknown outcome, 1 running').waitFor()
      expect(await page.getByRole('listitem').getByRole('link').allInnerTexts()).toEqual(['lost', 'at-work'])
      const left = async () => Number(await page.getByLabel('Lease left').getAttribute('value'))
      const first = await left()
      expect(first).toBeLessThanOrEqual(CLAIM.leaseMs)
      await expect.poll(left, { timeout: 30_000 }).toBeLessThan(first)
      await page.keyboard.press('5')
      await page.getByText('memory answers').first().waitFor()
      await page.getByText('3 records, which is all').waitFor()
      expect(await page.getByRole('listitem').allInnerTexts()).toEqual(
        expect.arrayContaining([expect.stringMatching(/settled\s+1/), expect.stringMatching(/within 1 d\s+\d/)]),
      )
    })
  })

  describe('search', () => {
    it('finds by key, route, principal and state, and the address says what was searched for', async () => {
      const { admin, pay, store } = await startWorld()
      for (let i = 0; i < 12; i++) await pay(`order-${i}`, {}, { user: i < 5 ? 'berta' : 'anna' })
      await pay('refund-1', {}, { path: '/refunds' })
      await leaveUnknown(store, 'lost')
      const page = await openTab(browser, `${admin.url}/operations`)
      await page.getByText('14 operations, newest first.').waitFor()
      await page.getByLabel('Key or id').fill('order-1')
      await page.getByText('3 operations, newest first.').waitFor()
      expect(new URL(page.url()).search).toBe('?q=order-1')
      await page.getByLabel('Principal').fill('berta')
      await page.getByText('1 operation, newest first.').waitFor()
      await page.reload()
      await page.getByText('1 operation, newest first.').waitFor()
      expect(await page.getByLabel('Principal').inputValue()).toBe('berta')
      await page.goto(`${admin.url}/operations?route=refund`)
      expect(await keys(page)).toEqual(['refund-1'])
      await page.getByLabel('State').selectOption('unknown')
      await page.getByText('Nothing was found.').waitFor()
      await page.getByLabel('Route').fill('')
      expect(await keys(page)).toEqual(['lost'])
    })
  })

  describe('many', () => manyRecords(() => browser))

  describe('actions', () => {
    it('release: asks first, says what it means for the client, and the next request runs', async () => {
      const { admin, pay, store, runs } = await startWorld()
      await pay('order-1')
      const page = await openTab(browser, `${admin.url}/operations`)
      await page.getByRole('link', { name: 'order-1' }).click()
      await page.getByRole('button', { name: 'Release …' }).click()
      const dialog = page.getByRole('dialog', { name: 'Release this operation?' })
      await dialog.getByText('does everything a second time').waitFor()
      await dialog.getByRole('button', { name: 'Cancel' }).click()
      await dialog.waitFor({ state: 'detached' })
      expect(await store.list()).toHaveLength(1)
      expect(await pay('order-1')).toMatchObject({ isReplay: true })
      await page.getByRole('button', { name: 'Release …' }).click()
      await dialog.getByRole('button', { name: 'Release it' }).click()
      await page.getByText('Released. The next request with this key runs.').waitFor()
      await page.getByText('The store has no record').waitFor()
      await page.getByText('Released by an operator').waitFor()
      expect(await store.list()).toHaveLength(0)
      expect(await pay('order-1')).toMatchObject({ isReplay: false })
      expect(runs()).toBe(2)
    })

    it('mark failed: from the list of what is stuck, with the answer that retries will get', async () => {
      const { admin, store } = await startWorld()
      const id = await leaveUnknown(store, 'lost')
      const page = await openTab(browser, `${admin.url}/stuck`)
      await page.getByRole('button', { name: 'Mark failed …' }).click()
      const dialog = page.getByRole('dialog', { name: 'Mark this operation as failed?' })
      await dialog.getByText('Every retry with this key gets the answer below').waitFor()
      await dialog.getByLabel('Status').fill('410')
      await dialog.getByLabel(/What the client is told/).fill('the bank says no')
      await dialog.getByRole('button', { name: 'Mark it failed' }).click()
      await page.getByText('Nothing is in flight, and nothing is stuck.').waitFor()
      expect(await store.read(id)).toMatchObject({ state: 'settled', outcome: 'rejected', answer: { status: 410 } })
    })

    it('redact: the answer goes, the claim stays; and a refusal is told in the dialog', async () => {
      const { admin, pay, store } = await startWorld()
      await pay('order-1')
      const [record] = await store.list()
      const page = await openTab(browser, `${admin.url}/operations/${record?.id}`, { allowed: REFUSALS })
      await page.getByRole('button', { name: 'Redact …' }).click()
      await page.getByRole('button', { name: 'Redact it' }).click()
      await page.getByText('The body was not kept: it was too large, or it was redacted.').waitFor()
      expect(await page.content()).not.toContain('order-1')
      expect(await pay('order-1')).toMatchObject({ status: 409 })
      await page.getByRole('button', { name: 'Release …' }).click()
      // Somebody else is faster. The page learns of it, and the question that was asked stays.
      const headers = { 'X-Oncekey-Admin': '1', 'Content-Type': 'application/json' }
      const released = await fetch(`${admin.url}/api/operations/${record?.id}/release`, {
        method: 'POST',
        headers,
        body: '{"force":true}',
      })
      expect(released.status).toBe(200)
      await page.getByText('The store has no record').waitFor()
      await page.getByRole('button', { name: 'Release it' }).click()
      await page.getByText('Nothing was changed: There is no such record').waitFor()
    })

    it('offers nothing where the API is read-only', async () => {
      const { admin, pay } = await startWorld({ readOnly: true })
      await pay('order-1')
      const page = await openTab(browser, `${admin.url}/operations`)
      await page.getByText('Read-only').waitFor()
      await page.getByRole('link', { name: 'order-1' }).click()
      expect(await page.getByRole('button', { name: 'Release …' }).isDisabled()).toBe(true)
    })
  })

  describe('the page itself', () => {
    it('follows the system’s theme, until somebody chooses the other one', async () => {
      const { admin, pay } = await startWorld()
      await pay('order-1')
      const lightness = (page: Page) =>
        page.evaluate<number>('Number(/[0-9]+/.exec(getComputedStyle(document.body).backgroundColor)[0])')
      for (const colorScheme of ['light', 'dark'] as const) {
        const page = await openTab(browser, admin.url, { colorScheme })
        const isDark = colorScheme === 'dark'
        await page.getByText('Since the start').waitFor()
        expect((await lightness(page)) < 128).toBe(isDark)
        await page.getByRole('button', { name: isDark ? 'Light theme' : 'Dark theme' }).click()
        expect((await lightness(page)) < 128).toBe(!isDark)
        await page.reload()
        await page.getByText('Since the start').waitFor()
        expect((await lightness(page)) < 128).toBe(!isDark)
      }
    })

    it('fits a screen of 360 pixels in every view, without scrolling sideways', async () => {
      const world = await startWorld()
      await busy(world)
      const id = await leaveUnknown(world.store, 'a-key-that-is-as-long-as-they-come')
      await world.store.claim({ ...CLAIM, id: 'b'.repeat(64), labels: { key: 'at-work' } })
      const page = await openTab(browser, world.admin.url, { viewport: { width: 360, height: 700 } })
      const ready = { '/': 'Since the start', '/live': 'Type', '/operations': 'newest first', '/stuck': 'running' }
      for (const path of [...PATHS, `/operations/${id}`]) {
        await page.goto(world.admin.url + path)
        await page
          .getByText(ready[path as keyof typeof ready] ?? /which is all|What happened/)
          .first()
          .waitFor()
        expect(await page.evaluate(TOO_WIDE), path).toEqual([])
      }
      await page.getByRole('button', { name: 'Mark failed …' }).click()
      await page.getByRole('dialog').getByRole('button', { name: 'Mark it failed' }).click({ trial: true })
    })

    it('goes by keys: search, rows, open, back to the same row, help', async () => {
      const { admin, pay } = await startWorld()
      for (let i = 0; i < 5; i++) await pay(`order-${i}`)
      await pay('refund-1')
      const page = await openTab(browser, admin.url)
      await page.getByText('Since the start').waitFor()
      await page.keyboard.press('/')
      await waitFor(page, 'document.activeElement.matches("[data-search]")', true)
      await page.keyboard.type('order')
      await page.getByText('5 operations, newest first.').waitFor()
      const shown = await keys(page)
      await page.keyboard.press('Escape')
      for (const key of ['j', 'ArrowDown', 'j', 'k']) await page.keyboard.press(key)
      await focusIsOn(page, shown[1])
      await page.keyboard.press('Enter')
      await page.getByText('What happened').waitFor()
      await page
        .getByRole('definition')
        .filter({ hasText: shown[1] ?? '' })
        .waitFor()
      await page.keyboard.press('Escape')
      await page.getByText('5 operations, newest first.').waitFor()
      await page.keyboard.press('j')
      await focusIsOn(page, shown[2])
      await page.keyboard.press('?')
      await page.getByRole('dialog', { name: 'Keys' }).waitFor()
      await page.keyboard.press('Escape')
      await page.getByRole('dialog').waitFor({ state: 'detached' })
      expect(new URL(page.url()).search).toBe('?q=order')
    })

    it('has an address for each view, and the browser’s back and forward work', async () => {
      const { admin, pay } = await startWorld()
      await pay('order-1')
      const page = await openTab(browser, `${admin.url}/operations?state=settled`)
      await page.getByRole('link', { name: 'order-1' }).click()
      await page.getByText('What happened').waitFor()
      const address = page.url()
      await page.goBack()
      await page.getByText('1 operation, newest first.').waitFor()
      expect(await page.getByLabel('State').inputValue()).toBe('settled')
      await page.goForward()
      await page.getByText('What happened').waitFor()
      const another = await openTab(browser, address)
      await another.getByText('What happened').waitFor()
      await another.keyboard.press('Escape')
      await another.waitForURL('**/operations')
    })

    it('asks for the token where the API wants one, and never puts it into an address', async () => {
      const token = 'a-token-that-is-long-enough'
      const { admin, pay } = await startWorld({ token })
      await pay('order-1')
      const page = await openTab(browser, `${admin.url}/operations`, { allowed: REFUSALS })
      const asked: string[] = []
      page.on('request', (request) => asked.push(request.url()))
      await page.getByLabel('Token').fill('wrong-token-wrong-token')
      await page.getByRole('button', { name: 'Open' }).click()
      await page.getByLabel('Token').waitFor()
      await page.getByLabel('Token').fill(token)
      await page.getByRole('button', { name: 'Open' }).click()
      await page.getByRole('link', { name: 'order-1' }).waitFor()
      await page.getByText('Live', { exact: true }).nth(1).waitFor()
      await page.reload()
      await page.getByRole('link', { name: 'order-1' }).waitFor()
      expect(asked.filter((url) => url.includes('token') || !url.startsWith(admin.url))).toEqual([])
    })

    it('says when the stream is lost, and goes on where it was', async () => {
      const first = await startWorld()
      const page = await openTab(browser, `${first.admin.url}/live`, { allowed: /ERR_|Failed to load/ })
      await first.pay('before')
      await row(page, 'before').first().waitFor()
      await first.admin.stop()
      await page.getByText(/^Reconnecting/).waitFor()
      await page.getByText('The stream is interrupted').waitFor()
      const second = await startWorld({ port: Number(new URL(first.admin.url).port) })
      await page.getByText(/^Reconnecting/).waitFor({ state: 'detached' })
      await second.pay('after')
      await row(page, 'after').first().waitFor()
      expect(await row(page, 'before').count()).toBeGreaterThan(0)
    })
  })
})

/** In the page: whether the chart has a pixel of the colour of what was executed. */
const CHART_HAS_EXECUTED = `(() => {
  const probe = document.createElement('i')
  probe.style.color = 'var(--executed)'
  document.body.append(probe)
  const [red, green, blue] = getComputedStyle(probe).color.match(/\\d+/g).map(Number)
  probe.remove()
  const canvas = document.querySelector('canvas')
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
  return data.some((_, i) => i % 4 === 0 && data[i] === red && data[i + 1] === green && data[i + 2] === blue)
})()`

/** In the page: what is wider than its own room. */
const TOO_WIDE = `[document.documentElement, ...document.querySelectorAll('main, .view, .list, .panel, .rail-foot, nav')]
  .filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)
  .map(({ tagName, className }) => tagName + '.' + className)`

/** Three operations, two replays, one conflict. */
async function busy({ pay }: World): Promise<void> {
  for (const key of ['order-1', 'order-2', 'order-3', 'order-1', 'order-2']) await pay(key)
  await pay('order-3', { amount: 2 })
}

function row(page: Page, text: string) {
  return page.getByRole('listitem').filter({ hasText: text })
}

async function keys(page: Page): Promise<string[]> {
  await page.getByText(/newest first/).waitFor()
  return page.getByRole('listitem').getByRole('link').allInnerTexts()
}
