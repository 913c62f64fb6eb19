import { expect, it } from 'vitest'
import { rowCount } from './store-checks.ts'

it('rowCount turns what a database would refuse into a limit', () => {
  expect([-1, 0, 1.9, Number.POSITIVE_INFINITY].map(rowCount)).toEqual([0, 0, 1, Number.MAX_SAFE_INTEGER])
})
