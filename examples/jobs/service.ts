/** Job submission: a gate in front of a manager. A retry, at whatever gate and in whatever data centre, is one job. */
import { type FetchHandler, idempotency } from '../../src/adapters/fetch.ts'
import { idempotentFetch, parseStructuredKey } from '../../src/client/index.ts'
import { type Answer, type Clock, type Contract, defineContract, type Run, type Store } from '../../src/index.ts'
import { memoryStore } from '../../src/stores/memory.ts'
import type { Job, JobTable } from './job-table.ts'

type Service = (request: Request) => Promise<Response>

export interface ManagerOptions {
  /** Shown in every answer. */
  readonly name: string
  readonly contract: Contract
  /** Its own SQLite file, or that file together with a ledger that all data centres share. */
  readonly ledger: Store
  readonly jobs: JobTable
  /** The managers of the other data centres: each is asked before a submission of a dead manager is run again. */
  readonly peers?: readonly string[]
  /** Why a job is not taken, if it is not. */
  readonly admit?: (spec: JobSpec) => Rejection | undefined | Promise<Rejection | undefined>
  readonly clock?: Clock
}

export interface JobSpec {
  readonly task?: unknown
  readonly [field: string]: unknown
}

export interface Rejection {
  /** 422: it can never be run. 429: there is no room for it. */
  readonly status: 422 | 429
  readonly reason: string
}

/** Decides. What it has reserved is in its ledger, on disk, before the job is made, and the answer before it is given. */
export function createManager(options: ManagerOptions): Service {
  const { name, contract, ledger, jobs, peers = [], admit = admitTask, clock } = options
  let received = 0

  const submit: FetchHandler = async (request, run) => {
    const { job_id, ...spec } = await bodyOf(request)
    const rejection = await admit(spec)
    if (rejection) return Response.json({ rejected: rejection.reason, manager: name }, { status: rejection.status })
    const { id, key, attempt } = run as Run
    const job = jobs.add({ id, key, attempt }, { id: String(job_id ?? (run as Run).derive('job')), spec })
    if (!job) return Response.json({ error: 'A later attempt has taken this submission over.' }, { status: 500 })
    return new Response(accepted(job), { status: 201, headers: JSON_TYPE })
  }

  /** An earlier attempt ended without a word. Whoever may have made the job is asked, and promises not to make it later. */
  const reconcile = async ({ id, attempt, signal }: Run): Promise<Answer | 'rerun' | 'unknown'> => {
    const own = jobs.fence(id, attempt)
    const found = own ? [own] : await Promise.all(peers.map((peer) => fenceAt(peer, id, attempt, signal)))
    const job = found.find((each) => typeof each === 'object')
    if (job) return { status: 201, headers: Object.entries(JSON_TYPE), body: new TextEncoder().encode(accepted(job)) }
    return found.includes('unreachable') ? 'unknown' : 'rerun'
  }

  const protectedSubmit = idempotency({
    store: ledger,
    contract,
    principal: clientOf,
    payload: specOf,
    labels: true,
    reconcile,
    ...(clock && { clock }),
  })(submit)
  return async (request) => {
    switch (`${request.method} ${new URL(request.url).pathname}`) {
      case 'POST /jobs':
        received += 1
        return badKey(request) ?? protectedSubmit(request)
      case 'GET /jobs':
        return Response.json(jobs.all())
      case 'GET /stats':
        return Response.json({ manager: name, received, jobs: jobs.count() })
      case 'GET /ledger':
        return Response.json((await ledger.list()).map((record) => ({ key: record.labels.key, ...statusOf(record) })))
      case 'POST /fences': {
        const { id, attempt } = (await request.json()) as { id: string; attempt: number }
        return Response.json({ job: jobs.fence(id, attempt) ?? null })
      }
      default:
        return Response.json({ error: 'There is POST /jobs, GET /jobs, GET /ledger and GET /stats.' }, { status: 404 })
    }
  }
}

export interface GateOptions {
  /** Where the manager is. */
  readonly manager: string
  readonly contract: Contract
  readonly cache: { readonly recordsMax: number; readonly sweepEveryMs: number }
  readonly clock?: Clock
}

/** The cache of a gate, for those who look into it. */
export interface Gate {
  readonly fetch: Service
  readonly cache: Store
  stop(): Promise<void>
}

/**
 * Answers from memory what it knows, and forwards the rest: one call to the manager for all who ask at the same time. It
 * decides nothing. Its memory may be lost at any moment, because the manager would say the same again.
 */
export function createGate({ manager, contract, cache, clock }: GateOptions): Gate {
  const store = memoryStore({ recordsMax: cache.recordsMax, ...(clock && { clock }) })
  // The manager knows the key, too, so sending it once more is safe; but only when nothing at all came back.
  const send = idempotentFetch({ retries: 2, backoffMs: 50, shouldRetry: ({ response }) => response === undefined })

  const forward: FetchHandler = async (request, run) => {
    try {
      const { pathname, search } = new URL(request.url)
      const hasBody = request.method !== 'GET' && request.method !== 'HEAD'
      const body = hasBody ? await request.text() : undefined
      const signal = run?.signal ?? request.signal
      const init = { method: request.method, headers: forwarded(request.headers), signal }
      return copyOf(await send(new URL(pathname + search, manager), body === undefined ? init : { ...init, body }))
    } catch (error) {
      const detail = `The manager did not answer: ${(error as Error).message}`
      return Response.json({ code: 'manager-unreachable', detail }, { status: 502, headers: { 'retry-after': '1' } })
    }
  }

  const protectedForward = idempotency({
    store,
    contract: gateContract(contract),
    principal: clientOf,
    payload: specOf,
    ...(clock && { clock }),
  })(forward)
  const sweeper = setInterval(() => void store.sweep(), cache.sweepEveryMs).unref()
  return {
    cache: store,
    fetch: async (request) => badKey(request) ?? protectedForward(request),
    async stop() {
      clearInterval(sweeper)
      await store.close()
    },
  }
}

/** What the gate keeps are the manager's answers, and nothing that the manager itself would say differently later. */
export function gateContract(contract: Contract): Contract {
  return defineContract(contract, {
    name: `${contract.name}-gate`,
    // 409 and 5xx are what the manager says when it cannot say: still running, unknown, its ledger cannot be reached.
    answers: { keep: ['2xx', '3xx', '4xx'], release: [408, 409, 425, '5xx'], unknown: [] },
    // A forwarding that broke off is forwarded again: the manager finds out what became of it.
    crash: 'rerun',
  })
}

/** The states under the names that the document gives them. */
export function statusOf(record: { readonly state: string; readonly outcome?: string }): { readonly status: string } {
  if (record.state === 'running') return { status: 'PENDING' }
  return { status: record.state === 'settled' ? String(record.outcome).toUpperCase() : 'EXPIRED' }
}

const JSON_TYPE = { 'content-type': 'application/json' }

function accepted({ id }: Job): string {
  return JSON.stringify({ job_id: id, state: 'queued' })
}

/** What is asked of every job. */
export function admitTask({ task }: JobSpec): Rejection | undefined {
  return typeof task === 'string' ? undefined : { status: 422, reason: 'A job needs a task, as text.' }
}

/** The client's name is in its key. In earnest, take it from the authentication and compare the two. */
function clientOf(request: Request): string | undefined {
  const parsed = parseStructuredKey(request.headers.get('idempotency-key') ?? '')
  return parsed.state === 'valid' ? parsed.clientId : undefined
}

function badKey(request: Request): Response | undefined {
  const key = request.headers.get('idempotency-key')
  // No key at all is the contract's own matter.
  const parsed = request.method === 'POST' && key !== null ? parseStructuredKey(key) : undefined
  if (parsed?.state !== 'invalid') return undefined
  return Response.json({ code: 'key-invalid', detail: parsed.reason }, { status: 400 })
}

/** The job's id is not what a submission is about: a retry may bring another, and is still the same submission. */
async function specOf(request: Request): Promise<unknown> {
  const { job_id: _, ...spec } = await bodyOf(request)
  return spec
}

/** What is not an object is a job without a task, and is rejected as one. */
async function bodyOf(request: Request): Promise<JobSpec & { readonly job_id?: unknown }> {
  const text = await request.text()
  try {
    const body: unknown = JSON.parse(text)
    if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as JobSpec
    return { malformed: text }
  } catch {
    return { malformed: text }
  }
}

async function fenceAt(
  peer: string,
  id: string,
  attempt: number,
  signal: AbortSignal,
): Promise<Job | 'none' | 'unreachable'> {
  try {
    const init = { method: 'POST', body: JSON.stringify({ id, attempt }), signal }
    const response = await fetch(new URL('/fences', peer), init)
    if (!response.ok) return 'unreachable'
    const { job } = (await response.json()) as { job: Job | null }
    return job ?? 'none'
  } catch {
    return 'unreachable'
  }
}

function forwarded(headers: Headers): Headers {
  const kept = new Headers()
  for (const name of ['idempotency-key', 'content-type']) {
    const value = headers.get(name)
    if (value !== null) kept.set(name, value)
  }
  return kept
}

/** Its body was decoded on the way here. */
function copyOf({ status, headers, body }: Response): Response {
  const kept = new Headers(headers)
  for (const name of ['content-encoding', 'content-length', 'transfer-encoding', 'connection', 'keep-alive', 'date']) {
    kept.delete(name)
  }
  return new Response(body, { status, headers: kept })
}
