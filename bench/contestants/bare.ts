import { createServer } from 'node:http'
import express, { type Express } from 'express'
import fastify, { type FastifyInstance } from 'fastify'
import { listen, type Started, shut } from './index.ts'
import { capturePayment, type PaymentRequest, ROUTE } from './workload.ts'

export async function startFastify(): Promise<Started> {
  const app = fastify()
  addFastifyRoute(app)
  return serveFastify(app)
}

export async function startExpress(): Promise<Started> {
  const app = express()
  app.use(express.json())
  addExpressRoute(app)
  return serveExpress(app)
}

export function addFastifyRoute(app: FastifyInstance): void {
  app.post<{ Body: PaymentRequest }>(ROUTE, async (request, reply) => {
    const payment = await capturePayment(request.body)
    reply.code(201)
    return payment
  })
}

export function addExpressRoute(app: Express): void {
  app.post(ROUTE, async (request, response) => {
    response.status(201).json(await capturePayment(request.body as PaymentRequest))
  })
}

export async function serveFastify(app: FastifyInstance): Promise<Started> {
  await app.listen({ host: '127.0.0.1', port: 0 })
  const address = app.server.address()
  if (address === null || typeof address === 'string') throw new Error('Fastify listens nowhere.')
  return { port: address.port, close: () => app.close() }
}

export async function serveExpress(app: Express): Promise<Started> {
  const server = createServer(app)
  const port = await listen(server)
  return { port, close: () => shut(server) }
}
