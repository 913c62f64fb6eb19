import { describe, expect, it } from 'vitest'
import { GroupCommit } from './group-commit.ts'

/** A store whose writes end when the test says so. */
function makeStore(options: { batchMax?: number; queueMax?: number; inFlightMax?: number } = {}) {
  const batches: Array<{ ops: readonly number[]; end: (error?: Error) => Promise<void> }> = []
  const group = new GroupCommit<number, string>(
    (ops) =>
      new Promise((resolve, reject) => {
        const end = async (error?: Error) => {
          if (error) reject(error)
          else resolve(ops.map((op) => `#${op}`))
          await turn()
        }
        batches.push({ ops, end })
      }),
    { batchMax: 100, queueMax: 100, inFlightMax: 1, ...options },
  )
  return { group, batches }
}
const turn = () => new Promise((resolve) => setImmediate(resolve))

describe('group commit', () => {
  it('sends a lone operation at once', async () => {
    const { group, batches } = makeStore()
    const reply = group.submit(1)
    await turn()
    expect(batches.map(({ ops }) => ops)).toEqual([[1]])
    await batches[0]?.end()
    expect(await reply).toBe('#1')
  })

  it('gathers while a batch is under way, and gives each its own reply', async () => {
    const { group, batches } = makeStore()
    const first = group.submit(1)
    await turn()
    const rest = [2, 3, 4].map((op) => group.submit(op))
    await turn()
    expect(batches).toHaveLength(1)
    await batches[0]?.end()
    expect(batches.map(({ ops }) => ops)).toEqual([[1], [2, 3, 4]])
    await batches[1]?.end()
    expect(await Promise.all([first, ...rest])).toEqual(['#1', '#2', '#3', '#4'])
  })

  it('sends together what one turn submits', async () => {
    const { group, batches } = makeStore()
    const all = [1, 2, 3].map((op) => group.submit(op))
    await turn()
    expect(batches.map(({ ops }) => ops)).toEqual([[1, 2, 3]])
    await batches[0]?.end()
    await Promise.all(all)
  })

  it('keeps to its bounds', async () => {
    const { group, batches } = makeStore({ batchMax: 2, queueMax: 4, inFlightMax: 2 })
    const all = [1, 2, 3, 4].map((op) => group.submit(op))
    await expect(group.submit(5)).rejects.toMatchObject({ code: 'store-full' })
    await turn()
    expect(batches.map(({ ops }) => ops)).toEqual([
      [1, 2],
      [3, 4],
    ])
    for (const batch of batches) await batch.end()
    await Promise.all(all)
  })

  it('fails the operations of a failed batch, and goes on with the next', async () => {
    const { group, batches } = makeStore()
    const doomed = group.submit(1)
    doomed.catch(() => {})
    await turn()
    const next = group.submit(2)
    await batches[0]?.end(new Error('connection lost'))
    await expect(doomed).rejects.toThrow('connection lost')
    await batches[1]?.end()
    expect(await next).toBe('#2')
  })

  it('drains', async () => {
    const { group, batches } = makeStore()
    let drained = false
    const replies = [group.submit(1), group.submit(2)]
    const drain = group.drain().then(() => {
      drained = true
    })
    await turn()
    expect(drained).toBe(false)
    await batches[0]?.end()
    await drain
    await Promise.all(replies)
    await group.drain()
  })
})
