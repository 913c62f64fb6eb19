import type { ServerResponse } from 'node:http'

/** An answer of the gate itself: what happened, what it means for the operation, what to do next. */
export interface Problem {
  readonly status: number
  readonly code: string
  readonly title: string
  readonly detail: string
  readonly retryAfterSeconds?: number
  /** The connection cannot be used again, because the rest of the request on it will not be read. */
  readonly close?: boolean
}

/** Never throws: a response that cannot take it any more is cut. */
export function sendProblem(response: ServerResponse, problem: Problem): void {
  if (response.destroyed && response.headersSent) return
  try {
    for (const [name, value] of problemHeaders(problem)) response.setHeader(name, value)
    if (problem.close) response.setHeader('Connection', 'close')
    response.statusCode = problem.status
    // Of an answer that could not be sent.
    response.statusMessage = ''
    response.end(problemBody(problem))
  } catch {
    response.destroy()
  }
}

/** The same for a connection on which no response object exists: the request on it could not be read. */
export function problemMessage(problem: Problem): string {
  const body = problemBody(problem)
  let head = `HTTP/1.1 ${problem.status} ${problem.title}\r\nConnection: close\r\n`
  for (const [name, value] of problemHeaders(problem)) head += `${name}: ${value}\r\n`
  return `${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
}

function problemBody({ status, code, title, detail }: Problem): string {
  return JSON.stringify({ type: 'about:blank', title, status, detail, code })
}

function problemHeaders({ retryAfterSeconds }: Problem): Array<readonly [string, string]> {
  const headers: Array<readonly [string, string]> = [
    ['Content-Type', 'application/problem+json'],
    ['Cache-Control', 'no-store'],
  ]
  if (retryAfterSeconds !== undefined) headers.push(['Retry-After', String(retryAfterSeconds)])
  return headers
}

const RETRY_AFTER_SECONDS = 1

export const SHED: Problem = {
  status: 503,
  code: 'overloaded',
  title: 'The gate has no room for this request',
  detail: 'Too much is under way at the moment, so this request was not run. Retry it with the same key.',
  retryAfterSeconds: RETRY_AFTER_SECONDS,
  close: true,
}

export const STOPPING: Problem = {
  status: 503,
  code: 'stopping',
  title: 'The gate is being stopped',
  detail:
    'This request was not run. Retry it with the same key; another gate, or this one after its start, will take it.',
  retryAfterSeconds: RETRY_AFTER_SECONDS,
  close: true,
}

export const UPSTREAM_REFUSED: Problem = {
  status: 503,
  code: 'upstream-refused',
  title: 'The service cannot be reached',
  detail:
    'The service behind this gate did not take the connection, so nothing of the request was sent and nothing was done. Retry it with the same key.',
  retryAfterSeconds: RETRY_AFTER_SECONDS,
}

const OUTCOME_UNKNOWN =
  'The request had already been sent, so it may or may not have taken effect, and the gate does not send it again. Look up the state of the operation before you act; a new key would run it again.'

export const UPSTREAM_BROKEN: Problem = {
  status: 502,
  code: 'upstream-broken',
  title: 'The service broke off its answer',
  detail: `The connection to the service failed before its answer was whole. ${OUTCOME_UNKNOWN}`,
}

export const UPSTREAM_TIMEOUT: Problem = {
  status: 504,
  code: 'upstream-timeout',
  title: 'The service did not answer in time',
  detail: `The service behind this gate took too long. ${OUTCOME_UNKNOWN}`,
}

export const BODY_TIMEOUT: Problem = {
  status: 408,
  code: 'request-timeout',
  title: 'The request did not arrive in time',
  detail: 'The body of this request took too long to arrive, so it was not run. Retry it with the same key.',
  close: true,
}

export const NO_PRINCIPAL = (detail: string): Problem => ({
  status: 401,
  code: 'no-principal',
  title: 'Nobody is named behind this request',
  detail: `${detail} The idempotency key of this request belongs to nobody, so it was not run.`,
})

export const FAILED: Problem = {
  status: 500,
  code: 'gate-failed',
  title: 'The gate failed',
  detail: 'The request was not run because of a fault in the gate. Retry it with the same key.',
}

export function badRequest(reason: string, status = 400, title = 'The request is not acceptable'): Problem {
  return { status, code: 'bad-request', title, detail: `${reason} Nothing was forwarded.`, close: true }
}
