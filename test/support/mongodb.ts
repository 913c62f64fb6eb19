import { MongoClient, type MongoClientOptions } from 'mongodb'
import type { ClaimRequest, Settlement } from '../../src/store.ts'

export const HOUR_MS = 3_600_000

/** A client as an application would have it: it gives a server up that hangs. */
export function connectTo(url: string, options: MongoClientOptions = {}): MongoClient {
  return new MongoClient(url, { serverSelectionTimeoutMS: 3_000, socketTimeoutMS: 5_000, ...options })
}

export function claimOf(id: string, over: Partial<ClaimRequest> = {}): ClaimRequest {
  return {
    id,
    token: 'owner',
    fingerprint: 'print',
    leaseMs: HOUR_MS,
    unknownTtlMs: HOUR_MS,
    takeover: false,
    ...over,
  }
}

export function settlementOf(text = 'done', over: Partial<Settlement> = {}): Settlement {
  return {
    outcome: 'committed',
    answer: { status: 201, headers: [['content-type', 'text/plain']], body: new TextEncoder().encode(text) },
    ttlMs: HOUR_MS,
    expiredTtlMs: 0,
    ...over,
  }
}
