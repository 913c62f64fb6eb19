/**
 * How long POST /api/v1/traces takes at 64 connections, every trace a new one, and what its key costs.
 *
 *     node examples/traces/latency.ts [--requests N] [--rate N]
 *
 * Once at a rate that agents may have together (100 a second, unless told otherwise), and once as fast as 64 connections
 * can: then all of them wait for the one that is served, and the times say how much this machine can do.
 *
 * The load comes from a thread of its own, on the same machine as the service and MongoDB.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { Agent, request as send } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'
import type { Request } from 'express'
import { MongoClient } from 'mongodb'
import { traces } from '../../src/contracts/index.ts'
import { defineContract } from '../../src/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { needed } from '../kit.ts'
import { autoKey, createTraces } from './service.ts'
import { closed, listen, ORGANIZATIONS } from './site.ts'

export interface LatencyReport {
  readonly mongodb: string
  readonly connections: number
  readonly requests: number
  /** Answers other than 201. */
  readonly failures: number
  /** Requests in a second; `undefined`: as fast as it goes. */
  readonly rate: number | undefined
  readonly perSecond: number
  readonly p50Ms: number
  readonly p95Ms: number
  readonly p99Ms: number
  /** One auto key of such a body. */
  readonly keyMicros: number
}

const CONNECTIONS = 64
const REQUESTS_DEFAULT = 2_000
const RATE_DEFAULT = 100
const WARM_UP = 0.2

export interface LatencyOptions {
  readonly mongodbUrl: string
  readonly requests: number
  readonly rate?: number | undefined
}

export async function measure(options: LatencyOptions): Promise<LatencyReport> {
  const client = new MongoClient(options.mongodbUrl)
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-latency-'))
  const db = client.db(`latency_${process.pid}`)
  const service = await createTraces({
    client,
    db,
    spoolFile: join(folder, 'spool.jsonl'),
    organizations: ORGANIZATIONS,
    storeMsMax: 10_000,
    contract: defineContract(traces, { name: 'traces-latency' }),
  })
  const { server, url } = await listen(service.app)
  try {
    const { version } = await db.admin().serverInfo()
    const { times, failures, perSecond } = await load({ ...options, url })
    const at = (share: number) => rounded(times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0)
    return {
      mongodb: String(version),
      connections: CONNECTIONS,
      requests: options.requests,
      failures,
      rate: options.rate,
      perSecond: rounded(perSecond),
      p50Ms: at(0.5),
      p95Ms: at(0.95),
      p99Ms: at(0.99),
      keyMicros: keyCost(),
    }
  } finally {
    await closed(server)
    await service.close()
    await db.dropDatabase()
    await client.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

interface Load {
  /** Milliseconds, the shortest first. */
  readonly times: readonly number[]
  readonly failures: number
  readonly perSecond: number
}

interface LoadOptions {
  readonly url: string
  readonly requests: number
  readonly rate?: number | undefined
}

function load({ url, requests, rate }: LoadOptions): Promise<Load> {
  return new Promise((resolve, reject) => {
    const worker = new Worker(new URL(import.meta.url), { workerData: { url, requests, rate }, execArgv: [] })
    worker.once('message', resolve)
    worker.once('error', reject)
  })
}

/** Runs in the thread: so many connections, each with one request at a time. */
async function generate({ url, requests, rate }: LoadOptions): Promise<Load> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS })
  const times: number[] = []
  const total = Math.ceil(requests * (1 + WARM_UP))
  const warmUp = total - requests
  let failures = 0
  let sent = 0
  const beganMs = performance.now()
  const client = async () => {
    for (let number = sent++; number < total; number = sent++) {
      // Counted from when it was due: a late start is part of what its sender waits for.
      const dueMs = rate === undefined ? performance.now() : beganMs + (number * 1_000) / rate
      await until(dueMs)
      const status = await post(agent, url, bodyOf(number))
      if (number >= warmUp) times.push(performance.now() - dueMs)
      if (status !== 201) failures++
    }
  }
  await Promise.all(Array.from({ length: CONNECTIONS }, client))
  agent.destroy()
  const perSecond = (total * 1_000) / (performance.now() - beganMs)
  return { times: times.sort((a, b) => a - b), failures, perSecond }
}

async function until(dueMs: number): Promise<void> {
  const delayMs = dueMs - performance.now()
  if (delayMs > 0) await new Promise((resolve) => setTimeout(resolve, delayMs))
}

function post(agent: Agent, url: string, body: string): Promise<number> {
  const headers = { 'x-api-key': 'key-acme', 'content-type': 'application/json' }
  return new Promise((resolve, reject) => {
    const request = send(`${url}/api/v1/traces`, { agent, method: 'POST', headers }, (response) => {
      response.resume().once('end', () => resolve(response.statusCode ?? 0))
    })
    request.once('error', reject).end(body)
  })
}

function bodyOf(number: number): string {
  const metadata = { model: 'm-1', tokens: 1_234, note: 'x'.repeat(400) }
  return JSON.stringify({ agentId: 'agent-1', decision: 'approve', number, metadata })
}

function keyCost(): number {
  const body: unknown = JSON.parse(bodyOf(1))
  const request = { body, res: { locals: { organizationId: 'acme' } } } as unknown as Request
  const rounds = 5_000
  const startMs = performance.now()
  for (let i = 0; i < rounds; i++) autoKey(request)
  return rounded(((performance.now() - startMs) * 1_000) / rounds)
}

function rounded(value: number): number {
  return Math.max(0.01, Math.round(value * 100) / 100)
}

if (!isMainThread && parentPort && workerData?.url) {
  parentPort.postMessage(await generate(workerData))
} else if (import.meta.main) {
  const { values } = parseArgs({ options: { requests: { type: 'string' }, rate: { type: 'string' } } })
  const [requests, rate] = [Number(values.requests ?? REQUESTS_DEFAULT), Number(values.rate ?? RATE_DEFAULT)]
  if (!(requests >= 1 && rate >= 1)) throw new Error('--requests and --rate must be numbers of 1 or more')
  const mongod = needed(await findMongod())
  for (const pace of [rate, undefined]) {
    const report = await measure({ mongodbUrl: mongod.url, requests, rate: pace })
    const { p50Ms, p95Ms, p99Ms, perSecond, failures, keyMicros } = report
    console.log(pace === undefined ? 'as fast as it goes' : `at ${pace} requests a second`)
    console.log(`  ${CONNECTIONS} connections, ${requests} requests, ${perSecond} a second, ${failures} failed`)
    console.log(`  p50 ${p50Ms} ms, p95 ${p95Ms} ms (budget 25 ms), p99 ${p99Ms} ms; key hash ${keyMicros} µs`)
  }
  await mongod.stop()
}
