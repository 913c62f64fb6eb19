import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { describe, expect, it } from 'vitest'
import { declareOutcome, idempotency } from '../adapters/node.ts'
import { memoryStore } from '../stores/memory.ts'
import type { DeclaredOutcome } from './declared-outcome.ts'

async function answeredTwice(outcome: DeclaredOutcome | undefined, status: number) {
  const store = memoryStore()
  let runs = 0
  const server = createServer(
    idempotency({ store, principal: 'public' })((request, response) => {
      runs++
      if (outcome) declareOutcome(request, outcome)
      response.statusCode = status
      response.end('what the handler said')
    }),
  )
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/x`
  const post = async () => {
    const got = await fetch(url, { method: 'POST', headers: { 'Idempotency-Key': 'k' } })
    return [got.status, await got.text()] as const
  }
  const [first, second] = [await post(), await post()]
  server.closeAllConnections()
  await new Promise((resolve) => server.close(resolve))
  const states = (await store.list()).map(({ state }) => state)
  await store.close()
  return { first, secondStatus: second[0], runs, states }
}

describe('a handler that declares its outcome', () => {
  it('nothing done: its answer is given, the record is released, and the retry runs, whatever the status says', async () => {
    expect(await answeredTwice('nothing-done', 201)).toEqual({
      first: [201, 'what the handler said'],
      secondStatus: 201,
      runs: 2,
      states: [],
    })
  })

  it('X2: unknown: its answer is given, and the retry is refused, whatever the status says', async () => {
    expect(await answeredTwice('unknown', 503)).toEqual({
      first: [503, 'what the handler said'],
      secondStatus: 409,
      runs: 1,
      states: ['unknown'],
    })
  })

  it('without a word the contract decides by the status', async () => {
    expect(await answeredTwice(undefined, 201)).toMatchObject({ runs: 1, states: ['settled'] })
    expect(await answeredTwice(undefined, 503)).toMatchObject({ runs: 2, states: [] })
  })
})
