/** Something that must never be seen, whatever the seed. */
export interface Violation {
  readonly invariant: Invariant
  /** What was seen, in the numbers of the trace. */
  readonly text: string
}

export type Invariant = keyof typeof INVARIANTS

export const INVARIANTS = {
  'at-most-once': 'Under crash "refuse" a handler runs at most once while its record must live',
  'one-payload': 'Another payload never runs under a key whose record must live',
  'takeover-told': 'A handler that runs after another is told so: its attempt is above 1',
  'reconcile-once': 'Under crash "reconcile" nothing runs once a truthful hook could see the effect',
  'replay-exact': 'A replay is, byte for byte, an answer that this operation was given and that the contract keeps',
  'replay-fresh': 'An expired answer is not replayed',
  'kept-is-kept': 'An answer that was kept is what every retry gets until it expires',
  'one-answer': 'Two runs of one operation are never both kept: a late owner changes nothing',
  'refused-not-run': 'Who was refused, or got a replay, has run nothing',
  'no-shadow': 'A request is never refused as the duplicate of itself',
  'live-owner': 'While a handler runs and reaches its store, nobody takes its operation over or calls it unknown',
  'signal-aborts': 'A handler whose operation was taken over has its signal aborted within the bound',
  'derive-stable': 'derive() gives every attempt of an operation the same key, and no other operation that key',
  'ends-in-time': 'execute() settles within the sum of its bounds',
  'shared-reads': 'All who wait in one process share one read of the store',
  'key-free': 'When faults are over, a key is answered within its lease, and runs again when its record has expired',
} as const
