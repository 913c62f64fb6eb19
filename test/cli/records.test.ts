import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { sqliteStore } from '../../src/stores/sqlite.ts'
import { folder, oncekey } from './run.ts'

const [PAID, OTHER, THIRD] = ['ab12cd', 'ab12ce', 'ff'].map((beginning) => beginning.padEnd(64, '0')) as [
  string,
  string,
  string,
]

/** An SQLite file with these operations in it, by id and key. */
async function keeping(records: Readonly<Record<string, string>>, bodyBytes = 1) {
  const path = join(folder(), 'keys.db')
  const store = sqliteStore({ path })
  for (const [id, key] of Object.entries(records)) {
    const labels = { key, principal: `owner-of-${id.slice(0, 6)}`, method: 'POST', route: '/pay' }
    const times = { leaseMs: 1_000, unknownTtlMs: 600_000 }
    await store.claim({ id, token: 't', fingerprint: 'f', ...times, takeover: false, labels })
    const answer = { status: 201, headers: [], body: new Uint8Array(bodyBytes) }
    await store.settle(id, 't', { outcome: 'committed', answer, ttlMs: 600_000, expiredTtlMs: 0 })
  }
  await store.close()
  const on = ['--store', `sqlite:${path}`]
  const left = async (): Promise<readonly string[]> => {
    const again = sqliteStore({ path })
    const records = await again.list()
    await again.close()
    return records.map(({ id }) => id)
  }
  return { on, left }
}

describe('release, forget and show find what was said, and nothing like it', () => {
  it.each(['order-47', '4711', 'rder-4711', 'ORDER-4711', 'order-47110', 'ab12c', 'a'])(
    'release %s removes nothing',
    async (said) => {
      const { on, left } = await keeping({ [PAID]: 'order-4711' })
      const { status, stdout, stderr } = await oncekey(['release', said, ...on, '--yes'])
      expect(stderr).toMatch(/^No operation has the key or id .*Give a key whole, an id by its first 6 characters/)
      expect([status, stdout]).toEqual([1, ''])
      expect(await left()).toEqual([PAID])
    },
  )

  it.each(['order-4711', PAID, 'ab12cd', 'AB12CD00'])('release %s removes the one', async (said) => {
    const { on, left } = await keeping({ [PAID]: 'order-4711', [OTHER]: 'order-47110' })
    expect(await oncekey(['release', said, ...on, '--yes'])).toMatchObject({ status: 0, stdout: `${PAID}: done.\n` })
    expect(await left()).toEqual([OTHER])
  })

  it('takes one at a time, and no memory of another process', async () => {
    const { on, left } = await keeping({ [PAID]: 'one', [OTHER]: 'two' })
    const both = await oncekey(['forget', 'one', 'two', ...on, '--yes'])
    expect([both.status, both.stderr]).toEqual([2, expect.stringContaining('One at a time: "two" is too many.')])
    expect(await left()).toHaveLength(2)
    const memory = await oncekey(['list', '--store', 'memory:'])
    expect([memory.status, memory.stderr]).toEqual([2, expect.stringContaining('no other process can look into')])
  })

  it('a whole key wins over ids that begin so', async () => {
    const { on } = await keeping({ [PAID]: 'order-4711', [THIRD]: 'ab12cd' })
    const { stdout } = await oncekey(['show', 'ab12cd', ...on, '--json'])
    expect(JSON.parse(stdout)).toMatchObject({ id: THIRD })
  })

  it('several are listed, and none is changed', async () => {
    const { on, left } = await keeping({ [PAID]: 'order', [OTHER]: 'order', [THIRD]: 'another' })
    for (const verb of ['release', 'forget', 'show']) {
      const { status, stdout, stderr } = await oncekey([verb, 'order', ...on, ...(verb === 'show' ? [] : ['--yes'])])
      expect(stderr).toMatch(/"order" is 2 operations; say which by its id:/)
      for (const id of [PAID, OTHER]) expect(stderr).toContain(`  ${id}  POST /pay`)
      expect(stderr).not.toContain(THIRD)
      expect([status, stdout]).toEqual([2, ''])
    }
    expect(await left()).toEqual([PAID, OTHER, THIRD])
  })

  it.each(['', ' '])('%j is nothing to go by, even where one key is all there is', async (said) => {
    const { on, left } = await keeping({ [PAID]: 'order-4711' })
    for (const verb of ['release', 'forget']) {
      const { status, stderr } = await oncekey([verb, said, ...on, '--yes'])
      expect([status, stderr]).toEqual([2, expect.stringContaining('Say which: a key, an id')])
    }
    expect((await oncekey(['show', said, ...on])).status).toBe(2)
    expect(await left()).toEqual([PAID])
  })

  it('list --key finds part of a key only where keys are shown', async () => {
    const { on } = await keeping({ [PAID]: 'order-4711' })
    expect((await oncekey(['list', '--key', 'order-47', ...on])).stdout).toBe('No operation.\n')
    expect((await oncekey(['list', '--key', 'order-4711', ...on])).stdout).toContain('settled')
    expect((await oncekey(['list', '--key', 'order-47', '--reveal', ...on])).stdout).toContain('order-4711')
  })
})

describe('oncekey stats', () => {
  it('counts all records over many pages', async () => {
    const ids = Array.from({ length: 75 }, (_, at) => at.toString(16).padStart(64, '0'))
    const { on } = await keeping(Object.fromEntries(ids.map((id) => [id, 'k'])), 10)
    const { stdout } = await oncekey(['stats', ...on, '--json'])
    expect(JSON.parse(stdout)).toMatchObject({ records: 75, bodyBytes: 750, byStatus: { 201: 75 } })
  })
})
