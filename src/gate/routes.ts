import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { OncekeyError } from '../error.ts'

/** What is special about some addresses. The first rule that matches decides; what no rule matches has the gate's own contract. */
export interface RouteRule {
  /** `/orders/:id`: a named part is one segment. `/files/*`: a star at the end is the rest, of at least one segment. */
  readonly template: string
  /** Default: every method. */
  readonly methods?: readonly string[]
  /** Default: the gate's. */
  readonly contract?: Contract
  /** `false`: keys are accepted and ignored. Default `true`. */
  readonly enabled?: boolean
  readonly limits?: RouteLimits
}

export interface RouteLimits {
  readonly requestBytesMax?: number
  readonly answerBytesMax?: number
  readonly upstreamMsMax?: number
}

/** Finds the rule of a request. Paths are compared segment by segment, percent-encoding undone, a slash never made. */
export class Routes<T> {
  readonly #rules: ReadonlyArray<{ readonly match: Matcher; readonly value: T }>

  constructor(rules: readonly RouteRule[], make: (rule: RouteRule) => T) {
    const matchers = rules.map((rule, at) => new Matcher(rule, `routes[${at}]`))
    for (const [at, later] of matchers.entries()) {
      const before = matchers.slice(0, at).findIndex((earlier) => earlier.hides(later))
      if (before >= 0) {
        throw invalid(
          `routes[${at}]`,
          `(${later.template}) can never be reached, because routes[${before}] (${matchers[before]?.template}) takes all of its requests; move it before that one, or take it out`,
        )
      }
    }
    this.#rules = matchers.map((match, at) => ({ match, value: make(rules[at] as RouteRule) }))
  }

  find(method: string, path: string): T | undefined {
    if (this.#rules.length === 0) return undefined
    const segments = segmentsOf(path)
    for (const { match, value } of this.#rules) if (match.takes(method, segments)) return value
    return undefined
  }
}

class Matcher {
  readonly template: string
  readonly #methods: ReadonlySet<string> | undefined
  readonly #segments: readonly string[]
  readonly #takesRest: boolean

  constructor({ template, methods }: RouteRule, field: string) {
    checkTemplate(template, `${field}.template`)
    this.template = template
    this.#methods = methods && new Set(methods)
    const segments = segmentsOf(template)
    this.#takesRest = segments.at(-1) === '*'
    this.#segments = this.#takesRest ? segments.slice(0, -1) : segments
  }

  takes(method: string, segments: readonly string[]): boolean {
    if (this.#methods && !this.#methods.has(method)) return false
    const own = this.#segments
    if (this.#takesRest ? segments.length <= own.length : segments.length !== own.length) return false
    for (let at = 0; at < own.length; at++) {
      const wanted = own[at] ?? ''
      if (wanted.charCodeAt(0) === COLON ? segments[at] === '' : wanted !== segments[at]) return false
    }
    return true
  }

  /** Whether no request can get past this rule to the other one. */
  hides(later: Matcher): boolean {
    if (this.#methods) {
      if (!later.#methods) return false
      for (const method of later.#methods) if (!this.#methods.has(method)) return false
    }
    const [own, other] = [this.#segments, later.#segments]
    const otherLeast = other.length + (later.#takesRest ? 1 : 0)
    if (this.#takesRest ? otherLeast <= own.length : later.#takesRest || other.length !== own.length) return false
    return own.every((wanted, at) => wanted.startsWith(':') || wanted === other[at])
  }
}

const COLON = 0x3a

function segmentsOf(path: string): readonly string[] {
  const segments = path.slice(1).split('/')
  return path.includes('%') ? segments.map(decoded) : segments
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}

function checkTemplate(template: unknown, field: string): void {
  if (typeof template !== 'string' || !template.startsWith('/')) {
    throw invalid(
      field,
      `is ${JSON.stringify(template)}, but must be a path that begins with a slash, such as /orders/:id`,
    )
  }
  if (/[?#\s]/.test(template)) throw invalid(field, `is ${JSON.stringify(template)}; leave out the query, and spaces`)
  const segments = template.slice(1).split('/')
  const names = new Set<string>()
  for (const [at, segment] of segments.entries()) {
    if (segment.includes('*') && !(segment === '*' && at === segments.length - 1)) {
      throw invalid(field, `is ${JSON.stringify(template)}, but a star stands only alone, as the last segment`)
    }
    if (!segment.startsWith(':')) continue
    if (!/^:\w+$/.test(segment)) {
      throw invalid(field, `has ${JSON.stringify(segment)}; a named part is a colon and a word, and a whole segment`)
    }
    if (names.has(segment)) throw invalid(field, `has ${JSON.stringify(segment)} twice; name each part differently`)
    names.add(segment)
  }
}

/**
 * Rules out of plain data, as from a JSON file. `contracts` are those that a rule may name; a rule may also change fields
 * of one: `{ "template": "/orders", "contract": "stripe", "changes": { "inFlight": "wait", "waitMsMax": 5000 } }`.
 * Throws `config-invalid`, naming the field.
 */
export function parseRoutes(data: unknown, contracts: Readonly<Record<string, Contract>>, base: Contract): RouteRule[] {
  const list = isObject(data) && Array.isArray(data.routes) ? data.routes : data
  if (!Array.isArray(list))
    throw invalid('routes', 'must be a list of rules, or an object with such a list as "routes"')
  const rules = list.map((rule, at) => parseRule(rule, `routes[${at}]`, contracts, base))
  // Finds what can never be reached.
  new Routes(rules, () => undefined)
  return rules
}

function parseRule(
  rule: unknown,
  field: string,
  contracts: Readonly<Record<string, Contract>>,
  base: Contract,
): RouteRule {
  if (!isObject(rule)) throw invalid(field, `must be an object with a template, but is ${JSON.stringify(rule)}`)
  checkNames(rule, ['template', 'methods', 'contract', 'changes', 'enabled', 'limits'], field)
  const { template, methods, contract, changes, enabled, limits } = rule
  checkTemplate(template, `${field}.template`)
  if (methods !== undefined) checkMethods(methods, `${field}.methods`)
  if (enabled !== undefined && typeof enabled !== 'boolean') {
    throw invalid(`${field}.enabled`, `must be true or false, but is ${JSON.stringify(enabled)}`)
  }
  if (limits !== undefined) checkLimits(limits, `${field}.limits`)
  let chosen = contract === undefined ? undefined : contracts[String(contract)]
  if (contract !== undefined && (typeof contract !== 'string' || !Object.hasOwn(contracts, contract) || !chosen)) {
    throw invalid(
      `${field}.contract`,
      `is ${JSON.stringify(contract)}; the contracts are ${Object.keys(contracts).join(', ')}`,
    )
  }
  if (changes !== undefined) {
    if (!isObject(changes)) throw invalid(`${field}.changes`, 'must be an object with fields of a contract')
    chosen = named(`${field}.changes`, () => defineContract(chosen ?? base, changes))
  }
  return {
    template: template as string,
    ...(methods !== undefined && { methods: methods as string[] }),
    ...(chosen && { contract: chosen }),
    ...(enabled !== undefined && { enabled }),
    ...(limits !== undefined && { limits: limits as RouteLimits }),
  }
}

function checkMethods(methods: unknown, field: string): void {
  if (!Array.isArray(methods) || methods.length === 0 || !methods.every((one) => /^[A-Z]+$/.test(String(one)))) {
    throw invalid(field, `must be a list of methods in capitals, such as ["POST"], but is ${JSON.stringify(methods)}`)
  }
}

export function checkLimits(limits: unknown, field: string): void {
  if (!isObject(limits)) throw invalid(field, 'must be an object')
  checkNames(limits, ['requestBytesMax', 'answerBytesMax', 'upstreamMsMax'], field)
  for (const [name, value] of Object.entries(limits)) {
    if (!Number.isSafeInteger(value) || (value as number) < 1) {
      throw invalid(`${field}.${name}`, `is ${JSON.stringify(value)}, but must be a whole number of at least 1`)
    }
  }
}

function checkNames(object: Readonly<Record<string, unknown>>, names: readonly string[], field: string): void {
  for (const name of Object.keys(object)) {
    if (!names.includes(name)) {
      throw invalid(`${field}.${name}`, `is not a field here; the fields are ${names.join(', ')}`)
    }
  }
}

function named<T>(field: string, make: () => T): T {
  try {
    return make()
  } catch (cause) {
    throw cause instanceof OncekeyError
      ? new OncekeyError('config-invalid', `${field}: ${cause.message}`, { cause })
      : cause
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function invalid(field: string, problem: string): OncekeyError {
  return new OncekeyError('config-invalid', `${field} ${problem}`)
}
