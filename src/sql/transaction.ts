import type { Claim, Settlement, TransactionEnd } from '../store.ts'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

export const ISOLATIONS: readonly Isolation[] = ['read committed', 'repeatable read', 'serializable']

export interface TransactionSettings {
  /** `undefined`: what the server's own default says. */
  readonly isolation: Isolation | undefined
  /** How long a duplicate waits for the end of the first one's transaction. */
  readonly waitMsMax: number
}

/** Times that the claim is asked again, before `work` has run. */
export const CLAIMS_MAX = 10

/** The steps of a transaction on one connection. */
export interface TransactionSteps<Tx> {
  /** What the user's work runs on. */
  readonly tx: Tx
  /** Leaves an open transaction when the claim was acquired, and none otherwise. Nothing of the user's has run yet. */
  claim(): Promise<Claim>
  /** Throws, with everything rolled back, when `work` has not left the transaction as it was. */
  settle(settlement: Settlement): Promise<void>
  commit(): Promise<void>
  /** Never throws: the transaction may end with its connection. */
  rollBack(): Promise<void>
}

/** Claims, works and settles in one transaction. */
export async function transact<Tx>(
  steps: TransactionSteps<Tx>,
  work: (tx: Tx, attempt: number) => Promise<Settlement | undefined>,
): Promise<TransactionEnd> {
  const claim = await steps.claim()
  if (claim.state !== 'acquired') return claim
  let settlement: Settlement | undefined
  try {
    settlement = await work(steps.tx, claim.attempt)
  } catch (error) {
    await steps.rollBack()
    throw error
  }
  if (settlement === undefined) {
    await steps.rollBack()
    return { state: 'rolled-back' }
  }
  await steps.settle(settlement)
  await steps.commit()
  return { state: 'committed' }
}
