/** What to check, and what the service is like. Only `url` is needed; the rest makes more cases possible. */
export interface CheckOptions {
  /** An endpoint that takes a write. */
  readonly url: string
  /** Default POST. */
  readonly method?: string
  /** Sent with every request, also with those for the count. */
  readonly headers?: ReadonlyArray<readonly [name: string, value: string]>
  /** A payload that the service accepts. `{{n}}` and `{{uuid}}` in a text are new in each payload that is made of it. */
  readonly body?: string | Uint8Array
  /** Another payload that the service accepts. Default: `body` with new placeholders, or with one value changed. */
  readonly otherBody?: string | Uint8Array
  /** A payload that the service answers with a 4xx. Default: a JSON `body` that breaks off. */
  readonly rejectBody?: string | Uint8Array
  /** A payload that makes the service fail with a 5xx. */
  readonly failBody?: string | Uint8Array
  /** A payload that takes the service some time, so that a duplicate can come while it runs. */
  readonly slowBody?: string | Uint8Array
  /** Default `Idempotency-Key`. */
  readonly keyHeader?: string
  /** What its keys look like, with `{{n}}`, `{{uuid}}` or `{{hex}}` (16 hex digits) in it. Default `{{uuid}}`. */
  readonly keyTemplate?: string
  /** Headers that make the same request somebody else's. */
  readonly secondPrincipal?: ReadonlyArray<readonly [name: string, value: string]>
  /** Where the number of effects can be read as JSON. Nobody else may write while the check runs. */
  readonly countUrl?: string
  /** Where in that document: `/a/b` (RFC 6901) or `a.b`. An array counts by its length. Default: the whole document. */
  readonly countPath?: string
  /** How long one request may take. Default 10 s. */
  readonly timeoutMs?: number
  /** Chapters (`keys`) or cases (`keys.long`). Default: all of them. */
  readonly only?: readonly string[]
  /** Told before the first request how many there can be at most. */
  readonly onStart?: (plan: Plan) => void
  readonly onCase?: (done: CaseReport, index: number, total: number) => void
}

export interface Plan {
  readonly cases: number
  readonly requestsMax: number
}

/**
 * How a case ended. `warn`: allowed, but clients should know of it, or it could not be seen for certain. `skip`: it was
 * not judged, and `next` says what it needs.
 */
export type CaseVerdict = 'pass' | 'fail' | 'warn' | 'skip'

/** What one case found, in words for people. */
export interface Finding {
  readonly verdict: CaseVerdict
  /** What the service answered. */
  readonly came: string
  /** What that means for clients. */
  readonly meaning: string
  /** What to do about it; empty when there is nothing to do. */
  readonly next: string
}

export interface CaseReport extends Finding {
  /** `chapter.name`, stable: for `only` and for machines. */
  readonly id: string
  readonly title: string
  readonly sent: string
  /** The clause or the reason behind the case. */
  readonly basis: string
  /** The keys that were used, to find the requests in the service's own logs. */
  readonly keys: readonly string[]
  readonly requests: number
  readonly durationMs: number
}

/** The document that `--json` prints. A field may be added without notice; `format` changes when one changes or goes. */
export interface CheckReport {
  readonly format: 1
  /** Without credentials, query and fragment. */
  readonly url: string
  readonly method: string
  readonly keyHeader: string
  /** What the service was seen to do with the first requests, which the judgement rests on. */
  readonly probe: Probe
  readonly cases: readonly CaseReport[]
  readonly totals: Readonly<Record<CaseVerdict, number>>
  readonly requests: number
  readonly startedAt: string
  readonly durationMs: number
}

export interface Probe {
  /** The status of an ordinary first request. */
  readonly status: number
  /** Whether keys had to be sent in double quotes. */
  readonly keysAreQuoted: boolean
  /**
   * How a second run is told from a replay: by the number of effects; by answers, because two operations with one payload
   * are answered differently; or not at all, unless the service marks its replays.
   */
  readonly judgedBy: 'effects' | 'answers' | 'nothing'
}
