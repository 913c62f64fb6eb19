/** What one attempt came to: an answer, or an error of the network. */
export interface AnswerOf {
  readonly response?: Response
  /** The machine-readable code in the answer's body: `code`, or `error.code`. Read for a 409 only. */
  readonly code?: string
  readonly error?: unknown
}

/**
 * Whether sending the same again, with the same key, can bring another answer: the network failed, the server says that
 * it did nothing yet, or the first request with this key is still running. A replayed answer is final, whatever its
 * status: the server has kept it and will only repeat it.
 */
export function isWorthRetrying({ response, code }: AnswerOf): boolean {
  if (response === undefined) return true
  if (isReplay(response)) return false
  if (response.status !== 409) return STATUSES.has(response.status)
  return response.headers.has('retry-after') || (code !== undefined && IN_FLIGHT_CODES.has(code))
}

/** Whether the server answered from its record, without doing anything now. */
export function isReplay(response: Response): boolean {
  return REPLAY_HEADERS.some((name) => response.headers.get(name) === 'true')
}

const STATUSES: ReadonlySet<number> = new Set([408, 425, 429, 502, 503, 504])
const REPLAY_HEADERS = ['Idempotent-Replayed', 'Idempotency-Replay', 'Idempotency-Replayed'] as const
/** As the contracts of this library write it. Others are heard through Retry-After, or by a predicate of the caller's. */
const IN_FLIGHT_CODES: ReadonlySet<string> = new Set([
  'in-flight',
  'idempotency_key_in_use',
  'IDEMPOTENCY_IN_PROGRESS',
  'protocol.idempotency_in_flight',
])

/** The code in a JSON answer. The caller can still read the whole body. */
export async function codeOf(response: Response): Promise<string | undefined> {
  if (!/\bjson\b/i.test(response.headers.get('content-type') ?? '')) return undefined
  if (Number(response.headers.get('content-length') ?? 0) > CODE_BYTES_MAX) return undefined
  try {
    const text = await textOf(response.clone().body)
    const document: unknown = text === undefined ? undefined : JSON.parse(text)
    return textAt(document, 'code') ?? textAt(property(document, 'error'), 'code')
  } catch {
    // A body that breaks off or is no JSON has no code.
    return undefined
  }
}

const CODE_BYTES_MAX = 65_536

async function textOf(body: ReadableStream<Uint8Array> | null): Promise<string | undefined> {
  const reader = body?.getReader()
  const decoder = new TextDecoder()
  let text = ''
  for (let bytes = 0; ; ) {
    const next = await reader?.read()
    if (next === undefined || next.done) return text + decoder.decode()
    bytes += next.value.length
    if (bytes > CODE_BYTES_MAX) {
      void reader?.cancel().catch(() => {})
      return undefined
    }
    text += decoder.decode(next.value, { stream: true })
  }
}

function property(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[name] : undefined
}

function textAt(value: unknown, name: string): string | undefined {
  const found = property(value, name)
  return typeof found === 'string' ? found : undefined
}

/** What Retry-After asks for; `undefined` when it is not there or says nothing. */
export function retryAfterMsOf({ headers }: Response, nowMs: number): number | undefined {
  const value = headers.get('retry-after')?.trim()
  if (value === undefined || value === '') return undefined
  if (/^\d+$/.test(value)) return Number(value) * 1_000
  const atMs = Date.parse(value)
  if (Number.isNaN(atMs)) return undefined
  // Counted from the server's own date where it is told: the clocks need not agree.
  const dateMs = Date.parse(headers.get('date') ?? '')
  return Math.max(0, atMs - (Number.isNaN(dateMs) ? nowMs : dateMs))
}
