import { MongoClient, type MongoClientOptions } from 'mongodb'

export { HOUR_MS, ownersClaimOf as claimOf, settlementOf } from './requests.ts'

/** A client as an application would have it: it gives a server up that hangs. */
export function connectTo(url: string, options: MongoClientOptions = {}): MongoClient {
  return new MongoClient(url, { serverSelectionTimeoutMS: 3_000, socketTimeoutMS: 5_000, ...options })
}
