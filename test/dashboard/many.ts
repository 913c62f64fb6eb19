import { createHash } from 'node:crypto'
import type { Browser } from 'playwright-core'
import { expect, it } from 'vitest'
import { open, tempFile } from '../support/sqlite.ts'
import { CLAIM, focusIsOn, openTab, startWorld } from './world.ts'

const RECORDS = 100_000
const AT_ONCE = 5_000

/** A store of 100,000 records stays smooth: paging in the store, virtual rows. */
export function manyRecords(browser: () => Browser): void {
  it('a store of 100,000 records is paged in the store, scrolls to its end, and has few rows in the document all the time', async () => {
    const store = open(tempFile())
    const ids = Array.from({ length: RECORDS }, (_, i) =>
      createHash('sha256').update(`order-${i}`).digest('hex'),
    ).sort()
    for (let i = 0; i < RECORDS; i += AT_ONCE) {
      await Promise.all(
        ids.slice(i, i + AT_ONCE).map((id, n) =>
          store.claim({
            ...CLAIM,
            leaseMs: 3_600_000,
            id,
            labels: { key: `order-${i + n}`, route: '/pay', method: 'POST' },
          }),
        ),
      )
    }
    const { admin } = await startWorld({ store })
    const page = await openTab(browser(), `${admin.url}/operations`)
    const asked: string[] = []
    page.on('request', (request) => {
      if (request.url().includes('/api/operations?')) asked.push(request.url())
    })
    const rows = () => page.getByRole('listitem').count()
    await page.getByText('5,000 loaded, in the order of their ids; scroll on for more.').waitFor()
    expect(await rows()).toBeLessThan(200)

    // By the wheel: what comes into sight is loaded.
    const list = page.locator('.list')
    await list.evaluate((element) => element.scrollTo(0, element.scrollHeight))
    await page.getByText('6,000 loaded').waitFor()
    await page.getByText('order-4999', { exact: true }).waitFor()
    expect(await rows()).toBeLessThan(200)

    await page.keyboard.press('End')
    await page.getByText('100,000 operations, in the order of their ids.').waitFor({ timeout: 120_000 })
    await focusIsOn(page, 'order-99999')
    expect(await rows()).toBeLessThan(200)
    await list.evaluate((element) => element.scrollTo(0, element.scrollHeight / 2))
    await page.getByText('order-50000', { exact: true }).waitFor()
    expect(await rows()).toBeLessThan(200)

    // Back from an operation: the same place, and nothing is loaded again.
    const before = asked.length
    await page.getByText('order-50000', { exact: true }).click()
    await page.getByText('What happened').waitFor()
    await page.keyboard.press('Escape')
    await page.getByText('order-50000', { exact: true }).waitFor()
    expect(asked.slice(before)).toEqual([])
    expect(asked.filter((url) => !url.includes('&limit=1000&after='))).toEqual([])

    // A search goes through all of them, in steps that the store can bear.
    await page.keyboard.press('/')
    await page.keyboard.type('order-77777')
    await page.getByText('1 found among the 100,000 records looked at so far.').waitFor()
    await page.getByRole('button', { name: 'Go on' }).click()
    await page.getByText('1 operation, in the order of their ids.').waitFor()
  })
}
