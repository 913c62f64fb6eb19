/** What the store uses of the driver's `Collection`; that of `mongodb` 5 to 7 fits, whatever its documents are. */
export interface MongodbCollection {
  readonly dbName: string
  readonly collectionName: string
  findOneAndUpdate(filter: object, update: object[], options: object): Promise<unknown>
  updateOne(filter: object, update: object[], options: object): Promise<{ readonly matchedCount: number }>
  updateMany(filter: object, update: object, options: object): Promise<unknown>
  deleteOne(filter: object, options: object): Promise<{ readonly deletedCount: number }>
  deleteMany(filter: object, options: object): Promise<{ readonly deletedCount: number }>
  find(filter: object, options: object): { toArray(): Promise<unknown[]> }
  createIndex(keys: Record<string, 1>, options: object): Promise<unknown>
  watch(pipeline: object[], options: object): MongodbChangeStream
}

export interface MongodbChangeStream {
  on(event: 'change', listener: (change: never) => void): unknown
  on(event: 'resumeTokenChanged' | 'end' | 'close', listener: () => void): unknown
  on(event: 'error', listener: (error: Error) => void): unknown
  close(): Promise<void>
}

/** What is used of the driver's `MongoClient`. */
export interface MongodbClient<Session extends MongodbSession = MongodbSession> {
  connect(): Promise<unknown>
  startSession(): Session
}

export interface MongodbSession {
  startTransaction(options?: object): void
  inTransaction(): boolean
  commitTransaction(): Promise<unknown>
  abortTransaction(): Promise<unknown>
  endSession(): Promise<void>
}

export interface MongodbWriteConcern {
  /** How many members of the replica set have it before it is acknowledged. */
  readonly w?: number | 'majority' | (string & {})
  /** Whether it is in their journals, on disk. */
  readonly journal?: boolean
}
