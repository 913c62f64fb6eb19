import type { ClaimRequest, Settlement } from '../../src/store.ts'

/** What the tests of all stores ask for: long enough to outlast any test. */
export const HOUR_MS = 3_600_000

export const ids = (count: number): string[] => Array.from({ length: count }, (_, index) => `id-${index}`)

export function claimOf(id: string, fields: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    id,
    token: 'mine',
    fingerprint: 'same',
    leaseMs: HOUR_MS,
    unknownTtlMs: HOUR_MS,
    takeover: false,
    ...fields,
  }
}

/** The same in the words of the store suite. */
export function ownersClaimOf(id: string, fields: Partial<ClaimRequest> = {}): ClaimRequest {
  return claimOf(id, { token: 'owner', fingerprint: 'print', ...fields })
}

export function settlementOf(text = 'done', fields: Partial<Settlement> = {}): Settlement {
  return {
    outcome: 'committed',
    answer: { status: 201, headers: [['content-type', 'text/plain']], body: new TextEncoder().encode(text) },
    ttlMs: HOUR_MS,
    expiredTtlMs: 0,
    ...fields,
  }
}

export const answered: Settlement = settlementOf('done', {
  answer: { status: 201, headers: [['content-type', 'text/plain']], body: Buffer.from('done') },
})
