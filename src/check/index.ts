import { OncekeyError } from '../error.ts'
import { conflictCases } from './cases/conflict.ts'
import { failureCases } from './cases/failures.ts'
import { headerCases } from './cases/headers.ts'
import { inFlightCases } from './cases/in-flight.ts'
import { keyCases } from './cases/keys.ts'
import { raceCases } from './cases/race.ts'
import { readCases } from './cases/reads.ts'
import { replayCases } from './cases/replay.ts'
import { tenantCases } from './cases/tenants.ts'
import { NoAnswer } from './client.ts'
import { fail } from './finding.ts'
import { type Case, CaseEnd, LOOK_REQUESTS_MAX, Session } from './session.ts'
import type { CaseReport, CheckOptions, CheckReport, Finding } from './types.ts'

export { toJunit } from './junit.ts'
export { toText } from './report.ts'
export type * from './types.ts'

const CASES: readonly Case[] = [
  ...replayCases,
  ...conflictCases,
  ...raceCases,
  ...inFlightCases,
  ...keyCases,
  ...headerCases,
  ...readCases,
  ...failureCases,
  ...tenantCases,
]

/**
 * Checks anybody's idempotent API from outside. It sends real writes, at most as many as `onStart` is told.
 *
 * Throws an `OncekeyError` when there is nothing to judge: an option that cannot work, a service that cannot be reached,
 * or one that does not take the request in the first place. Whatever the service does wrong after that is a finding.
 */
export async function checkApi(options: CheckOptions): Promise<CheckReport> {
  checkOptions(options)
  const cases = chosen(options.only)
  const session = new Session(options)
  const startedAt = new Date()
  const { url, method = 'POST', keyHeader = 'Idempotency-Key' } = options
  const { origin, pathname } = new URL(url)
  options.onStart?.({ cases: cases.length, requestsMax: requestsMax(cases) })
  session.begin(LOOK_REQUESTS_MAX)
  try {
    await session.look()
  } catch (error) {
    if (!(error instanceof NoAnswer)) throw error
    throw new OncekeyError(
      'config-invalid',
      `${origin}${pathname} gave no answer: ${error.message}. Start the service, or correct the URL or --timeout.`,
      { cause: error },
    )
  }
  const reports: CaseReport[] = []
  for (const one of cases) {
    const report = await reported(one, session)
    reports.push(report)
    options.onCase?.(report, reports.length, cases.length)
  }
  const totals = { pass: 0, fail: 0, warn: 0, skip: 0 }
  for (const { verdict } of reports) totals[verdict]++
  return {
    format: 1,
    url: origin + pathname,
    method,
    keyHeader,
    probe: session.probe,
    cases: reports,
    totals,
    requests: session.requests,
    startedAt: startedAt.toISOString(),
    durationMs: Date.now() - startedAt.getTime(),
  }
}

function requestsMax(cases: readonly Case[]): number {
  return cases.reduce((sum, one) => sum + one.requestsMax, LOOK_REQUESTS_MAX)
}

async function reported(one: Case, session: Session): Promise<CaseReport> {
  const startedMs = performance.now()
  const before = session.requests
  session.begin(one.requestsMax)
  const finding = await found(one, session)
  const { id, title, sent, basis } = one
  const requests = session.requests - before
  const durationMs = Math.round(performance.now() - startedMs)
  return { id, title, ...finding, sent, basis, keys: session.keys, requests, durationMs }
}

async function found(one: Case, session: Session): Promise<Finding> {
  try {
    return await one.run(session)
  } catch (error) {
    if (error instanceof CaseEnd) return error.finding
    if (error instanceof NoAnswer) {
      const meaning = 'A client that hears nothing retries, and so meets this again.'
      return fail(`No answer: ${error.message}.`, meaning, 'Look into the service’s log, or give a longer --timeout.')
    }
    if (error instanceof OncekeyError) {
      return fail(
        error.message,
        'The effects could not be read any more, so the case could not be judged.',
        'Run again.',
      )
    }
    throw error
  }
}

function chosen(only: readonly string[] | undefined): readonly Case[] {
  if (only === undefined || only.length === 0) return CASES
  const chapters = [...new Set(CASES.map(({ id }) => chapterOf(id)))]
  for (const wanted of only) {
    if (chapters.includes(wanted) || CASES.some(({ id }) => id === wanted)) continue
    throw invalid(
      `There is no case ${JSON.stringify(wanted)} for --only; the chapters are ${chapters.join(', ')}, and a case is for example ${CASES[0]?.id}.`,
    )
  }
  return CASES.filter(({ id }) => only.includes(id) || only.includes(chapterOf(id)))
}

function chapterOf(id: string): string {
  return id.split('.', 1)[0] ?? id
}

const TOKEN = /^[!#$%&'*+.^_`|~\dA-Za-z-]+$/
const FIELD_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

function checkOptions(options: CheckOptions): void {
  const { url, countUrl, method = 'POST', keyHeader = 'Idempotency-Key', timeoutMs = 1 } = options
  for (const [flag, value] of [
    ['The URL', url],
    ['--count-url', countUrl],
  ] as const) {
    if (value === undefined) continue
    const { protocol } = URL.parse(value) ?? {}
    if (protocol === 'http:' || protocol === 'https:') continue
    throw invalid(`${flag} is ${JSON.stringify(value)}; give one that begins with http:// or https://.`)
  }
  if (options.countPath !== undefined && countUrl === undefined) throw invalid('--count-path needs --count-url.')
  if (!TOKEN.test(method)) throw invalid(`--method is ${JSON.stringify(method)}; give a method such as POST.`)
  if (/^(?:GET|HEAD|OPTIONS|TRACE|CONNECT)$/i.test(method)) {
    throw invalid(`--method is ${method}, which writes nothing; give the method of a write, such as POST.`)
  }
  if (!TOKEN.test(keyHeader)) throw invalid(`--key-header is ${JSON.stringify(keyHeader)}; give the name of a header.`)
  const { keyTemplate = '{{uuid}}' } = options
  if (!/\{\{(?:n|uuid|hex)\}\}/.test(keyTemplate)) {
    throw invalid(
      `--key-template is ${JSON.stringify(keyTemplate)}; put {{uuid}}, {{hex}} or {{n}} in it, for new keys.`,
    )
  }
  for (const [name, value] of [...(options.headers ?? []), ...(options.secondPrincipal ?? [])]) {
    // The value may be a secret, and stays out of the message.
    if (!TOKEN.test(name) || !FIELD_VALUE.test(value)) {
      throw invalid(`The header ${JSON.stringify(name)} cannot be sent; write 'Name: value' in visible characters.`)
    }
  }
  if (!Number.isSafeInteger(timeoutMs) || timeoutMs < 1 || timeoutMs > TIMEOUT_MS_MAX) {
    throw invalid(`--timeout is ${timeoutMs} ms; give 1 ms to ${TIMEOUT_MS_MAX / 1_000} s.`)
  }
}

const TIMEOUT_MS_MAX = 600_000

function invalid(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}
