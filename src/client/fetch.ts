import type { Clock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import { type AnswerOf, codeOf, isWorthRetrying, retryAfterMsOf } from './answers.ts'
import { freezeBody, freezeRequest, type Outgoing } from './body.ts'

export type FetchLike = (input: string | URL | Request, init?: RequestInit) => Promise<Response>

export interface IdempotentInit extends RequestInit {
  /** The key of this logical call, when the caller has one: to go on after a crash, or because a form was sent twice. */
  readonly idempotencyKey?: string
}

export interface IdempotentFetchOptions {
  /** Default: the global `fetch`. */
  readonly fetch?: FetchLike
  /** Default `Idempotency-Key`. */
  readonly keyHeader?: string
  /** Names a new logical call. Default `crypto.randomUUID()`; `structuredKeys({ … }).next` is another. */
  readonly newKey?: () => string
  /** How often it is sent again at most. Default 5; 0 sends once. */
  readonly retries?: number
  /** Whether what came back is worth another try. Default: `isWorthRetrying`. */
  readonly shouldRetry?: (answer: AnswerOf) => boolean
  /** The wait before the n-th retry is random, up to `backoffMs` × 2ⁿ and `backoffMsMax` at most. Default 200 and 10,000. */
  readonly backoffMs?: number
  readonly backoffMsMax?: number
  /** A server that asks for a longer wait is not waited for: its answer is returned. Default 60,000. */
  readonly retryAfterMsMax?: number
  /** How long one attempt may go without an answer before it is given up and sent again. Default 30,000. */
  readonly attemptMsMax?: number
  /** How long the whole call may take, waits and all, until an answer begins. Default 120,000. */
  readonly deadlineMs?: number
  /** How much of a `Request`'s body, or of a form's files, is held to be sent again. Larger is sent once. Default 1 MiB. */
  readonly bodyBytesMax?: number
  readonly clock?: Clock
  /** 0 or more, below 1. Default `Math.random`. */
  readonly random?: () => number
}

/** One attempt of a call, as `UnansweredError` tells of it. */
export interface Attempt {
  readonly status?: number
  readonly code?: string
  readonly error?: unknown
}

/**
 * A `fetch` whose POST, PUT, PATCH and DELETE may safely be retried: each logical call has one key, the same on every
 * attempt, and it is sent again after failures that a retry can mend. Any other method goes to `fetch` as it is, once.
 *
 * It returns the first answer that is not worth a retry, or, when it gives up, the last answer as it is, with its body
 * unread: `keyOf(response)` has the key to go on with later. Without an answer in the last attempt it throws an
 * `UnansweredError`, which carries the key. A body that cannot be sent twice is sent once. When the caller's own signal
 * aborts, it throws the signal's reason, as `fetch` does; whoever means to come back to such a call gives it a key.
 */
export function idempotentFetch(
  options: IdempotentFetchOptions = {},
): (input: string | URL | Request, init?: IdempotentInit) => Promise<Response> {
  const settings = settingsOf(options)
  return async (input, init = {}) => {
    const { idempotencyKey, ...rest } = init
    const method = (init.method ?? (input instanceof Request ? input.method : 'GET')).toUpperCase()
    if (!KEYED_METHODS.has(method)) return settings.fetch(input, rest)
    const headers = new Headers(init.headers ?? (input instanceof Request ? input.headers : undefined))
    const key = keyFor(idempotencyKey, headers, settings)
    headers.set(settings.keyHeader, key)
    // What cannot be a request at all is refused here, as fetch refuses it: it is no failure of the network.
    if (!options.fetch && !(input instanceof Request)) new Request(input, { method, headers })
    const isOwnBody = init.body === undefined && input instanceof Request
    const outgoing = isOwnBody
      ? await freezeRequest(input, settings.bodyBytesMax)
      : await freezeBody(init.body, settings.bodyBytesMax)
    if (outgoing.contentType !== undefined && !headers.has('content-type')) {
      headers.set('content-type', outgoing.contentType)
    }
    const signal = init.signal ?? (input instanceof Request ? input.signal : undefined)
    return new Call({ input, init: { ...rest, method, headers }, method, key, outgoing, signal }, settings).send()
  }
}

/** The key under which `idempotentFetch` got this answer. */
export function keyOf(response: Response): string | undefined {
  return keys.get(response)
}

/** No answer came, so nobody can say whether the operation took place. Only a retry with the same key may find out. */
export class UnansweredError extends OncekeyError {
  /** The key of this call: `idempotentFetch()(url, { …, idempotencyKey: error.key })` goes on with it. */
  readonly key: string
  /** Everything that was tried, in order. */
  readonly attempts: readonly Attempt[]

  constructor(method: string, key: string, attempts: readonly Attempt[], why: string) {
    const times = attempts.length === 1 ? 'one attempt' : `${attempts.length} attempts`
    super(
      'outcome-unknown',
      `${method} got no answer in ${times}${why}. The outcome is not known: the operation may or may not have taken place. Retry with this key, ${key}; a new key would run it again.`,
      { cause: attempts.at(-1)?.error },
    )
    this.key = key
    this.attempts = attempts
  }
}

const KEYED_METHODS: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH', 'DELETE'])
const keys = new WeakMap<Response, string>()

interface LogicalCall {
  readonly input: string | URL | Request
  readonly init: RequestInit
  readonly method: string
  readonly key: string
  readonly outgoing: Outgoing
  readonly signal: AbortSignal | undefined
}

class Call {
  readonly #call: LogicalCall
  readonly #settings: Settings
  readonly #deadlineAt: number
  readonly #attempts: Attempt[] = []

  constructor(call: LogicalCall, settings: Settings) {
    this.#call = call
    this.#settings = settings
    this.#deadlineAt = settings.clock.now() + settings.deadlineMs
  }

  async send(): Promise<Response> {
    for (;;) {
      const answer = await this.#attempt()
      const { response, code, error } = answer
      this.#attempts.push(response ? { status: response.status, ...(code !== undefined && { code }) } : { error })
      const waitMs = this.#waitMsAfter(answer)
      if (waitMs === undefined) return this.#end(answer)
      // Unread, it would hold its connection.
      void response?.body?.cancel().catch(() => {})
      await this.#sleep(waitMs)
    }
  }

  async #attempt(): Promise<AnswerOf> {
    const { input, init, outgoing, signal } = this.#call
    const { clock, attemptMsMax, fetch } = this.#settings
    signal?.throwIfAborted()
    const timeout = new AbortController()
    const limitMs = Math.min(attemptMsMax, this.#deadlineAt - clock.now())
    const cancel = clock.schedule(limitMs, () => {
      timeout.abort(new DOMException(`No answer came within ${limitMs} ms.`, 'TimeoutError'))
    })
    const sent: RequestInit = { ...init, signal: signal ? AbortSignal.any([signal, timeout.signal]) : timeout.signal }
    if (outgoing.body !== undefined) sent.body = outgoing.body
    if (outgoing.body instanceof ReadableStream) sent.duplex = 'half'
    try {
      const response = input instanceof Request ? await fetch(new Request(input, sent)) : await fetch(input, sent)
      const code = response.status === 409 ? await codeOf(response) : undefined
      return code === undefined ? { response } : { response, code }
    } catch (error) {
      signal?.throwIfAborted()
      return { error }
    } finally {
      cancel()
    }
  }

  /** `undefined`: that was the last attempt. */
  #waitMsAfter(answer: AnswerOf): number | undefined {
    const { retries, shouldRetry, clock, random, backoffMs, backoffMsMax, retryAfterMsMax } = this.#settings
    const done = this.#attempts.length
    if (done > retries || this.#call.outgoing.onceBecause !== undefined || !shouldRetry(answer)) return undefined
    const askedMs = answer.response ? (retryAfterMsOf(answer.response, clock.now()) ?? 0) : 0
    if (askedMs > retryAfterMsMax) return undefined
    // Random all the way down to 0: clients that failed together must not come back together.
    const ownMs = random() * Math.min(backoffMsMax, backoffMs * 2 ** (done - 1))
    // The first attempt still runs, and may end at any moment: what the server names then is the longest that it can take.
    const waitMs = answer.code === 'in-flight' ? Math.min(ownMs, askedMs || ownMs) : askedMs + ownMs
    return clock.now() + waitMs < this.#deadlineAt ? waitMs : undefined
  }

  #end({ response, error }: AnswerOf): Response {
    const { key, method, outgoing } = this.#call
    if (response) {
      keys.set(response, key)
      return response
    }
    const reason = outgoing.onceBecause ? ` (${outgoing.onceBecause}, so it could be sent only once)` : ''
    const last = error instanceof Error ? `; the last failed with: ${reasonOf(error)}` : ''
    throw new UnansweredError(method, key, this.#attempts, `${reason}${last}`.replace(/\.$/, ''))
  }

  #sleep(waitMs: number): Promise<void> {
    const { signal } = this.#call
    return new Promise((resolve, reject) => {
      const stop = () => {
        cancel()
        reject(signal?.reason)
      }
      const cancel = this.#settings.clock.schedule(waitMs, () => {
        signal?.removeEventListener('abort', stop)
        resolve()
      })
      if (signal?.aborted) stop()
      else signal?.addEventListener('abort', stop, { once: true })
    })
  }
}

type Settings = Required<IdempotentFetchOptions>

function settingsOf(options: IdempotentFetchOptions): Settings {
  const settings: Settings = {
    fetch: (input, init) => globalThis.fetch(input, init),
    keyHeader: 'Idempotency-Key',
    newKey: () => crypto.randomUUID(),
    retries: 5,
    shouldRetry: isWorthRetrying,
    backoffMs: 200,
    backoffMsMax: 10_000,
    retryAfterMsMax: 60_000,
    attemptMsMax: 30_000,
    deadlineMs: 120_000,
    bodyBytesMax: 1_048_576,
    clock: waitingClock,
    random: Math.random,
  }
  for (const [name, value] of Object.entries(options)) {
    if (!(name in settings)) {
      const names = Object.keys(settings).join(', ')
      throw invalid(`${name} is not an option of idempotentFetch(); the options are ${names}`)
    }
    if (value !== undefined) Object.assign(settings, { [name]: value })
  }
  if (!Number.isSafeInteger(settings.retries) || settings.retries < 0) {
    throw invalid(`retries is ${settings.retries}; write a whole number, 0 for none`)
  }
  for (const name of ['backoffMs', 'backoffMsMax', 'retryAfterMsMax', 'bodyBytesMax'] as const) {
    if (!(settings[name] >= 0)) throw invalid(`${name} is ${settings[name]}; write a number of 0 or more`)
  }
  for (const name of ['attemptMsMax', 'deadlineMs'] as const) {
    if (!(settings[name] >= 1)) throw invalid(`${name} is ${settings[name]}; write a number of milliseconds from 1 up`)
  }
  if (!HEADER_NAME.test(settings.keyHeader)) throw invalid(`keyHeader is ${settings.keyHeader}; write a header's name`)
  return settings
}

const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/i
/** `fetch failed` alone says nothing: what it was stands in the cause. */
function reasonOf({ message, cause }: Error): string {
  const code = cause instanceof Error ? ((cause as { code?: unknown }).code ?? cause.message) : undefined
  return code === undefined ? message : `${message} (${String(code)})`
}

/** What a server of this library takes for a bare key. */
const KEY = /^[\x21\x23-\x7e]{1,255}$/

function keyFor(given: string | undefined, headers: Headers, { keyHeader, newKey }: Settings): string {
  // A blank header is none: a server takes it so, too, and would run every attempt.
  const inHeader = headers.get(keyHeader)?.trim() || undefined
  if (given !== undefined && inHeader !== undefined && given !== inHeader) {
    throw invalid(`idempotencyKey and the header ${keyHeader} name two different keys; give one of them`)
  }
  // A header that the caller wrote is sent as it was written: it may be quoted.
  if (inHeader !== undefined) return inHeader
  const key = given ?? newKey()
  if (typeof key === 'string' && KEY.test(key)) return key
  const source = given === undefined ? 'newKey() gave' : 'idempotencyKey is'
  throw invalid(`${source} ${JSON.stringify(key)}; a key is 1 to 255 visible ASCII characters without spaces or quotes`)
}

/** Unlike the server's clock it keeps the process alive: somebody waits for this answer. */
const waitingClock: Clock = {
  now: () => Math.floor(performance.timeOrigin + performance.now()),
  schedule(delayMs, callback) {
    const timer = setTimeout(callback, Math.min(delayMs, TIMER_MS_MAX))
    return () => clearTimeout(timer)
  },
}

/** A longer one would ring at once. */
const TIMER_MS_MAX = 2_147_483_647

function invalid(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}
