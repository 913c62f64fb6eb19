/** Why an operation was refused, as a stable machine-readable code. Each has a text in `refusal.ts`. */
export type RefusalCode =
  | 'key-missing'
  | 'key-invalid'
  | 'key-conflict'
  | 'key-expired'
  | 'in-flight'
  | 'outcome-unknown'
  | 'answer-not-kept'
  | 'store-unavailable'
  | 'body-too-large'

export type ErrorCode =
  | RefusalCode
  /** Plain code: the recorded outcome of this operation is that its handler threw. */
  | 'handler-failed'
  /** Thrown by a handler of plain code to say: I did nothing, forget this attempt. Over HTTP, answer 503 or 429. */
  | 'nothing-done'
  /** A contract, option or argument that cannot work; the text names the field. */
  | 'config-invalid'
  | 'store-full'
  | 'store-closed'
  /** The database was written by a newer oncekey, or holds something that is not ours. */
  | 'store-incompatible'

/** The one error class. `code` says what happened; the message says what it means and what to do next. */
export class OncekeyError extends Error {
  override readonly name = 'OncekeyError'
  readonly code: ErrorCode
  /** When a retry makes sense, and how long to wait for it. */
  readonly retryAfterMs: number | undefined

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; retryAfterMs?: number } = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : undefined)
    this.code = code
    this.retryAfterMs = options.retryAfterMs
  }
}
