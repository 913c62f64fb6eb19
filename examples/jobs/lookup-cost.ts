/**
 * What one lookup in the gate's cache costs, by how much is in it. Ten million entries need some GB:
 *
 *     node --max-old-space-size=16000 examples/jobs/lookup-cost.ts 1000 10000 100000 1000000 10000000
 */
import type { ClaimRequest, Store } from '../../src/index.ts'
import { memoryStore } from '../../src/stores/memory.ts'

export interface LookupCost {
  readonly entries: number
  /** A duplicate of an answered submission, in nanoseconds: the middle one of many rounds. */
  readonly hitNs: number
  /** A new submission that makes room for itself in a full cache: claimed, answered, and the oldest forgotten. */
  readonly newNs: number
}

/** Fills a cache with so many answered entries, and asks it for some of them, all over. */
export function measureLookup(entries: number, perRound = 50_000): LookupCost {
  const store = memoryStore({ recordsMax: entries })
  for (let n = 0; n < entries; n++) answer(store, claimOf(n, `owner ${n}`))
  const hitNs = rounds(
    perRound,
    (n) => claimOf(scattered(n, entries), 'duplicate'),
    (request) => {
      const found = store.claim(request) as { readonly state: string }
      if (found.state !== 'settled') throw new Error(`a duplicate is ${found.state}`)
    },
  )
  const newNs = rounds(
    perRound,
    (n) => claimOf(entries + n, `owner ${entries + n}`),
    (request) => answer(store, request),
  )
  return { entries, hitNs, newNs }
}

const ROUNDS = 7

/**
 * Nanoseconds of this thread's own time for one call: the median of the rounds, so that neither a collection of garbage
 * nor another process counts.
 */
function rounds(perRound: number, prepare: (n: number) => ClaimRequest, call: (request: ClaimRequest) => void): number {
  const costs: number[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const requests = Array.from({ length: perRound }, (_, n) => prepare(round * perRound + n))
    const before = process.threadCpuUsage()
    for (const request of requests) call(request)
    const { user, system } = process.threadCpuUsage(before)
    costs.push(((user + system) * 1_000) / perRound)
  }
  return costs.sort((a, b) => a - b)[Math.floor(ROUNDS / 2)] ?? Number.NaN
}

function answer(store: Store, request: ClaimRequest): void {
  store.claim(request)
  store.settle(request.id, request.token, SETTLEMENT)
}

function claimOf(n: number, token: string): ClaimRequest {
  // As long as a SHA-256 in hex, and a new string each time, as a request's is.
  const id = Buffer.from(n.toString(16).padStart(64, '0')).toString('latin1')
  return { id, token, fingerprint: 'f', leaseMs: 60_000, unknownTtlMs: 300_000, takeover: true }
}

/** Far from its neighbours: no two lookups in a row touch the same memory. */
function scattered(n: number, entries: number): number {
  return (n * 7_919_993) % entries
}

const SETTLEMENT = {
  outcome: 'committed',
  answer: { status: 201, headers: [], body: new Uint8Array(0) },
  ttlMs: 86_400_000,
  expiredTtlMs: 0,
} as const

if (import.meta.main) {
  const given = process.argv.slice(2).map(Number)
  console.log('entries      duplicate   new')
  for (const entries of given.length > 0 ? given : [1_000, 10_000, 100_000, 1_000_000]) {
    const { hitNs, newNs } = measureLookup(entries)
    console.log(`${String(entries).padEnd(12)} ${hitNs.toFixed(0).padStart(6)} ns ${newNs.toFixed(0).padStart(6)} ns`)
  }
}
