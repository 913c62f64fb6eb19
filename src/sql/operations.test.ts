import { describe, expect, it } from 'vitest'
import { OncekeyError } from '../error.ts'
import { firstOfEachId, groupsBySize, untilAnswered } from './operations.ts'

const toFault = (error: unknown): OncekeyError => new OncekeyError('store-unavailable', String(error))

describe('untilAnswered', () => {
  it('asks again for those without a reply, in the order in which they came', async () => {
    const rounds: number[][] = []
    const replies = await untilAnswered([1, 2, 3, 4], toFault, async (left) => {
      rounds.push([...left])
      return left.map((op) => (op % 2 === 0 || rounds.length > 1 ? op * 10 : undefined))
    })
    expect(replies).toEqual([10, 20, 30, 40])
    expect(rounds).toEqual([
      [1, 2, 3, 4],
      [1, 3],
    ])
  })

  it('throws when the first round fails, for nothing was answered', async () => {
    const ask = () => Promise.reject(new Error('gone'))
    await expect(untilAnswered([1], toFault, ask)).rejects.toThrow('gone')
  })

  it('keeps what was answered when a later round fails', async () => {
    let rounds = 0
    const replies = await untilAnswered([1, 2], toFault, async (left) => {
      if (++rounds > 1) throw new Error('gone')
      return left.map((op) => (op === 2 ? 'done' : undefined))
    })
    expect(replies).toEqual([expect.objectContaining({ code: 'store-unavailable' }), 'done'])
  })

  it('gives up on what others change all the time', async () => {
    const ask = async (left: readonly number[]) => left.map(() => undefined)
    await expect(untilAnswered([1], toFault, ask)).rejects.toMatchObject({ code: 'store-unavailable' })
  })

  it('asks nothing for nothing', async () => {
    const ask = () => Promise.reject(new Error('was asked'))
    expect(await untilAnswered([], toFault, ask)).toEqual([])
  })
})

it('firstOfEachId lets one operation of an id go at a time', () => {
  const ops = ['a', 'b', 'a', 'c', 'b'].map((id) => ({ id }))
  expect(firstOfEachId(ops)).toEqual([0, 1, 3])
})

it('groupsBySize keeps the order, and leaves alone what is too large by itself', () => {
  expect([...groupsBySize([3, 3, 3, 20, 1], 6, (bytes) => bytes)]).toEqual([[3, 3], [3], [20], [1]])
  expect([...groupsBySize([], 6, () => 1)]).toEqual([])
})
