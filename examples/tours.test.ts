import { describe, expect, it } from 'vitest'
import { Unavailable } from '../test/services/index.ts'
import { type ExampleModule, Stage } from './kit.ts'

/** Each example is started as `npm run example NAME -- --tour` does it, and its tour must show every clause of its document. */
const TOURS = [
  ['traces', 'A', 17, () => import('./traces/example.ts')],
  ['resources', 'D', 14, () => import('./resources/example.ts')],
  ['writes', 'R', 12, () => import('./writes/example.ts')],
  ['payments', 'S', 9, () => import('./payments/example.ts')],
  ['jobs', 'J', 12, () => import('./jobs/example.ts')],
] as const

describe('the tours', () => {
  it.for(TOURS)('%s: every clause has its scene, and everything holds', async ([, letter, clauses, load], { skip }) => {
    const { start, tour } = (await load()) as ExampleModule
    const example = await start({ port: 0, env: process.env }).catch((error: unknown) => {
      if (error instanceof Unavailable) return skip(error.message)
      throw error
    })
    const lines: string[] = []
    const stage = new Stage(example.url, (line) => lines.push(line))
    try {
      await tour(stage, example)
    } finally {
      await example.stop()
    }
    expect(stage.failures, lines.join('\n')).toEqual([])
    const shown = lines.join('\n')
    for (let clause = 1; clause <= clauses; clause++) expect(shown).toMatch(new RegExp(`\\b${letter}${clause}\\b`))
  })
})
