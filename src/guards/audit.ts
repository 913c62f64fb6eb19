import { hash } from 'node:crypto'
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { type Clock, systemClock } from '../clock.ts'
import { OncekeyError } from '../error.ts'
import type { OncekeyEvent } from '../events.ts'
import type { Run } from '../execution.ts'
import { GroupCommit } from '../group-commit.ts'
import { canonicalBytes, canonicalValue } from '../operation/canonical.ts'
import { canonicalText } from '../operation/json.ts'
import { type AuditData, type AuditEntry, type Content, LINE_BYTES_MAX } from './audit/chain.ts'
import { ChainFile } from './audit/chain-file.ts'
import { Known } from './audit/known.ts'

export type { AuditBreak, AuditData, AuditEntry } from './audit/chain.ts'
export { type AuditVerdict, type VerifyOptions, verifyAudit } from './audit/verify.ts'

export interface AuditOptions {
  /** Made when absent, in a directory that exists. A lock file of the same name and `.lock` stands beside it. */
  readonly file: string
  /**
   * How long an operation finds its own entry again. Give the shortest time that the contract keeps an answer: after it
   * the key is new, and what happens under it is a new event. Default 24 h, as in the default contract.
   */
  readonly keyTtlMs?: number
  readonly clock?: Clock
}

export interface AuditEvent {
  /** What happened: lower case, such as `event` or `payment.refused`. `genesis`, `repair` and `retry` are the log's own. */
  readonly kind: string
  /** `requestHash(body)`. */
  readonly requestHash: string
  /** What JSON can carry without loss, 60 KB at most. */
  readonly data?: AuditData
}

export interface AuditLog {
  /**
   * Adds one line and resolves when it is on the disk; lines of the same moment share one sync. For one operation, kind and
   * request it adds one line only: a run after a crash is given the first one's entry, with the first one's data. So
   * answer from the entry, not from what was passed in.
   */
  append(run: Pick<Run, 'id'>, event: AuditEvent): Promise<AuditEntry>
  /** What is known of a request, in the order of the log, `limit` entries at most (default 1,000). Reads the whole file. */
  find(requestHash: string, limit?: number): Promise<readonly AuditEntry[]>
  /** The last line that is on the disk. Note it elsewhere: only so can the loss of the last lines be proved. */
  readonly head: { readonly seq: number; readonly hash: string }
  /** Resolves when all that was noted so far is on the disk, retries too. */
  idle(): Promise<void>
  /** Finishes accepted work and lets go of the file. Idempotent. */
  close(): Promise<void>
}

/**
 * An append-only log in which every line carries the hash of the line before, so that `verifyAudit` finds what was changed.
 *
 * The handler appends what it did. A retry never comes to the handler: the log hears of it from the engine (the
 * diagnostics channel of this process) and notes a line of kind `retry` under the same `request_hash`. So a request is
 * found as one event and as many retries as there were. Retries are written behind the answer; those that could not be
 * written are counted in the next such line, as `missed`. An operation is known by its id: two services in one process
 * whose callers, routes and keys are the same would be one to the log.
 *
 * Opening reads the whole log: a broken chain is refused, and a last line that a crash has cut off is taken away, with a
 * line of kind `repair` that says how many bytes it had. It was never acknowledged. One process at a time has a log open.
 */
export async function openAudit(options: AuditOptions): Promise<AuditLog> {
  const { file, keyTtlMs = KEY_TTL_MS_DEFAULT, clock = systemClock } = options
  if (typeof file !== 'string' || file === '') throw invalid('file must name the audit log')
  if (!(keyTtlMs > 0 && keyTtlMs < Number.POSITIVE_INFINITY)) {
    throw invalid(`keyTtlMs is ${keyTtlMs}; it must be a finite number of ms above 0`)
  }
  const known = new Known(clock, keyTtlMs)
  const chain = await ChainFile.open(file, clock, (entry, place) => known.add(entry, place))
  return new Log(chain, known)
}

/** SHA-256 of the RFC 8785 form of a JSON text in UTF-8; `undefined` when it has none (see `canonicalText`). */
export function requestHash(body: Uint8Array): string | undefined {
  const text = canonicalBytes(body)
  return text === undefined ? undefined : hash('sha256', text, 'hex')
}

class Log implements AuditLog {
  readonly #chain: ChainFile
  readonly #known: Known
  readonly #commits: GroupCommit<Submitted, AuditEntry>
  readonly #listen = (message: unknown) => this.#hear(message as OncekeyEvent)
  #missed = 0
  #closed: Promise<void> | undefined

  constructor(chain: ChainFile, known: Known) {
    this.#chain = chain
    this.#known = known
    this.#commits = new GroupCommit((batch) => this.#write(batch), LIMITS)
    subscribe('oncekey', this.#listen)
  }

  get head(): { readonly seq: number; readonly hash: string } {
    const { seq, hash } = this.#chain.last
    return { seq, hash }
  }

  async append(run: Pick<Run, 'id'>, event: AuditEvent): Promise<AuditEntry> {
    const { kind, requestHash, data = {} } = event
    if (!HASH.test(run?.id)) throw invalid('run has no id of 64 hex characters; pass what the handler was given')
    if (!KIND.test(kind) || OWN_KINDS.has(kind)) {
      throw invalid(`kind is ${JSON.stringify(kind)}; it must match ${KIND}, and not be ${[...OWN_KINDS].join(', ')}`)
    }
    if (!HASH.test(requestHash)) throw invalid('requestHash must be 64 hex characters, as requestHash(body) gives them')
    return this.#submit({ isOnce: true, kind, operation: run.id, requestHash, data: copyOf(data) })
  }

  async find(requestHash: string, limit: number = FIND_LIMIT_DEFAULT): Promise<readonly AuditEntry[]> {
    if (this.#closed) throw closed(this.#chain.file)
    return this.#chain.find(requestHash, limit)
  }

  idle(): Promise<void> {
    return this.#commits.drain()
  }

  close(): Promise<void> {
    this.#closed ??= this.#close()
    return this.#closed
  }

  async #close(): Promise<void> {
    unsubscribe('oncekey', this.#listen)
    await this.#commits.drain()
    await this.#chain.close()
  }

  async #submit(submitted: Submitted): Promise<AuditEntry> {
    if (this.#closed) throw closed(this.#chain.file)
    return this.#commits.submit(submitted)
  }

  /** A replay is a retry that the handler never sees. */
  #hear({ type, id, status, labels }: OncekeyEvent): void {
    if (type !== 'replayed') return
    // Not an operation of this log: another route of the application, or one that wrote no event.
    const requestHash = this.#known.requestOf(id)
    if (requestHash === undefined) return
    const missed = this.#missed
    this.#missed = 0
    const facts = { ...(status !== undefined && { status }), ...(missed > 0 && { missed }) }
    const data = labels && isCarried({ labels }) ? { ...facts, labels } : facts
    this.#submit({ isOnce: false, kind: 'retry', operation: id, requestHash, data }).catch(() => {
      this.#missed += missed + 1
    })
  }

  /** One batch at a time, so that what is looked up here cannot change before it is written. */
  async #write(batch: readonly Submitted[]): Promise<readonly AuditEntry[]> {
    const written = new Map<string, Submitted>()
    const firsts = batch.map((submitted) => {
      if (!submitted.isOnce) return submitted
      const name = JSON.stringify([submitted.operation, submitted.kind, submitted.requestHash])
      const first = written.get(name) ?? this.#known.placeOf(submitted) ?? submitted
      if (first === submitted) written.set(name, submitted)
      return first
    })
    const contents = batch.filter((submitted, i) => firsts[i] === submitted)
    const added = await this.#chain.append(contents)
    const entryOf = new Map(contents.map((content, i) => [content, added[i] as AuditEntry]))
    return Promise.all(
      firsts.map((first) => ('offset' in first ? this.#chain.read(first) : (entryOf.get(first) as AuditEntry))),
    )
  }
}

interface Submitted extends Content {
  /** It is one line, however often it is submitted. */
  readonly isOnce: boolean
}

const LIMITS = { batchMax: 256, queueMax: 10_000, inFlightMax: 1 } as const
const FIND_LIMIT_DEFAULT = 1_000
const KEY_TTL_MS_DEFAULT = 86_400_000
/** Leaves room for the other fields of the line. */
const DATA_BYTES_MAX = LINE_BYTES_MAX - 4_096
const KIND = /^[a-z][a-z0-9_.-]{0,63}$/
const HASH = /^[0-9a-f]{64}$/
const OWN_KINDS: ReadonlySet<string> = new Set(['genesis', 'repair', 'retry'])

/** As it is now, and as it will be read again: what the caller changes later is not in the log. */
function copyOf(data: AuditData): AuditData {
  if (isCarried(data)) return JSON.parse(canonicalValue(data))
  throw invalid(
    `data must be an object of what JSON can carry (no undefined, no BigInt, no -0), and ${DATA_BYTES_MAX} bytes at most; keep what is larger elsewhere, and put its hash here`,
  )
}

/** Whatever else stood in a line could not be verified later. */
function isCarried(data: AuditData): boolean {
  const text = canonicalValue(data)
  return text.startsWith('{') && canonicalText(text) === text && Buffer.byteLength(text) <= DATA_BYTES_MAX
}

function invalid(message: string): OncekeyError {
  return new OncekeyError('config-invalid', message)
}

function closed(file: string): OncekeyError {
  return new OncekeyError('store-closed', `The audit log ${file} was closed. Nothing was written.`)
}
