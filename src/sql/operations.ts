import { OncekeyError } from '../error.ts'
import type { Reply } from '../group-commit.ts'
import type { ClaimRequest, RecordState, Settlement } from '../store.ts'

/** What changes a record that is claimed. */
export type WriteOp =
  | SettleOp
  | { readonly verb: 'release'; readonly id: string; readonly token: string }
  | { readonly verb: 'renew'; readonly id: string; readonly token: string; readonly leaseMs: number }

export interface SettleOp {
  readonly verb: 'settle'
  readonly id: string
  readonly token: string
  readonly settlement: Settlement
}

/** Rounds of one batch: every round but the first is for those that lost a race, or stand behind one of the same id. */
const ROUNDS_MAX = 1_000

/**
 * Asks in rounds, until every operation has its reply; those that got `undefined` are asked again. When a round fails,
 * the replies of those before it still hold, for they are committed: only the others get the error.
 */
export async function untilAnswered<Op, T>(
  ops: readonly Op[],
  toFault: (error: unknown) => OncekeyError,
  ask: (left: readonly Op[]) => Promise<ReadonlyArray<Reply<T> | undefined>>,
): Promise<Reply<T>[]> {
  const replies: Reply<T>[] = []
  let left = ops.map((op, place) => ({ op, place }))
  try {
    for (let round = 0; left.length > 0; round++) {
      if (round === ROUNDS_MAX) throw contested()
      const answered = await ask(left.map(({ op }) => op))
      left = left.filter(({ place }, index) => {
        const reply = answered[index]
        if (reply !== undefined) replies[place] = reply
        return reply === undefined
      })
    }
  } catch (error) {
    if (replies.length === 0) throw error
    for (const { place } of left) replies[place] = toFault(error)
  }
  return replies
}

/** The places of those that go first: at most one operation of each id at a time, in the order in which they came. */
export function firstOfEachId(ops: ReadonlyArray<{ readonly id: string }>): readonly number[] {
  const seen = new Set<string>()
  return [...ops.keys()].filter((place) => seen.size < seen.add((ops[place] as { readonly id: string }).id).size)
}

/** Splits a batch so that no statement carries more bytes than that, unless one entry alone does. */
export function* groupsBySize<T>(
  entries: readonly T[],
  bytesMax: number,
  bytesOf: (entry: T) => number,
): Generator<readonly T[]> {
  let group: T[] = []
  let bytes = 0
  for (const entry of entries) {
    const own = bytesOf(entry)
    if (group.length > 0 && bytes + own > bytesMax) {
      yield group
      group = []
      bytes = 0
    }
    group.push(entry)
    bytes += own
  }
  if (group.length > 0) yield group
}

/**
 * Another session has inserted the record and not committed yet. Its fingerprint cannot be seen, so the claim's own is
 * given: the caller is told to come again, and then learns what it really is.
 */
export function heldByTransaction(request: ClaimRequest): RecordState {
  return { state: 'running', fingerprint: request.fingerprint, leaseLeftMs: request.leaseMs }
}

export function contested(): OncekeyError {
  return new OncekeyError(
    'store-unavailable',
    'Other sessions changed this record all the time while it was looked at. Nothing was recorded; try again.',
  )
}
