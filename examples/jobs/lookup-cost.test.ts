import { expect, it } from 'vitest'
import { measureLookup } from './lookup-cost.ts'

it('J5: a lookup in two hundred times as many entries costs about the same', () => {
  const [few, many] = [measureLookup(1_000, 20_000), measureLookup(200_000, 20_000)]
  // Wide, because the machine has caches of its own; whoever searches is beyond it by far.
  expect(many.hitNs / few.hitNs).toBeLessThan(16)
  expect(many.newNs / few.newNs).toBeLessThan(16)
})
