import { hash } from 'node:crypto'

/** A number from 0 to 1 for this seed and these words: the same in every run, in whatever order things happen. */
export function chance(seed: string, ...words: ReadonlyArray<string | number>): number {
  return Number.parseInt(hash('sha256', [seed, ...words].join('\0'), 'hex').slice(0, 8), 16) / 2 ** 32
}

/** Which of the faults it is to be, if any. */
export function drawn<F extends string>(faults: Readonly<Record<F, number>>, at: number): F | undefined {
  let rest = at
  for (const [fault, share] of Object.entries(faults) as Array<[F, number]>) {
    rest -= share
    if (rest < 0) return fault
  }
  return undefined
}

/** What is to be done when the test is over; its own, because several run at once. */
export type Later = (cleanup: () => Promise<void> | void) => void
