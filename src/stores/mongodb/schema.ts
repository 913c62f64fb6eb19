import { OncekeyError } from '../../error.ts'
import type { MongodbCollection } from './client.ts'
import { codeOf, isLostRace } from './faults.ts'

/** The indexes of the collection, for those who make them themselves. */
export const INDEXES: readonly MongodbIndex[] = [
  // The server removes what is gone, about once a minute; until then it counts as absent all the same.
  { key: { goneAt: 1 }, options: { name: 'oncekey_gone', expireAfterSeconds: 0 } },
  { key: { stripAt: 1 }, options: { name: 'oncekey_strip', sparse: true } },
]

export interface MongodbIndex {
  readonly key: Readonly<Record<string, 1>>
  readonly options: {
    readonly name: string
    readonly expireAfterSeconds?: number
    readonly sparse?: boolean
    readonly unique?: boolean
    readonly partialFilterExpression?: object
  }
}

/** The id is unique in any case; this says the same in the words of the operation, to people and to other writers. */
export function uniqueIndex(fields: readonly string[]): readonly MongodbIndex[] {
  const [first] = fields
  if (first === undefined) return []
  const key = Object.fromEntries(fields.map((field) => [field, 1 as const]))
  const partialFilterExpression = { [first]: { $exists: true } }
  return [{ key, options: { name: `oncekey_${fields.join('_')}`, unique: true, partialFilterExpression } }]
}

/** Of the document form in `document.ts`. */
const SCHEMA = 1
/** Not an id that the engine makes. It has no `goneAt`, so that no list and no sweep meets it. */
const SCHEMA_ID = 'oncekey:schema'
const KEEP_SCHEMA = [{ $set: { schema: { $ifNull: ['$schema', SCHEMA] } } }]
const TRIES_MAX = 10

/**
 * Done once, before the first verb, by any number of processes at once. Shows that the server can do what the store
 * stands on, and that the write concern can be satisfied, before anything is claimed.
 */
export async function prepare(
  collection: MongodbCollection,
  options: object,
  indexes: readonly MongodbIndex[],
): Promise<void> {
  const { schema, now } = await keepSchema(collection, options)
  if (!(now instanceof Date)) throw incapable('it does not know $$NOW')
  if (schema !== SCHEMA) {
    const where = `${collection.dbName}.${collection.collectionName}`
    throw new OncekeyError(
      'store-incompatible',
      `The collection ${where} has schema ${schema}; this oncekey knows ${SCHEMA}. A newer oncekey has written it: ` +
        'update this one too, or use another collection.',
    )
  }
  for (const { key, options: index } of indexes) await collection.createIndex({ ...key }, { ...index })
}

async function keepSchema(collection: MongodbCollection, options: object): Promise<{ schema: unknown; now: unknown }> {
  for (let tries = 1; ; tries++) {
    try {
      const result = (await collection.findOneAndUpdate({ _id: SCHEMA_ID }, KEEP_SCHEMA, {
        ...options,
        upsert: true,
        returnDocument: 'after',
        includeResultMetadata: true,
        projection: { schema: 1, now: '$$NOW' },
      })) as { readonly value: { readonly schema: unknown; readonly now: unknown } }
      return result.value
    } catch (error) {
      if (NO_PIPELINE_CODES.includes(codeOf(error))) throw incapable('it refuses an update by a pipeline', error)
      if (!isLostRace(error) || tries === TRIES_MAX) throw error
    }
  }
}

/** FailedToParse, TypeMismatch, CommandNotFound, NotImplemented. */
const NO_PIPELINE_CODES: readonly number[] = [9, 14, 59, 238]

function incapable(what: string, cause?: unknown): OncekeyError {
  return new OncekeyError(
    'store-incompatible',
    `This server speaks MongoDB’s protocol but cannot hold a claim: ${what}. Nothing was recorded. Use MongoDB 5 or later; ` +
      'FerretDB 1 is known to let two owners win one record.',
    { cause },
  )
}
