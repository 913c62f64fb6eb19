import type { RefusalCode } from './error.ts'

/**
 * What a duplicate, a conflict, a crash or a dead store is answered with. Plain data: it can be written by hand, kept in
 * a file, shown to people and compared. `checkContract` refuses an impossible one.
 */
export interface Contract {
  readonly name: string
  /** The HTTP methods that are covered. A request with any other method passes untouched and never reaches the store. */
  readonly methods: readonly string[]
  readonly key: {
    readonly header: string
    /** No key sent: refuse it (400), run without protection, or let the payload itself be the key. */
    readonly absent: 'refuse' | 'bypass' | 'derive'
    readonly lengthMax: number
  }
  /** What tells equal keys apart, besides the principal, which always does. */
  readonly scope: ReadonlyArray<'method' | 'route'>
  /** A duplicate of a running operation: refused at once, or kept waiting for the answer. */
  readonly inFlight: 'reject' | 'wait'
  readonly waitMsMax: number
  /**
   * What becomes of the record when the handler has answered. Each entry is a status or a class such as `4xx`; an exact
   * status wins over its class, and every status from 200 to 599 must be covered.
   */
  readonly answers: {
    /** Kept and replayed. */
    readonly keep: readonly StatusPattern[]
    /** Forgotten, because the answer says that nothing was done: the next request with this key runs. */
    readonly release: readonly StatusPattern[]
    /** The answer does not tell whether the effect took place. */
    readonly unknown: readonly StatusPattern[]
  }
  readonly ttl: {
    /** Kept answers below 400. */
    readonly committedMs: number
    /** Kept answers from 400 up. */
    readonly rejectedMs: number
    /** Operations whose outcome nobody knows, counted from the end of their lease. */
    readonly unknownMs: number
    /** How long an expired key is refused. 0: it is a new key at once, and runs again. */
    readonly expiredMs: number
  }
  readonly lease: {
    /** A crashed owner holds its key for this long at most. Renewed at a third of it while the handler runs. */
    readonly ms: number
    /** After this long the lease is no longer renewed and the handler's signal aborts. */
    readonly handlerMsMax: number
  }
  /** A retry after a crash, when the outcome is unknown: refuse it, run again, or ask the reconcile hook. */
  readonly crash: 'refuse' | 'rerun' | 'reconcile'
  /** The store cannot be reached: run without protection (`open`), or refuse with 503 (`closed`). */
  readonly storeFailure: 'open' | 'closed'
  readonly headers: {
    /** Set to `true` on a replayed answer. */
    readonly replayed: string
    /** Set to `false` on a real answer that could not be recorded. */
    readonly recorded: string
    /** Send the key back on every answer, the original too. */
    readonly echoKey: boolean
    /** Which of the answer's headers are kept: names, or prefixes such as `x-order-*`. Never Set-Cookie. */
    readonly keep: readonly string[]
  }
  readonly errors: {
    /** `problem`: RFC 9457. `nested`: `{"error":{"code","message"}}`; `stripe` has a `type` in it, too. `flat`: `{"code","message"}`. */
    readonly shape: 'problem' | 'nested' | 'stripe' | 'flat'
    readonly docsUrl: string
    readonly statuses: Readonly<Record<RefusalCode, number>>
    /** Other names for the codes on the wire. */
    readonly codes: Readonly<Partial<Record<RefusalCode, string>>>
  }
  readonly limits: {
    readonly requestBytesMax: number
    /** A larger answer reaches the client whole, but is not kept: a retry is told so and does not run. */
    readonly answerBytesMax: number
  }
}

export type StatusPattern = number | '2xx' | '3xx' | '4xx' | '5xx'
export type Verdict = 'keep' | 'release' | 'unknown'

/** What the handler's status means for the record, by the contract's table. */
export function verdicts(contract: Contract): (status: number) => Verdict {
  const table = new Map<number, Verdict>()
  for (const verdict of VERDICTS) {
    for (const pattern of contract.answers[verdict]) {
      if (typeof pattern !== 'string') continue
      const first = Number(pattern[0]) * 100
      for (let status = first; status < first + 100; status++) table.set(status, verdict)
    }
  }
  for (const verdict of VERDICTS) {
    for (const pattern of contract.answers[verdict]) if (typeof pattern === 'number') table.set(pattern, verdict)
  }
  // A status outside 200–599 was never a promise of anything.
  return (status) => table.get(status) ?? 'unknown'
}

/** A test for header names, in whatever case, made from the contract's allow-list. */
export function headerFilter(contract: Contract): (name: string) => boolean {
  const exact = new Set<string>()
  const prefixes: string[] = []
  for (const entry of contract.headers.keep) {
    const name = entry.toLowerCase()
    if (name.endsWith('*')) prefixes.push(name.slice(0, -1))
    else exact.add(name)
  }
  const keeps = (name: string) =>
    !NEVER_KEPT.has(name) && (exact.has(name) || prefixes.some((prefix) => name.startsWith(prefix)))
  // Asked for every header of every answer, and always for the same few names.
  const known = new Map<string, boolean>()
  return (name) => {
    let kept = known.get(name)
    if (kept === undefined) {
      kept = keeps(name.toLowerCase())
      if (known.size < KNOWN_NAMES_MAX) known.set(name, kept)
    }
    return kept
  }
}

const KNOWN_NAMES_MAX = 1_000

export const VERDICTS = ['keep', 'release', 'unknown'] as const

/** Set-Cookie would hand one client's session to another; the rest belong to one connection or one message. */
export const NEVER_KEPT: ReadonlySet<string> = new Set([
  'set-cookie',
  'set-cookie2',
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'content-length',
  'date',
])
