import type { Child } from './child.ts'
import { type Entry, measureSlice } from './measure.ts'
import type { Options } from './options.ts'
import { type LoneRow, type Slice, spread } from './results.ts'

const ROUNDS = 9
const SECONDS = 0.4

/** What batching must not slow down: each row, and the one that shows the same without batching. */
const COMPARED: Readonly<Record<string, string>> = { 'fastify+postgres': 'fastify+postgres-unbatched' }

/** One connection: every request is alone, so that what it waits for is its own. Interleaved, like the rest. */
export async function measureLone(
  entries: readonly Entry[],
  load: Child,
  options: Pick<Options, 'rounds'>,
): Promise<readonly LoneRow[]> {
  const rows = entries
    .filter(({ contestant, absent }) => absent === undefined && contestant.framework === 'fastify')
    .map((entry) => ({ entry, slices: [] as Slice[] }))
  // One round that does not count: each comes out of a load that was quite another.
  for (let round = -1; round < Math.min(ROUNDS, options.rounds); round++) {
    for (const { entry, slices } of round % 2 === 0 ? rows : rows.toReversed()) {
      const slice = await measureSlice(entry, 'new-keys', load, { connections: 1, seconds: SECONDS })
      if (round >= 0) slices.push(slice)
    }
  }
  return rows.map(({ entry, slices }) => {
    const { name, label } = entry.contestant
    const comparedWith = COMPARED[name]
    const compared = rows.find((row) => row.entry.contestant.name === comparedWith)
    const ratios = slices.map((slice, round) => slice.p50Ms / (compared?.slices[round]?.p50Ms ?? Number.NaN))
    const fault = slices.find((slice) => slice.fault !== undefined)?.fault
    return {
      name,
      label,
      p50Ms: spread(slices.map(({ p50Ms }) => p50Ms)),
      ...(comparedWith !== undefined && compared && { comparedWith, ofCompared: spread(ratios) }),
      ...(fault !== undefined && { fault }),
    }
  })
}
