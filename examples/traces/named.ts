import type { Express } from 'express'
import { type Db, MongoServerError } from 'mongodb'
import { invalid, organizationOf } from './http.ts'

/** What operators make by hand. No idempotency here: a name is unique in its organization, and that is enough. */
const KINDS = { policies: 'policies', 'approval-patterns': 'approval_patterns', 'alert-rules': 'alert_rules' } as const

export async function prepareNamed(db: Db): Promise<void> {
  for (const collection of Object.values(KINDS)) {
    await db.collection(collection).createIndex({ organizationId: 1, name: 1 }, { unique: true })
  }
}

export function mountNamed(app: Express, db: Db): void {
  for (const [path, collection] of Object.entries(KINDS)) {
    const things = db.collection(collection)
    app.post(`/api/v1/${path}`, async (request, response) => {
      const name: unknown = request.body?.name
      if (typeof name !== 'string' || name === '') {
        return void response.status(400).json(invalid('name must be a string that is not empty.'))
      }
      const thing = { name, organizationId: organizationOf(request) }
      try {
        await things.insertOne({ ...thing })
      } catch (error) {
        if (!(error instanceof MongoServerError) || error.code !== DUPLICATE_KEY) throw error
        return void response.status(400).json(invalid(`There is one of this name already: ${JSON.stringify(name)}.`))
      }
      response.status(201).json(thing)
    })
    app.get(`/api/v1/${path}`, async (request, response) => {
      const found = things.find(
        { organizationId: organizationOf(request) },
        { projection: { _id: 0 }, limit: LIST_MAX },
      )
      response.json(await found.toArray())
    })
    app.delete(`/api/v1/${path}/:name`, async (request, response) => {
      const filter = { organizationId: organizationOf(request), name: request.params.name }
      const { deletedCount } = await things.deleteOne(filter)
      response.status(deletedCount === 0 ? 404 : 204).end()
    })
  }
}

const DUPLICATE_KEY = 11_000
const LIST_MAX = 1_000
