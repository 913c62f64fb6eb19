import { Agent, request } from 'node:http'
import type { Child, ServerUsage } from './child.ts'
import { OTHER_BODY, REQUEST_BODY, ROUTE, SLOW_BODY } from './contestants/workload.ts'

/** Speed means nothing without these. `true`: seen to hold, judged by the handler's own count of its runs. */
export interface Probes {
  /** A retry gets the same status and the same bytes, and the handler does not run again. */
  readonly replay: boolean
  /** 64 requests with one new key at once: the handler runs once, and nobody gets another answer or a 5xx. */
  readonly race: boolean
  /** The same key with another body is refused, and the handler does not run. */
  readonly mismatch: boolean
}

const RACERS = 64
const ANSWER_MS_MAX = 5_000

export async function probe(server: Child, port: number): Promise<Probes> {
  const agent = new Agent({ keepAlive: true, maxSockets: RACERS })
  const send = (key: string, body: string) => post(agent, port, key, body)
  const runs = async () => (await server.ask<ServerUsage>({ ask: 'usage' }, ANSWER_MS_MAX)).runs
  try {
    return {
      replay: await isReplayed(send, runs),
      race: await isRunOnce(send, runs),
      mismatch: await isMismatchRefused(send, runs),
    }
  } finally {
    agent.destroy()
  }
}

type Send = (key: string, body: string) => Promise<Answer>
type Runs = () => Promise<number>

interface Answer {
  readonly status: number
  readonly body: Buffer
}

async function isReplayed(send: Send, runs: Runs): Promise<boolean> {
  const key = crypto.randomUUID()
  const before = await runs()
  const first = await send(key, REQUEST_BODY)
  const second = await send(key, REQUEST_BODY)
  return isSame(first, second) && first.status === 201 && (await runs()) === before + 1
}

async function isRunOnce(send: Send, runs: Runs): Promise<boolean> {
  const key = crypto.randomUUID()
  const before = await runs()
  const answers = await Promise.all(Array.from({ length: RACERS }, () => send(key, SLOW_BODY)))
  const last = await send(key, SLOW_BODY)
  const isHonest = answers.every((answer) => (answer.status < 300 ? isSame(answer, last) : answer.status < 500))
  return isHonest && last.status === 201 && (await runs()) === before + 1
}

async function isMismatchRefused(send: Send, runs: Runs): Promise<boolean> {
  const key = crypto.randomUUID()
  const before = await runs()
  await send(key, REQUEST_BODY)
  const other = await send(key, OTHER_BODY)
  return other.status >= 400 && other.status < 500 && (await runs()) === before + 1
}

function isSame(one: Answer, other: Answer): boolean {
  return one.status === other.status && one.body.equals(other.body)
}

function post(agent: Agent, port: number, key: string, body: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
      'idempotency-key': key,
    }
    const options = { host: '127.0.0.1', port, path: ROUTE, method: 'POST', agent, headers, timeout: ANSWER_MS_MAX }
    const sent = request(options, (response) => {
      const chunks: Buffer[] = []
      response.on('data', (chunk: Buffer) => chunks.push(chunk))
      response.on('error', reject)
      response.on('end', () => resolve({ status: response.statusCode ?? 0, body: Buffer.concat(chunks) }))
    })
    sent.on('timeout', () => sent.destroy(new Error(`no answer within ${ANSWER_MS_MAX} ms`)))
    sent.on('error', reject)
    sent.end(body)
  })
}
