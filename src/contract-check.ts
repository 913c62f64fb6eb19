import { type Contract, NEVER_KEPT, type StatusPattern, VERDICTS, type Verdict } from './contract.ts'
import { OncekeyError } from './error.ts'
import { REFUSAL_TITLES } from './refusal.ts'

type Changes<T> = {
  readonly [K in keyof T]?: T[K] extends readonly unknown[] ? T[K] : T[K] extends object ? Changes<T[K]> : T[K]
}
export type ContractChanges = Changes<Contract>

/** The base contract with some fields changed, checked. Lists are replaced, not merged. */
export function defineContract(base: Contract, changes: ContractChanges = {}): Contract {
  const merged = merge(base, changes) as Contract
  checkContract(merged)
  return merged
}

/** Throws `config-invalid` with a text that names the field. */
export function checkContract(contract: Contract): void {
  const fail = (field: string, problem: string): never => {
    throw new OncekeyError('config-invalid', `contract "${String(contract?.name)}": ${field} ${problem}`)
  }
  checkFields(contract, FIELDS, '', fail)
  if (contract.methods.length === 0)
    fail('methods', 'is empty, so that nothing would be covered; name at least one method')
  for (const method of contract.methods) {
    if (!/^[A-Z]+$/.test(method)) fail('methods', `has ${JSON.stringify(method)}; write methods in capitals`)
  }
  checkNames(contract, fail)
  checkTimes(contract, fail)
  checkStatuses(contract, fail)
}

type Fail = (field: string, problem: string) => never

function checkTimes({ ttl, lease, inFlight, waitMsMax, limits, key }: Contract, fail: Fail): void {
  const atLeast = (field: string, value: number, least: number, why: string): void => {
    if (!Number.isSafeInteger(value) || value < least) {
      fail(field, `is ${String(value)}, but must be a whole number of at least ${least}: ${why}`)
    }
  }
  atLeast('lease.ms', lease.ms, LEASE_MS_MIN, 'a shorter lease lapses while its handler still runs')
  atLeast('lease.handlerMsMax', lease.handlerMsMax, lease.ms, 'a handler may run for one lease at the least')
  atLeast('ttl.committedMs', ttl.committedMs, 1, 'an answer that is kept for no time protects nothing')
  atLeast('ttl.rejectedMs', ttl.rejectedMs, 1, 'an answer that is kept for no time protects nothing')
  atLeast(
    'ttl.unknownMs',
    ttl.unknownMs,
    1,
    'a crash would be forgotten at once, and the retry would run twice in silence',
  )
  atLeast('ttl.expiredMs', ttl.expiredMs, 0, '0 runs an expired key again')
  atLeast('waitMsMax', waitMsMax, inFlight === 'wait' ? 1 : 0, 'it is how long a duplicate waits')
  if (waitMsMax > lease.ms) {
    fail(
      'waitMsMax',
      `is ${waitMsMax}, longer than the lease (lease.ms = ${lease.ms}); a wait must end before the lease does`,
    )
  }
  atLeast('key.lengthMax', key.lengthMax, 1, 'no key would fit')
  atLeast('limits.requestBytesMax', limits.requestBytesMax, 0, '0 refuses every body')
  atLeast('limits.answerBytesMax', limits.answerBytesMax, 0, '0 keeps empty answers only')
}

const LEASE_MS_MIN = 100

function checkNames({ key, headers, errors }: Contract, fail: Fail): void {
  const name = (field: string, value: string, pattern = HEADER_NAME): void => {
    if (!pattern.test(value)) fail(field, `is ${JSON.stringify(value)}, which is not a header name`)
  }
  name('key.header', key.header)
  name('headers.replayed', headers.replayed)
  name('headers.recorded', headers.recorded)
  for (const entry of headers.keep) {
    name('headers.keep', entry, HEADER_PATTERN)
    if (NEVER_KEPT.has(entry.toLowerCase())) {
      fail('headers.keep', `has ${JSON.stringify(entry)}, which must never be replayed to another request; take it out`)
    }
  }
  if (!/^https?:\/\/[^\s<>"]+$/.test(errors.docsUrl)) fail('errors.docsUrl', 'must be an http or https address')
}

const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/
const HEADER_PATTERN = /^[!#$%&'+.^_`|~0-9A-Za-z-]+\*?$/

function checkStatuses({ answers, errors }: Contract, fail: Fail): void {
  const seen = new Map<StatusPattern, Verdict>()
  for (const verdict of VERDICTS) {
    for (const pattern of answers[verdict]) {
      const valid = typeof pattern === 'number' ? pattern >= 200 && pattern <= 599 : /^[2-5]xx$/.test(pattern)
      if (!valid)
        fail(
          `answers.${verdict}`,
          `has ${JSON.stringify(pattern)}; write a status from 200 to 599, or a class such as "4xx"`,
        )
      const before = seen.get(pattern)
      if (before)
        fail(`answers.${verdict}`, `has ${pattern}, which answers.${before} has too; a status has one meaning`)
      seen.set(pattern, verdict)
    }
  }
  for (let status = 200; status <= 599; status++) {
    if (!seen.has(status) && !seen.has(`${Math.floor(status / 100)}xx` as StatusPattern)) {
      fail('answers', `says nothing about status ${status}; put it, or its class, under keep, release or unknown`)
    }
  }
  for (const [code, status] of Object.entries(errors.statuses)) {
    if (!Number.isInteger(status) || status < 400 || status > 599) {
      fail(`errors.statuses.${code}`, `is ${String(status)}, but an error needs a status from 400 to 599`)
    }
  }
}

/** The type of every field, for contracts that come from a file or from plain JavaScript. */
interface Kind {
  readonly expected: string
  fits(value: unknown): boolean
}
type Fields = { readonly [field: string]: Kind | Fields }

const text: Kind = { expected: 'a string', fits: (value) => typeof value === 'string' }
const number: Kind = { expected: 'a number', fits: (value) => typeof value === 'number' }
const flag: Kind = { expected: 'true or false', fits: (value) => typeof value === 'boolean' }
const texts: Kind = listOf(text.fits, 'a list of strings')
const statuses: Kind = listOf((value) => text.fits(value) || number.fits(value), 'a list of statuses')
const optionalText: Kind = { expected: 'a string', fits: (value) => value === undefined || text.fits(value) }

function listOf(fits: (value: unknown) => boolean, expected: string): Kind {
  return { expected, fits: (value) => Array.isArray(value) && value.every(fits) }
}

function oneOf(...options: string[]): Kind {
  const expected = options.map((option) => `"${option}"`).join(' or ')
  return { expected, fits: (value) => options.includes(value as string) }
}

function forEachCode(kind: Kind): Fields {
  return Object.fromEntries(Object.keys(REFUSAL_TITLES).map((code) => [code, kind]))
}

const FIELDS: { readonly [K in keyof Contract]: Kind | Fields } = {
  name: text,
  methods: texts,
  key: { header: text, absent: oneOf('refuse', 'bypass', 'derive'), lengthMax: number },
  scope: listOf(oneOf('method', 'route').fits, 'a list of "method" and "route"'),
  inFlight: oneOf('reject', 'wait'),
  waitMsMax: number,
  answers: { keep: statuses, release: statuses, unknown: statuses },
  ttl: { committedMs: number, rejectedMs: number, unknownMs: number, expiredMs: number },
  lease: { ms: number, handlerMsMax: number },
  crash: oneOf('refuse', 'rerun', 'reconcile'),
  storeFailure: oneOf('open', 'closed'),
  headers: { replayed: text, recorded: text, echoKey: flag, keep: texts },
  errors: {
    shape: oneOf('problem', 'nested', 'stripe', 'flat'),
    docsUrl: text,
    statuses: forEachCode(number),
    codes: forEachCode(optionalText),
  },
  limits: { requestBytesMax: number, answerBytesMax: number },
}

function checkFields(value: unknown, fields: Fields, path: string, fail: Fail): void {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    fail(path || 'as a whole', `must be an object, but is ${shown(value)}`)
  }
  const given = value as Readonly<Record<string, unknown>>
  for (const field of Object.keys(given)) {
    if (!Object.hasOwn(fields, field)) {
      fail(join(path, field), `is not a field of a contract; the fields here are ${Object.keys(fields).join(', ')}`)
    }
  }
  for (const [field, kind] of Object.entries(fields)) {
    if (!isKind(kind)) checkFields(given[field], kind, join(path, field), fail)
    else if (!kind.fits(given[field]))
      fail(join(path, field), `must be ${kind.expected}, but is ${shown(given[field])}`)
  }
}

function isKind(value: Kind | Fields): value is Kind {
  return typeof value.fits === 'function'
}

function join(path: string, field: string): string {
  return path ? `${path}.${field}` : field
}

function shown(value: unknown): string {
  return value === undefined ? 'missing' : (JSON.stringify(value) ?? typeof value)
}

function merge(base: unknown, changes: unknown): unknown {
  if (changes === undefined) return base
  if (typeof base !== 'object' || base === null || Array.isArray(base)) return changes
  if (typeof changes !== 'object' || changes === null || Array.isArray(changes)) return changes
  const merged: Record<string, unknown> = { ...base }
  for (const [field, change] of Object.entries(changes)) {
    merged[field] = merge((base as Record<string, unknown>)[field], change)
  }
  return merged
}
