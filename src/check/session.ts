import { randomBytes, randomUUID } from 'node:crypto'
import { setTimeout as pause } from 'node:timers/promises'
import { OncekeyError } from '../error.ts'
import { excerpt, isNotNow, isRefusal, isSuccess, replayMark, sameContent, sameJson, shown } from './answers.ts'
import { exchange, exchangeAtOnce, type HeaderList, type NoAnswer, type Received, type Sent } from './client.ts'
import { at, isJson, Payloads, parsed } from './payload.ts'
import type { CheckOptions, Finding, Probe } from './types.ts'

/** One case: what it sends is fixed, what it finds is not. */
export interface Case {
  readonly id: string
  readonly title: string
  readonly sent: string
  readonly basis: string
  /** Reads of the count included. Enforced: a case that sends more is broken. */
  readonly requestsMax: number
  run(session: Session): Promise<Finding>
}

/** What a client means to do once, however often it sends it. */
export interface Operation {
  readonly key: string
  readonly payload: Uint8Array | undefined
}

/** How a request differs from the operation's ordinary one. */
export interface Changes {
  readonly method?: string
  readonly payload?: Uint8Array | undefined
  /** The values of the key header, one line each; none at all when empty. */
  readonly keys?: readonly string[]
  /** These replace those of the same name. */
  readonly headers?: HeaderList
  readonly query?: string
}

/**
 * What became of a repeated request. `unclear`: the answer is the same, but this service answers everything the same,
 * so that it may have run again.
 */
export type Fate = 'replayed' | 'ran' | 'refused' | 'broken' | 'unclear'

/** Ends a case early with a finding. */
export class CaseEnd extends Error {
  readonly finding: Finding

  constructor(finding: Finding) {
    super(finding.meaning)
    this.finding = finding
  }
}

/** A refusal that is about a request still running may end when the service has written its record: asked again so often. */
const RETRY_PAUSES_MS = [50, 100, 200, 400] as const
export const RETRIES_MAX: number = RETRY_PAUSES_MS.length

/** Everything a case needs to talk to the service, with a count of what was sent. */
export class Session {
  readonly options: CheckOptions
  readonly #payloads = new Payloads()
  readonly timeoutMs: number
  requests = 0
  /** By how much the count grows with one operation; 0 when nothing is counted. */
  effectsEach = 0
  /** Those of the case that runs. */
  keys: string[] = []
  #requestsLeft = 0
  #keysMade = 0
  #probe: Probe = { status: 0, keysAreQuoted: false, judgedBy: 'nothing' }
  readonly #url: URL
  readonly #countUrl: URL | undefined
  readonly #headers: HeaderList

  constructor(options: CheckOptions) {
    this.options = options
    this.timeoutMs = options.timeoutMs ?? TIMEOUT_MS_DEFAULT
    this.#url = new URL(options.url)
    this.#countUrl = options.countUrl === undefined ? undefined : new URL(options.countUrl)
    const own = options.headers ?? []
    const has = (wanted: string): boolean => own.some(([name]) => name.toLowerCase() === wanted)
    const { username, password } = this.#url
    const added: Array<readonly [string, string]> = []
    if (!has('content-type') && isJson(options.body)) added.push(['Content-Type', 'application/json'])
    if (!has('authorization') && username !== '') {
      const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
      added.push(['Authorization', `Basic ${Buffer.from(credentials).toString('base64')}`])
    }
    if (!has('accept')) added.push(['Accept', '*/*'])
    this.#headers = [...own, ...added]
  }

  get probe(): Probe {
    return this.#probe
  }

  /** From here on at most so many requests. */
  begin(requestsMax: number): void {
    this.#requestsLeft = requestsMax
    this.keys = []
  }

  operation(template: CheckOptions['body'] = this.options.body): Operation {
    return { key: this.#newKey(), payload: this.#payloads.make(template) }
  }

  /** What the service would accept as something else; `undefined` when nothing like that is known. */
  otherPayload({ payload }: Operation): Uint8Array | undefined {
    const { body, otherBody } = this.options
    return otherBody === undefined ? this.#payloads.other(body, payload) : this.#payloads.make(otherBody)
  }

  /** The header's value for a key, in the form that this service reads. */
  written(key: string): string {
    return this.#probe.keysAreQuoted ? `"${key}"` : key
  }

  async send(operation: Operation, changes: Changes = {}): Promise<Received> {
    this.#spend(1)
    return exchange(this.#request(operation, changes), this.timeoutMs)
  }

  async sendAtOnce(operation: Operation, times: number): Promise<Array<Received | NoAnswer>> {
    this.#spend(times)
    return exchangeAtOnce(this.#request(operation, {}), times, this.timeoutMs)
  }

  /** The first request of a new operation. A service that does not take it any more cannot be judged by it. */
  async first(operation: Operation, changes: Changes = {}): Promise<Received> {
    const answer = await this.send(operation, changes)
    if (isSuccess(answer)) return answer
    const came = `The first request of a new operation, with a key of its own, was answered with ${shown(answer)}.`
    if (isRefusal(answer)) {
      const meaning = 'The service took such requests before and refuses this one, so the case could not be judged.'
      const next = 'Look for a rate limit or a quota, or use {{n}} or {{uuid}} in --body if payloads must differ.'
      throw new CaseEnd({ verdict: 'skip', came, meaning, next })
    }
    const meaning = 'A service that fails on an ordinary request cannot be relied on for retries.'
    throw new CaseEnd({ verdict: 'fail', came, meaning, next: 'Look into the service’s log for this key.' })
  }

  /** Sends again until the answer is not "not now" any more, a few times at most. */
  async settled(operation: Operation, changes: Changes = {}): Promise<{ answer: Received; retries: number }> {
    let answer = await this.send(operation, changes)
    let retries = 0
    for (const pauseMs of RETRY_PAUSES_MS) {
      if (!isNotNow(answer)) break
      await pause(pauseMs)
      answer = await this.send(operation, changes)
      retries++
    }
    return { answer, retries }
  }

  /** How many effects there are; `undefined` when nobody has said where to look. */
  async effects(): Promise<number | undefined> {
    if (this.#countUrl === undefined) return undefined
    this.#spend(1)
    const headers = this.#headers.filter(([name]) => name.toLowerCase() !== 'content-type')
    const answer = await exchange({ method: 'GET', url: this.#countUrl, headers }, this.timeoutMs)
    const { countPath = '' } = this.options
    const found = answer.status === 200 ? at(parsed(answer.body), countPath) : undefined
    const count = Array.isArray(found) ? found.length : found
    if (typeof count === 'number') return count
    const where = countPath === '' ? 'no number or array' : `no number or array at ${JSON.stringify(countPath)}`
    throw new OncekeyError(
      'config-invalid',
      `--count-url was answered with ${shown(answer)}, which has ${where}. Correct --count-url or --count-path.`,
    )
  }

  /** Runs something and says by how much the effects grew meanwhile. */
  async rise<T>(action: () => Promise<T>): Promise<[result: T, rise: number | undefined]> {
    const before = await this.effects()
    const result = await action()
    const after = await this.effects()
    return [result, before === undefined || after === undefined ? undefined : after - before]
  }

  /** `rise`: by how much the effects grew with the repeated request. */
  fate(first: Received, again: Received, rise: number | undefined): Fate {
    if (rise !== undefined && rise > 0) return 'ran'
    if (again.status >= 500 && first.status < 500) return 'broken'
    if (isRefusal(again) && !isRefusal(first)) return 'refused'
    if (rise !== undefined || replayMark(again) !== undefined) return 'replayed'
    if (sameContent(first, again)) return this.#probe.judgedBy === 'nothing' ? 'unclear' : 'replayed'
    return sameJson(first, again) ? 'replayed' : 'ran'
  }

  /** Finds out how this service can be judged. Throws when it cannot be. */
  async look(): Promise<void> {
    const operation = this.operation()
    const before = await this.effects()
    let first = await this.send(operation)
    if (first.status === 400) {
      const quoted = await this.send(operation, { keys: [`"${operation.key}"`] })
      if (isSuccess(quoted)) {
        this.#probe = { ...this.#probe, keysAreQuoted: true }
        first = quoted
      }
    }
    if (!isSuccess(first)) throw notUsable(this.options, first)
    const after = await this.effects()
    this.effectsEach = (after ?? 0) - (before ?? 0)
    if (after !== undefined && this.effectsEach < 1) throw notCounted(before, after)
    // The same payload: an answer that only repeats what was sent tells nothing of how often it ran.
    const second = await this.send({ ...operation, key: this.#newKey() })
    const byAnswers = sameContent(first, second) ? 'nothing' : 'answers'
    const judgedBy = after === undefined ? byAnswers : 'effects'
    this.#probe = { ...this.#probe, status: first.status, judgedBy }
  }

  #newKey(): string {
    this.#keysMade += 1
    const { keyTemplate = '{{uuid}}' } = this.options
    return keyTemplate
      .replaceAll('{{n}}', String(this.#keysMade))
      .replaceAll('{{uuid}}', () => randomUUID())
      .replaceAll('{{hex}}', () => randomBytes(HEX_BYTES).toString('hex'))
  }

  #request({ key, payload }: Operation, changes: Changes): Sent {
    const keys = changes.keys ?? [this.written(key)]
    this.keys = [...new Set([...this.keys, ...keys.map((value) => excerpt(value))])]
    const { keyHeader = 'Idempotency-Key', method = 'POST' } = this.options
    const replaced = new Set(changes.headers?.map(([name]) => name.toLowerCase()))
    const headers = [
      ...this.#headers.filter(([name]) => !replaced.has(name.toLowerCase())),
      ...keys.map((value) => [keyHeader, value] as const),
      ...(changes.headers ?? []),
    ]
    if (!headers.some(([name]) => name.toLowerCase() === 'connection')) headers.push(['Connection', 'close'])
    const url = new URL(this.#url)
    if (changes.query !== undefined) url.search += `${url.search === '' ? '?' : '&'}${changes.query}`
    const body = 'payload' in changes ? changes.payload : payload
    return { method: changes.method ?? method, url, headers, body }
  }

  #spend(requests: number): void {
    if (requests > this.#requestsLeft) throw new Error('A case of the check sends more requests than it has announced.')
    this.#requestsLeft -= requests
    this.requests += requests
  }
}

const HEX_BYTES = 8
const TIMEOUT_MS_DEFAULT = 10_000
/** `look` sends up to three requests and reads the count twice. */
export const LOOK_REQUESTS_MAX = 5

function notCounted(before: number | undefined, after: number): OncekeyError {
  return new OncekeyError(
    'config-invalid',
    `The count at --count-url was ${before} before a successful request and ${after} after it, so it does not count what this endpoint does. Correct --count-url or --count-path.`,
  )
}

function notUsable({ method = 'POST', keyHeader = 'Idempotency-Key' }: CheckOptions, answer: Received): OncekeyError {
  const hints: Readonly<Record<number, string>> = {
    401: 'Give --header with the credentials.',
    403: 'Give --header with the credentials.',
    404: 'Correct the URL.',
    405: 'Give the --method that this endpoint takes.',
    415: "Give --header 'Content-Type: …' and a --body of that type.",
  }
  const broken = answer.status >= 500 ? 'Look into the service’s log.' : undefined
  const hint =
    broken ?? hints[answer.status] ?? `Give a --body that it accepts, and the right --key-header (now ${keyHeader}).`
  return new OncekeyError(
    'config-invalid',
    `${method} was answered with ${shown(answer)} although its key was new, so there is no success that a retry could repeat. ${hint}`,
  )
}
