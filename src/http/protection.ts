import type { Clock } from '../clock.ts'
import { type Contract, headerFilter } from '../contract.ts'
import { ietf } from '../contracts/ietf.ts'
import { Engine } from '../engine.ts'
import { OncekeyError } from '../error.ts'
import { publish } from '../events.ts'
import type { Operation, Reconcile, Run } from '../execution.ts'
import { fingerprint, type Payload } from '../operation/fingerprint.ts'
import { type KeyInput, parseKey } from '../operation/key.ts'
import { operationId } from '../operation/scope.ts'
import { type Refusal, refusal } from '../refusal.ts'
import type { Awaitable, Labels, Store } from '../store.ts'
import { isPromise } from '../store-access.ts'

/** What every adapter takes. `Req` is the request as that framework gives it. */
export interface IdempotencyOptions<Req> {
  readonly store: Store
  /**
   * Who is asking, as your authentication knows it: equal keys of different principals never meet. Mandatory, because
   * without it one user gets another's answer. Give a stable id: a token that is refreshed between two attempts makes
   * the retry another operation. Write `public` if all callers really share one namespace.
   */
  readonly principal: 'public' | ((request: Req) => Awaitable<string | undefined>)
  /** Default: `ietf`. */
  readonly contract?: Contract
  /** Where the key comes from, if not from the contract's header. */
  readonly key?: (request: Req) => string | undefined
  /**
   * The key of a request without one, where the contract says `derive`, if not the fingerprint of the whole request. When
   * it throws, a contract that is `open` runs the request without protection, and any other one fails it.
   */
  readonly autoKey?: (request: Req) => Awaitable<string>
  /** Asked for every request. `false`: its key is accepted and ignored, as if `idempotency()` were not there. */
  readonly enabled?: (request: Req) => boolean
  /** What the operation is about, if not the whole body: for example after fields were stripped. */
  readonly payload?: (request: Req) => Awaitable<unknown>
  /** The route template, if the framework does not tell it. */
  readonly route?: (request: Req) => string
  /** Keep key, principal, method and route with the record, readable for operators. Default: nothing of the request is kept. */
  readonly labels?: boolean
  readonly reconcile?: Reconcile
  readonly storeMsMax?: number
  readonly clock?: Clock
}

/** What an adapter reads off its framework's request. */
export interface RequestFacts {
  readonly method: string
  /** Path and query, as the client sent them. */
  readonly target: string
  /** The route's template where the framework knows it, else the path. */
  readonly route: string
  /** Every value of the key's header, as sent. */
  readonly keys: KeyInput
}

/** One configured `idempotency()`: turns requests into operations. All adapters share it. */
export class Protection<Req> {
  readonly engine: Engine
  readonly contract: Contract
  readonly keepsHeader: (name: string) => boolean
  readonly #options: IdempotencyOptions<Req>
  readonly #methods: ReadonlySet<string>
  readonly #scopesMethod: boolean
  readonly #scopesRoute: boolean

  constructor(options: IdempotencyOptions<Req>) {
    checkOptions(options)
    this.#options = options
    this.contract = options.contract ?? ietf
    const { reconcile } = options
    this.engine = new Engine({
      ...options,
      contract: this.contract,
      ...(reconcile && { reconcile: async (run: Run) => this.#withKeptHeaders(await reconcile(run)) }),
    })
    this.keepsHeader = headerFilter(this.contract)
    if (options.autoKey && this.contract.key.absent !== 'derive') {
      throw new OncekeyError(
        'config-invalid',
        `autoKey is given, but contract "${this.contract.name}" has key.absent "${this.contract.key.absent}", so that it is never asked; write key: { absent: 'derive' }`,
      )
    }
    this.#methods = new Set(this.contract.methods)
    this.#scopesMethod = this.contract.scope.includes('method')
    this.#scopesRoute = this.contract.scope.includes('route')
  }

  /** What the hook found is an answer like any other: the same headers of it are kept. */
  #withKeptHeaders(found: Awaited<ReturnType<Reconcile>>): Awaited<ReturnType<Reconcile>> {
    if (typeof found === 'string') return found
    return { ...found, headers: found.headers.filter(([name]) => this.keepsHeader(name)) }
  }

  /** Everything else passes untouched. */
  covers(method: string): boolean {
    return this.#methods.has(method)
  }

  /** The key, a refusal, or `undefined` when the request passes without: it has none, or this is switched off for it. */
  key(request: Req, facts: RequestFacts): ClientKey | Refusal | undefined {
    if (this.#options.enabled && !this.#options.enabled(request)) return undefined
    const { absent, lengthMax, header } = this.contract.key
    const parsed = parseKey(this.#options.key ? this.#options.key(request) : facts.keys, lengthMax)
    if (parsed.state === 'present') return { key: parsed.key }
    if (parsed.state === 'invalid') return refusal('key-invalid', { detail: parsed.reason })
    if (absent === 'derive') return NO_KEY
    if (absent === 'bypass') return undefined
    return refusal('key-missing', {
      detail: `This request carries no ${header} header, so it was not run. Send a key that is new for each operation and the same for each retry of it.`,
    })
  }

  /** The key as it came, or one for a request that has none. `undefined`: it could not be made, and the request runs without. */
  named(key: ClientKey, request: () => Req): Awaitable<ClientKey | undefined> {
    const { autoKey } = this.#options
    if (key.key !== undefined || !autoKey) return key
    try {
      const made = autoKey(request())
      return isPromise(made) ? made.then(toAutoKey).catch((error) => this.#unnamed(error)) : toAutoKey(made)
    } catch (error) {
      return this.#unnamed(error)
    }
  }

  /** A failed hash is as good as a failed store. */
  #unnamed(error: unknown): undefined {
    if (this.contract.storeFailure === 'closed') throw error
    publish('unprotected', { id: '' }, this.#options.store.name, this.contract.name, undefined, error)
    return undefined
  }

  /** `undefined`: hash the body. */
  payload(request: () => Req): Awaitable<Payload> | undefined {
    if (!this.#options.payload) return undefined
    const given = this.#options.payload(request())
    return isPromise(given) ? given.then((value) => ({ kind: 'value', value })) : { kind: 'value', value: given }
  }

  operation(request: Req, facts: RequestFacts, key: ClientKey, payload: Payload): Awaitable<Operation> {
    const { principal } = this.#options
    if (principal === 'public') return this.#operation(request, facts, key, payload, '*', principal)
    const who = principal(request)
    // The kind of principal is part of the scope: a user who is called "public" is not everybody.
    const withName = (name: string | undefined) => this.#operation(request, facts, key, payload, 'principal', name)
    return isPromise(who) ? who.then(withName) : withName(who)
  }

  #operation(
    request: Req,
    { method, target, route }: RequestFacts,
    { key, isAuto = key === undefined }: ClientKey,
    payload: Payload,
    kind: string,
    who: string | undefined,
  ): Operation {
    if (typeof who !== 'string' || who === '') throw noPrincipal(who)
    const where = this.#options.route ? this.#options.route(request) : route
    const print = fingerprint({ method, target, payload })
    const name = key ?? print
    const scope = [kind, who]
    if (this.#scopesMethod) scope.push('method', method)
    if (this.#scopesRoute) scope.push('route', where)
    const keySource = isAuto ? 'auto' : 'client'
    const operation: Operation = { id: operationId(scope, name), key: name, keySource, fingerprint: print }
    if (!this.#options.labels) return operation
    return { ...operation, labels: { key: name, principal: who, method, route: where } satisfies Labels }
  }
}

/** `undefined`: the payload is the key. */
export interface ClientKey {
  readonly key: string | undefined
  readonly isAuto?: boolean
}

const NO_KEY: ClientKey = { key: undefined }

function toAutoKey(key: string): ClientKey {
  if (typeof key === 'string' && key !== '') return { key, isAuto: true }
  throw new OncekeyError('config-invalid', 'autoKey gave no key for this request; return a string that is not empty')
}

export function isRefusal(value: ClientKey | Refusal): value is Refusal {
  return 'code' in value
}

function checkOptions<Req>(options: IdempotencyOptions<Req>): void {
  const { principal } = options ?? {}
  if (principal !== 'public' && typeof principal !== 'function') {
    throw new OncekeyError(
      'config-invalid',
      `principal is ${principal === undefined ? 'missing' : JSON.stringify(principal)}: pass a function that says who is asking, such as (request) => request.user.id, so that no caller gets another's answer; write principal: "public" if all callers share one namespace`,
    )
  }
  for (const option of Object.keys(options)) {
    if (!OPTIONS.has(option)) {
      throw new OncekeyError(
        'config-invalid',
        `${option} is not an option of idempotency(); the options are ${[...OPTIONS].join(', ')}`,
      )
    }
  }
}

const OPTIONS: ReadonlySet<string> = new Set<keyof IdempotencyOptions<unknown>>([
  'store',
  'principal',
  'contract',
  'key',
  'autoKey',
  'enabled',
  'payload',
  'route',
  'labels',
  'reconcile',
  'storeMsMax',
  'clock',
])

/** 401, where a framework looks for it: a request that nobody is behind is no failure of the server. */
function noPrincipal(given: unknown): OncekeyError {
  const what = given === undefined || given === null || given === '' ? 'nothing' : `a ${typeof given}`
  const error = new OncekeyError(
    'config-invalid',
    `The principal resolver gave ${what} for this request, so its key belongs to nobody and it was not run. Put authentication before idempotency(), and return a string, also for callers without a name.`,
  )
  return Object.assign(error, { status: 401, statusCode: 401 })
}

export function bodyIsGone(): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    'The request body was read before idempotency() saw it, and nothing of it was left to compare, so the request was not run. Put idempotency() before that middleware, or pass payload: (request) => what the operation is about.',
  )
}
