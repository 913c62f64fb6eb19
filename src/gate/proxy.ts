import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { OncekeyError } from '../error.ts'
import { currentRun, headerValues, protectNode } from '../http/node.ts'
import { isRefusal, Protection, type RequestFacts } from '../http/protection.ts'
import { renderRefusal } from '../http/refusals.ts'
import { LinkedList } from '../linked-list.ts'
import { type Refusal, refusal } from '../refusal.ts'
import type { Store } from '../store.ts'
import { readBody } from './body.ts'
import { within } from './bounds.ts'
import type { ConflictPaths } from './conflicts.ts'
import { publishGate, type ShedReason } from './events.ts'
import { Exchange } from './exchange.ts'
import { Forward } from './forward.ts'
import { type HeadRules, requestFault, upstreamHeaders } from './head.ts'
import type { GateLimits } from './limits.ts'
import { passThrough } from './pass.ts'
import { type PrincipalResolver, type PrincipalSource, principalResolver } from './principals.ts'
import { FAILED, NO_PRINCIPAL, type Problem, SHED, STOPPING, sendProblem } from './problems.ts'
import { checkLimits, type RouteRule, Routes } from './routes.ts'
import { SHADOW_PREFIX, type Shadow } from './shadow.ts'
import type { Budget } from './shedding.ts'
import { passUpgrade } from './upgrade.ts'
import type { Upstream } from './upstream.ts'

export interface ProxyParts {
  readonly store: Store
  readonly contract: Contract
  readonly routes: readonly RouteRule[]
  readonly principal: 'public' | PrincipalSource
  readonly limits: GateLimits
  readonly budget: Budget
  readonly upstream: Upstream
  readonly shadow: Shadow | undefined
  readonly conflicts: ConflictPaths | undefined
  readonly host: string | undefined
  readonly trustForwarded: boolean
}

/** One place where requests meet one contract. */
interface Place {
  readonly protection: Protection<Exchange>
  /** `undefined`: the path is the route. */
  readonly template: string | undefined
  readonly enabled: boolean
  readonly timeoutMs: number
}

/** Decides about each request: refuse it, shed it, stream it through, or run it as a protected operation. */
export class GateProxy {
  readonly exchanges: LinkedList<Exchange> = new LinkedList<Exchange>()
  /** From now on every request is refused, and every connection ends with its answer. */
  isStopping = false
  /** Called whenever an exchange has ended. */
  onEnd: () => void = () => {}
  readonly #parts: ProxyParts
  readonly #places: Place[] = []
  readonly #routes: Routes<Place>
  readonly #elsewhere: Place
  readonly #resolve: PrincipalResolver | undefined
  readonly #rules: HeadRules

  constructor(parts: ProxyParts) {
    this.#parts = parts
    this.#resolve = principalResolver(parts.principal)
    this.#elsewhere = this.#place(parts.contract, {})
    this.#routes = new Routes(parts.routes, (rule) => this.#place(rule.contract ?? parts.contract, rule))
    const kept = new Set(this.#places.map(({ protection }) => protection.contract.key.header.toLowerCase()))
    if (parts.principal !== 'public' && parts.principal.kind === 'header') kept.add(parts.principal.name.toLowerCase())
    this.#rules = { host: parts.host, trustForwarded: parts.trustForwarded, kept }
  }

  #place(contract: Contract, { template, enabled = true, limits = {} }: Partial<RouteRule>): Place {
    checkLimits(limits, `routes ${template}: limits`)
    const { upstreamMsMax = this.#parts.limits.upstreamMsMax, ...bytes } = limits
    const { store, principal, shadow } = this.#parts
    if (contract.crash === 'reconcile') {
      throw new OncekeyError(
        'config-invalid',
        `contract "${contract.name}": crash is "reconcile", but the gate has no hook to ask; choose "refuse" or "rerun"`,
      )
    }
    const prefix = shadow ? SHADOW_PREFIX : ''
    const protection = new Protection<Exchange>({
      store,
      contract: Object.keys(bytes).length > 0 ? defineContract(contract, { limits: bytes }) : contract,
      principal: principal === 'public' && !shadow ? 'public' : (exchange) => prefix + exchange.principal,
      labels: true,
    })
    const place: Place = { protection, template, enabled, timeoutMs: upstreamMsMax }
    this.#places.push(place)
    return place
  }

  serve(incoming: IncomingMessage, response: ServerResponse, expectsContinue: boolean): void {
    const fault = requestFault(incoming)
    if (fault) return this.#refuse(response, fault)
    const { budget, shadow } = this.#parts
    if (this.isStopping) return this.#shed(response, 'stopping', STOPPING)
    if (!budget.enter()) return this.#shed(response, 'in-flight', SHED)
    const exchange = new Exchange(incoming, response, budget, this.#ended)
    this.exchanges.add(exchange)
    const { method = 'GET', url: target = '/' } = incoming
    const query = target.indexOf('?')
    const path = query < 0 ? target : target.slice(0, query)
    const place = this.#routes.find(method, path) ?? this.#elsewhere
    const { protection, template, enabled } = place
    if (!enabled || !protection.covers(method)) return this.#pass(exchange, place, expectsContinue)
    const keys = headerValues(incoming, protection.contract.key.header)
    const facts: RequestFacts = { method, target, route: template ?? path, keys }
    if (shadow) return this.#observe(exchange, place, facts, expectsContinue, shadow)
    const key = protection.key(exchange, facts)
    if (key === undefined) return this.#pass(exchange, place, expectsContinue)
    if (isRefusal(key)) return this.#protect(exchange, place, facts)
    const principal = this.#resolve?.(incoming)
    if (principal && 'missing' in principal) return this.#refuse(response, NO_PRINCIPAL(principal.missing))
    exchange.principal = principal?.name ?? 'public'
    this.#receive(exchange, place, facts, expectsContinue)
  }

  upgrade(incoming: IncomingMessage, socket: Duplex, head: Buffer): void {
    passUpgrade(incoming, socket, head, this.#parts.upstream, this.#rules)
  }

  /** Resolves when the store has all that was promised to it, or after so long. */
  async idle(msMax: number): Promise<void> {
    await within(Promise.all(this.#places.map(({ protection }) => protection.engine.idle())), msMax)
  }

  readonly #ended = (exchange: Exchange): void => {
    this.exchanges.delete(exchange)
    this.#parts.budget.leave()
    if (this.isStopping) this.onEnd()
  }

  /** The whole body first: it is part of what the operation is. */
  #receive(exchange: Exchange, place: Place, facts: RequestFacts, expectsContinue: boolean): void {
    const { incoming, response } = exchange
    const { headers } = incoming
    if (headers['transfer-encoding'] === undefined && (headers['content-length'] ?? '0') === '0') {
      return this.#protect(exchange, place, facts)
    }
    const { contract } = place.protection
    readBody(exchange, contract.limits.requestBytesMax, (end) => {
      switch (end) {
        case 'whole':
          return this.#protect(exchange, place, facts)
        case 'too-large':
          return sendRefusal(response, contract, refusal('body-too-large'))
        case 'no-room':
          return this.#shed(response, 'buffered-bytes', SHED)
        case 'gone':
          return undefined
      }
    })
    if (expectsContinue && exchange.receivingSinceMs !== undefined) response.writeContinue()
  }

  #protect(exchange: Exchange, place: Place, facts: RequestFacts): void {
    const { incoming, response } = exchange
    const { upstream, conflicts } = this.#parts
    // Until the store has answered: a client that leaves meanwhile must not take the body along.
    exchange.hold()
    let isHeld = true
    const letGo = (): void => {
      if (isHeld) exchange.letGo()
      isHeld = false
    }
    const proceed = (): void => {
      const { body = null } = exchange
      const run = currentRun(incoming)
      if (run && body) conflicts?.remember(run.id, body, incoming.headers['content-type'] ?? '')
      const forward = new Forward(exchange, run && place.protection.contract.limits.answerBytesMax)
      letGo()
      const headers = upstreamHeaders(incoming, this.#rules)
      upstream.dispatch(facts.method, facts.target, headers, body, place.timeoutMs, forward)
    }
    const takeOver = (refused?: Refusal, id?: string): void => {
      if (this.isStopping) response.shouldKeepAlive = false
      if (refused?.code === 'key-conflict' && id !== undefined) this.#tellChanges(exchange, id)
      letGo()
    }
    const { body: parsedBody } = exchange
    protectNode(
      place.protection,
      { request: exchange, incoming, response, facts, parsedBody, proceed, takeOver, outlivesClient: true },
      (error) => {
        this.#failed(response, error)
        letGo()
      },
    )
  }

  #observe(exchange: Exchange, place: Place, facts: RequestFacts, expectsContinue: boolean, shadow: Shadow): void {
    const principal = this.#resolve?.(exchange.incoming)
    exchange.principal = principal ? ('name' in principal ? principal.name : '') : 'public'
    const observer = shadow.observe(exchange, place.protection, facts)
    const { timeoutMs } = place
    passThrough(exchange, this.#parts.upstream, { rules: this.#rules, timeoutMs, expectsContinue, observer })
  }

  #pass(exchange: Exchange, { timeoutMs }: Place, expectsContinue: boolean): void {
    passThrough(exchange, this.#parts.upstream, { rules: this.#rules, timeoutMs, expectsContinue })
  }

  #tellChanges({ body, incoming }: Exchange, id: string): void {
    const changes = this.#parts.conflicts?.compare(id, body, incoming.headers['content-type'] ?? '')
    if (changes) publishGate({ type: 'conflict-paths', id, changes })
  }

  #refuse(response: ServerResponse, problem: Problem): void {
    publishGate({ type: 'refused-request', status: problem.status, reason: problem.detail })
    sendProblem(response, problem)
  }

  #shed(response: ServerResponse, reason: ShedReason, problem: Problem): void {
    this.#parts.budget.count(reason)
    sendProblem(response, problem)
  }

  #failed(response: ServerResponse, error: unknown): void {
    publishGate({ type: 'refused-request', status: 500, reason: String(error) })
    if (response.headersSent) response.destroy()
    else sendProblem(response, FAILED)
  }
}

function sendRefusal(response: ServerResponse, contract: Contract, refused: Refusal): void {
  const { status, headers, body } = renderRefusal(contract, refused)
  for (const [name, value] of headers) response.setHeader(name, value)
  response.setHeader('Connection', 'close')
  response.statusCode = status
  response.end(body)
}
