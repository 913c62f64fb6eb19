/**
 * Payment decisions. A client asks whether it may pay; the answer is decided once, kept, and written to an audit log.
 *
 * Every step of the pipeline is bound to the operation: the nonce, the decision and the audit event find what an earlier
 * run has left. So a run after a crash goes on where that one stopped, and the contract may say `rerun`.
 */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http'
import { currentRun, idempotency } from '../../src/adapters/node.ts'
import { type AuditLog, requestHash } from '../../src/guards/audit.ts'
import { type NonceGate, nonceGate } from '../../src/guards/nonce.ts'
import { type Clock, type Contract, defineContract, type Run, type Store } from '../../src/index.ts'
import type { Decisions } from './decisions.ts'
import { readEnvelope } from './envelope.ts'

export interface PaymentsOptions {
  readonly store: Store
  readonly contract: Contract
  readonly decisions: Decisions
  readonly audit: AuditLog
  /** Who is behind a bearer token. */
  readonly callers: ReadonlyMap<string, Caller>
  /** Asks somebody else whether the payee may be paid at all. Default: everybody may. */
  readonly screen?: (payee: string) => Promise<boolean>
  readonly clock: Clock
}

export interface Caller {
  readonly name: string
  readonly isOperator?: boolean
}

export const PAYMENTS_PATH = '/v1/payment-requests'
export const AUDIT_PATH = '/v1/audit'

export function createPayments(options: PaymentsOptions): RequestListener {
  const { store, callers, audit, clock } = options
  const contract = defineContract(options.contract, { crash: 'rerun' })
  const keyTtlMs = shortestTtlMs(contract)
  const nonces = nonceGate({ store, scope: 'payment requests', ttlMs: keyTtlMs + NONCE_REST_MS, keyTtlMs, clock })
  const callerOf = ({ headers }: IncomingMessage) => callers.get(headers.authorization?.replace(/^Bearer /i, '') ?? '')

  const pay = idempotency({ store, contract, clock, labels: true, principal: (request) => callerOf(request)?.name })(
    async (request, response) => {
      const run = currentRun(request)
      const caller = callerOf(request)
      if (run === undefined || caller === undefined) return problem(response, 500, 'internal', 'Nobody is asking.')
      // Whoever leaves at once takes the body along: nothing was done, and the retry is the first.
      const body = await bodyOf(request).catch(() => undefined)
      if (body === undefined) return problem(response, 503, 'protocol.unavailable', 'The body could not be read.')
      answer(response, await decide({ ...options, nonces }, run, caller, body))
    },
  )

  return async (request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost')
    const caller = callerOf(request)
    if (caller === undefined) return problem(response, 401, 'auth.unknown', 'Send Authorization: Bearer TOKEN.')
    if (pathname === PAYMENTS_PATH && request.method === 'POST') return pay(request, response)
    if (pathname !== AUDIT_PATH || request.method !== 'GET') {
      return problem(response, 404, 'not_found', `There is POST ${PAYMENTS_PATH} and GET ${AUDIT_PATH}?request_hash=…`)
    }
    if (!caller.isOperator) return problem(response, 403, 'auth.operators_only', 'The audit log is for operators.')
    const entries = await audit.find(searchParams.get('request_hash') ?? '')
    answer(response, { status: 200, body: { head: audit.head, entries } })
  }
}

/** As long as the shorter of the two is kept, the same key is the same operation. */
export function shortestTtlMs({ ttl }: Contract): number {
  return Math.min(ttl.committedMs, ttl.rejectedMs)
}

/** A nonce is refused for this long after its key has expired. */
const NONCE_REST_MS = 30 * 86_400_000

interface Answer {
  readonly status: number
  readonly body: object
}

type Pipeline = PaymentsOptions & { readonly nonces: NonceGate }

/** Schema, nonce, screening, policy, audit. The answer is made of the audit entry: all runs of an operation share it. */
async function decide(pipeline: Pipeline, run: Run, caller: Caller, body: Buffer): Promise<Answer> {
  const { nonces, screen, decisions, audit, clock } = pipeline
  const hash = requestHash(body)
  const envelope = readEnvelope(body)
  if (typeof envelope === 'string') return refusal(422, 'schema.invalid', envelope)
  if (hash === undefined) return refusal(422, 'schema.ambiguous', 'Two readers could understand this JSON differently.')
  try {
    if (!(await nonces.take(envelope.nonce, run, caller.name))) {
      const code = 'protocol.nonce_replay'
      await audit.append(run, { kind: 'refusal', requestHash: hash, data: { code, principal: caller.name } })
      return refusal(409, code, 'This nonce was used by another request. Nothing was decided. Send a new one.')
    }
    if (screen && !(await screen(envelope.payee))) return refusal(422, 'policy.payee_blocked', 'This payee is blocked.')
    const decision = decisions.decide({
      operation: run.id,
      decisionId: run.derive(`decision ${envelope.nonce}`),
      principal: caller.name,
      envelope,
      now: new Date(clock.now()).toISOString(),
    })
    const data = { ...decision, principal: caller.name, ...envelope }
    const entry = await audit.append(run, { kind: 'event', requestHash: hash, data })
    const { decision: decided, reason, decision_id, decided_at } = entry.data
    const recorded = { request_hash: hash, audit_seq: entry.seq }
    return { status: 200, body: { decision: decided, reason, decision_id, decided_at, ...recorded } }
  } catch (error) {
    // The contract takes 503 for "nothing done": the same key runs again, and finds what is there already.
    console.error(error)
    return refusal(503, 'protocol.unavailable', 'This could not be decided now. Retry with the same key and body.')
  }
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  // Its size was bounded before it came here, by the contract.
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks)
}

function refusal(status: number, code: string, detail: string): Answer {
  return { status, body: { type: 'about:blank', status, code, detail } }
}

function problem(response: ServerResponse, status: number, code: string, detail: string): void {
  answer(response, refusal(status, code, detail))
}

function answer(response: ServerResponse, { status, body }: Answer): void {
  const type = status < 400 ? 'application/json' : 'application/problem+json'
  response.writeHead(status, { 'Content-Type': type }).end(JSON.stringify(body))
}
