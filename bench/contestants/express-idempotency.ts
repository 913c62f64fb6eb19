import express, { type ErrorRequestHandler, type Request, type RequestHandler } from 'express'
import { serveExpress } from './bare.ts'
import type { Started } from './index.ts'
import { peer } from './peers.ts'
import { capturePayment, type PaymentRequest, ROUTE } from './workload.ts'

interface Library {
  idempotency(): RequestHandler
  getSharedIdempotencyService(): { isHit(request: Request): boolean }
}

export async function start(): Promise<Started> {
  const { idempotency, getSharedIdempotencyService } = peer<Library>('express-idempotency')
  let layer = idempotency()
  let service = getSharedIdempotencyService()
  const app = express()
  app.use(express.json())
  app.use((request, response, next) => layer(request, response, next))
  app.post(ROUTE, async (request, response) => {
    // The layer has answered already, and calls the handler all the same: this check is the user's to make.
    if (service.isHit(request)) return
    response.status(201).json(await capturePayment(request.body as PaymentRequest))
  })
  app.use(asStatus)
  const served = await serveExpress(app)
  const reset = () => {
    layer = idempotency()
    service = getSharedIdempotencyService()
  }
  return { ...served, reset }
}

/** Its refusals come as errors with the status already set; this spares it Express's page with a stack trace. */
const asStatus: ErrorRequestHandler = (error: Error, _request, response, _next) => {
  if (!response.headersSent) response.json({ message: error.message })
}
