import { signal } from '@preact/signals'

export type { Rates, SeenEvent, SeriesName } from '../../src/admin/history.ts'
export type { AnswerView, Expiry, OperationStory, OperationView } from '../../src/admin/operations.ts'
export type { Status } from '../../src/admin/server.ts'

export type Verb = 'release' | 'fail' | 'redact'

/** Kept for this tab only, and never put into an address. */
const TOKEN_ITEM = 'oncekey-token'
/** A new object for each token that is given: whoever was refused asks again. */
export const session = signal({ token: sessionStorage.getItem(TOKEN_ITEM) ?? '' })
/** The API wants a token, or another one than this. */
export const isLockedOut = signal(false)

export function unlock(value: string): void {
  sessionStorage.setItem(TOKEN_ITEM, value)
  isLockedOut.value = false
  session.value = { token: value }
}

export class ApiError extends Error {
  /** 0: no answer came at all. */
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export function authorization(): Record<string, string> {
  const { token } = session.peek()
  return token === '' ? {} : { Authorization: `Bearer ${token}` }
}

export async function get<T>(path: string, abort?: AbortSignal): Promise<T> {
  return ask<T>(path, { headers: authorization(), ...(abort && { signal: abort }) })
}

export async function act(id: string, verb: Verb, body: object = {}): Promise<void> {
  await ask(`/api/operations/${encodeURIComponent(id)}/${verb}`, {
    method: 'POST',
    headers: { ...authorization(), 'X-Oncekey-Admin': '1', 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  })
}

async function ask<T>(path: string, init: RequestInit): Promise<T> {
  let response: Response
  try {
    response = await fetch(path, init)
  } catch (error) {
    if (init.signal?.aborted) throw error
    throw new ApiError(0, 'The admin API does not answer. Is the process still running?')
  }
  if (response.ok) return (await response.json()) as T
  throw await refusalOf(response)
}

/** Also tells everybody that a token is wanted. */
export async function refusalOf(response: Response): Promise<ApiError> {
  if (response.status === 401) isLockedOut.value = true
  const told: unknown = await response.json().catch(() => undefined)
  const detail = typeof told === 'object' && told !== null && 'detail' in told ? String(told.detail) : undefined
  return new ApiError(response.status, detail ?? `The admin API answered with ${response.status}.`)
}
