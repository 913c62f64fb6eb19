import { OncekeyError } from '../../error.ts'
import type { NatsJetStream, NatsManager, NatsStreamInfo } from './client.ts'
import { faultOf, isConflict, isNoLeader, NoReply, tooLarge } from './faults.ts'
import { decode, type Entry, idOfKey, keyOfId } from './record.ts'

/** The bucket as a set of values, each replaced only by those who know its revision. */
export class Bucket {
  readonly name: string
  readonly subjects: string
  readonly stream: string
  readonly js: NatsJetStream
  readonly #prefix: string
  readonly #requestMsMax: number
  #ready: Promise<Settings> | undefined

  constructor(js: NatsJetStream, name: string, requestMsMax: number) {
    this.js = js
    this.name = name
    this.stream = `KV_${name}`
    this.#prefix = `$KV.${name}.`
    this.subjects = `${this.#prefix}>`
    this.#requestMsMax = requestMsMax
  }

  /** Looks at the bucket's configuration, once. What fails is tried again by the next who asks. */
  settings(): Promise<Settings> {
    this.#ready ??= this.#look().catch((error: unknown) => {
      this.#ready = undefined
      throw error
    })
    return this.#ready
  }

  subjectOf(id: string): string {
    return this.#prefix + keyOfId(id)
  }

  /**
   * Stores the value if the id is at this revision (0: has none), in one atomic step of the server. `undefined`: it is
   * not, and nothing was changed.
   *
   * A cluster of NATS 2.9.0 to 2.9.20 compares a revision other than 0 only before it proposes the write, so that several
   * writers of one moment all pass. Message ids it compares when it carries the write out, on every replica: so each
   * revision names the one message that may follow it, on every version.
   */
  async write(id: string, value: Uint8Array, revision: number): Promise<number | undefined> {
    const subject = this.subjectOf(id)
    const { valueBytesMax } = await this.settings()
    if (value.byteLength > valueBytesMax) throw tooLarge(this.name, value.byteLength, valueBytesMax)
    const expect = { lastSubjectSequence: revision }
    const once = revision === 0 ? {} : { msgID: `${subject}@${revision}` }
    try {
      const ack = await this.#patiently(() =>
        this.js.publish(subject, value, { timeout: this.#requestMsMax, expect, ...once }),
      )
      return ack.duplicate ? undefined : ack.seq
    } catch (error) {
      if (isConflict(error)) return undefined
      throw await this.#fault(error, value.byteLength)
    }
  }

  /** Asks the leader: another replica may not have heard of the newest write yet, whatever `allow_direct` says. */
  async read(id: string): Promise<Entry | undefined> {
    const message = await this.last(this.subjectOf(id))
    return message ? decode(id, message.data, message.seq, message.time.getTime()) : undefined
  }

  async last(subject: string): Promise<Awaited<ReturnType<NatsManager['streams']['getMessage']>>> {
    try {
      const { streams } = await this.#manager()
      return await this.#patiently(() => streams.getMessage(this.stream, { last_by_subj: subject }))
    } catch (error) {
      throw await this.#fault(error)
    }
  }

  /** Removes the id's values up to this revision. A newer one, whoever wrote it meanwhile, stays. */
  async purge(id: string, revision: number): Promise<void> {
    try {
      const { streams } = await this.#manager()
      await this.#patiently(() => streams.purge(this.stream, { filter: this.subjectOf(id), seq: revision + 1 }))
    } catch (error) {
      throw await this.#fault(error)
    }
  }

  /** Stores a value that nobody reads, and gives its revision: for its time. */
  async touch(key: string): Promise<number> {
    try {
      const subject = this.#prefix + key
      const send = () => this.js.publish(subject, NOTHING, { timeout: this.#requestMsMax })
      return (await this.#patiently(send)).seq
    } catch (error) {
      throw await this.#fault(error)
    }
  }

  lastOfKey(key: string): ReturnType<Bucket['last']> {
    return this.last(this.#prefix + key)
  }

  /** The ids of all values, tombstones too, in their order. */
  async ids(): Promise<string[]> {
    try {
      const { streams } = await this.#manager()
      const query = { subjects_filter: this.subjects }
      const { state } = await this.#patiently(() => streams.info(this.stream, query))
      const ids: string[] = []
      for (const subject of Object.keys(state.subjects ?? {})) {
        const id = this.idOf(subject)
        if (id !== undefined) ids.push(id)
      }
      return ids.sort()
    } catch (error) {
      throw await this.#fault(error)
    }
  }

  idOf(subject: string): string | undefined {
    return idOfKey(subject.slice(this.#prefix.length))
  }

  /** Nobody listened, so nothing was stored: while a new leader is elected it is asked again. */
  async #patiently<T>(request: () => Promise<T>): Promise<T> {
    const deadline = performance.now() + this.#requestMsMax
    for (let delayMs = RETRY_MS_MIN; ; delayMs = Math.min(2 * delayMs, RETRY_MS_MAX)) {
      try {
        return await this.#bounded(request())
      } catch (error) {
        if (!isNoLeader(error) || performance.now() + delayMs > deadline) throw error
        await new Promise((resolve) => setTimeout(resolve, delayMs))
      }
    }
  }

  /** The driver bounds a request by the caller's own setting, which may be longer. */
  #bounded<T>(request: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new NoReply(`no reply within ${this.#requestMsMax} ms`)),
        this.#requestMsMax,
      )
      request.then(resolve, reject).finally(() => clearTimeout(timer))
    })
  }

  async #manager(): Promise<NatsManager> {
    return this.js.jetstreamManager(false)
  }

  async #look(): Promise<Settings> {
    try {
      const { streams } = await this.#manager()
      return settingsOf(this.name, await this.#patiently(() => streams.info(this.stream)))
    } catch (error) {
      throw faultOf(error, this.name)
    }
  }

  /** A write to a bucket that is not there looks like one to a cluster without a leader: the difference is looked up. */
  async #fault(error: unknown, valueBytes = 0): Promise<unknown> {
    if (!isNoLeader(error)) return faultOf(error, this.name, valueBytes)
    this.#ready = undefined
    return this.settings().then(
      () => faultOf(error, this.name),
      (reason: unknown) => reason,
    )
  }
}

export interface Settings {
  readonly replicas: number
  /** The bucket's own time to live; `Infinity` when it has none. */
  readonly ageMsMax: number
  readonly valueBytesMax: number
}

function settingsOf(name: string, { config }: NatsStreamInfo): Settings {
  const refuse = (what: string): never => {
    throw new OncekeyError('config-invalid', `The NATS bucket ${name} ${what}`)
  }
  if (config.sealed || config.mirror) refuse('cannot be written: it is sealed or a mirror. Give the original.')
  const isLimited = config.max_bytes > 0 || config.max_msgs > 0
  if (config.retention !== 'limits' || (isLimited && config.discard !== 'new')) {
    refuse(
      'drops its oldest values to make room, and with them operations that are still running. Set its discard policy ' +
        'to "new": a full bucket must refuse, not forget.',
    )
  }
  if (config.duplicate_window / NANOS_PER_MS < DUPLICATE_WINDOW_MS_MIN) {
    refuse(`remembers message ids for less than ${DUPLICATE_WINDOW_MS_MIN} ms. Raise duplicate_window, or its ttl.`)
  }
  return {
    replicas: config.num_replicas,
    ageMsMax: config.max_age > 0 ? config.max_age / NANOS_PER_MS : Number.POSITIVE_INFINITY,
    valueBytesMax: config.max_msg_size && config.max_msg_size > 0 ? config.max_msg_size : Number.POSITIVE_INFINITY,
  }
}

const NOTHING = new Uint8Array(0)
const NANOS_PER_MS = 1_000_000
/** Longer than any write can be under way between two replicas. */
const DUPLICATE_WINDOW_MS_MIN = 5_000
const RETRY_MS_MIN = 20
const RETRY_MS_MAX = 250
