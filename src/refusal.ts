import type { RefusalCode } from './error.ts'

/** Why the engine did not run the handler and has no answer to replay. */
export interface Refusal {
  readonly code: RefusalCode
  /** What happened, what it means for the client's operation, and what to do next. */
  readonly detail: string
  readonly retryAfterMs?: number
}

export const REFUSAL_TITLES: Readonly<Record<RefusalCode, string>> = {
  'key-missing': 'An idempotency key is required',
  'key-invalid': 'The idempotency key is not valid',
  'key-conflict': 'The idempotency key was used for a different request',
  'key-expired': 'The idempotency key has expired',
  'in-flight': 'The first request with this idempotency key is still running',
  'outcome-unknown': 'The outcome of the first request with this idempotency key is unknown',
  'answer-not-kept': 'The answer to the first request was not kept',
  'store-unavailable': 'Idempotency cannot be guaranteed at the moment',
  'body-too-large': 'The request body is too large',
}

const DETAILS: Readonly<Record<RefusalCode, string>> = {
  'key-missing':
    'This request carries no idempotency key, so it was not run. Send a key that is new for each operation and the same for each retry of it.',
  'key-invalid': 'The idempotency key cannot be read, so the request was not run.',
  'key-conflict':
    'An earlier request used this key with another method, address or body. This request was not run, and the earlier one is untouched. Use a new key for a new operation, or send the retry exactly as it was first sent.',
  'key-expired':
    'This key was used before, and its answer is no longer kept. The request was not run. Look up whether the first operation took place; use a new key for a new one.',
  'in-flight':
    'Another request with this key is being processed, so this one was not run. Retry with the same key after the time in Retry-After to get its answer.',
  'outcome-unknown':
    'The first request with this key began, but its outcome was never recorded: it may or may not have taken effect. To be safe this request was not run. Look up the state of the operation before you act; a new key would run it again.',
  'answer-not-kept':
    'The first request with this key was completed, but its answer is not there: it was too large to keep, or was removed. The operation will not run again. Read its result from the resource itself.',
  'store-unavailable':
    'The record of idempotency keys cannot be reached, so the request was not run. Retry with the same key.',
  'body-too-large': 'The request body is larger than this service accepts, so the request was not run.',
}

export function refusal(
  code: RefusalCode,
  { detail = DETAILS[code], retryAfterMs }: { detail?: string | undefined; retryAfterMs?: number | undefined } = {},
): Refusal {
  return retryAfterMs === undefined ? { code, detail } : { code, detail, retryAfterMs }
}
