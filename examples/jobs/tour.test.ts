import { expect, it } from 'vitest'
import { Unavailable } from '../../test/services/index.ts'
import { Stage } from '../kit.ts'
import { start, tour } from './example.ts'
import { measureLookup } from './lookup-cost.ts'

const example = await start({ port: 0, env: {} }).catch((error: unknown) => {
  if (error instanceof Unavailable) return error.message
  throw error
})
const missing = typeof example === 'string' ? `: ${example}` : ''

it.skipIf(missing)(`the tour holds from its first scene to its last${missing}`, async () => {
  if (typeof example === 'string') return
  const lines: string[] = []
  const stage = new Stage(example.url, (line) => lines.push(line))
  try {
    await tour(stage, example)
  } finally {
    await example.stop()
  }
  expect(stage.failures).toEqual([])
  const shown = lines.join('\n')
  for (let clause = 1; clause <= 12; clause++) expect(shown).toMatch(new RegExp(`\\bJ${clause}\\b`))
})

it('J5: a lookup in two hundred times as many entries costs about the same', () => {
  const [few, many] = [measureLookup(1_000, 20_000), measureLookup(200_000, 20_000)]
  // Wide, because the machine has caches of its own; whoever searches is beyond it by far.
  expect(many.hitNs / few.hitNs).toBeLessThan(16)
  expect(many.newNs / few.newNs).toBeLessThan(16)
})
