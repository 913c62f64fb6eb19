import fastify from 'fastify'
import { serveFastify } from './bare.ts'
import type { Started } from './index.ts'
import { peer } from './peers.ts'
import { capturePayment, type Payment, type PaymentRequest, ROUTE } from './workload.ts'

interface StoredRecord {
  readonly idempotencyKey: string
  isExpired(): boolean
}

interface Persistence {
  _putRecord(record: StoredRecord): Promise<void>
  _getRecord(key: string): Promise<StoredRecord>
  _updateRecord(record: StoredRecord): Promise<void>
  _deleteRecord(record: StoredRecord): Promise<void>
}

interface LambdaContext {
  getRemainingTimeInMillis(): number
}

type Capture = (key: string, context: LambdaContext, body: PaymentRequest) => Promise<Payment>

interface Library {
  makeIdempotent(work: Capture, options: { persistenceStore: object; config: object }): Capture
  readonly IdempotencyConfig: new (options: object) => object
  readonly IdempotencyItemAlreadyExistsError: new (message: string, existing: StoredRecord) => Error
  readonly IdempotencyItemNotFoundError: new (message: string) => Error
  readonly IdempotencyAlreadyInProgressError: new () => Error
}

/** It wraps functions, not requests: the handler hands it the key, and maps its one refusal to a 409. */
export async function start(): Promise<Started> {
  const library = peer<Library>('@aws-lambda-powertools/idempotency')
  const config = new library.IdempotencyConfig({ throwOnNoIdempotencyKey: true, expiresAfterSeconds: 86_400 })
  const capture = library.makeIdempotent((_key, _context, body) => capturePayment(body), {
    persistenceStore: memoryPersistence(library),
    config,
  })
  // Without a context it warns on the console at every call.
  const context: LambdaContext = { getRemainingTimeInMillis: () => 30_000 }
  const app = fastify()
  app.post<{ Body: PaymentRequest }>(ROUTE, async (request, reply) => {
    try {
      const payment = await capture(String(request.headers['idempotency-key']), context, request.body)
      reply.code(201)
      return payment
    } catch (error) {
      if (!(error instanceof library.IdempotencyAlreadyInProgressError)) throw error
      return reply.code(409).send({ code: 'in-progress' })
    }
  })
  return serveFastify(app)
}

/** The smallest honest layer: one atomic step to put, and the record that stands is handed over when there is one. */
function memoryPersistence(library: Library): Persistence {
  const { BasePersistenceLayer } = peer<{ BasePersistenceLayer: new () => object }>(
    '@aws-lambda-powertools/idempotency/persistence',
  )
  const records = new Map<string, StoredRecord>()
  return new (class extends BasePersistenceLayer implements Persistence {
    async _putRecord(record: StoredRecord): Promise<void> {
      const existing = records.get(record.idempotencyKey)
      if (existing !== undefined && !existing.isExpired()) {
        throw new library.IdempotencyItemAlreadyExistsError('This key is in use.', existing)
      }
      records.set(record.idempotencyKey, record)
    }

    async _getRecord(key: string): Promise<StoredRecord> {
      const record = records.get(key)
      if (record === undefined) throw new library.IdempotencyItemNotFoundError('There is no such record.')
      return record
    }

    async _updateRecord(record: StoredRecord): Promise<void> {
      records.set(record.idempotencyKey, record)
    }

    async _deleteRecord(record: StoredRecord): Promise<void> {
      records.delete(record.idempotencyKey)
    }
  })()
}
