import { setTimeout as pause } from 'node:timers/promises'

/** Clients as they are: they retry what they got no answer to, ask twice, race themselves, and reuse a key by mistake. */
export interface Storm {
  readonly counts: Readonly<StormCounts>
  /** Begins nothing more, and resolves when every client has come to its end. */
  stop(): Promise<void>
}

interface StormCounts {
  /** What clients wanted to have done. */
  operations: number
  requests: number
  /** Operations that ended with an answer of the service. */
  done: number
  replayed: number
  conflicts: number
  /** Operations whose outcome nobody knows: a person looks them up. */
  unknown: number
  /** Operations that had no answer after all their retries. */
  givenUp: number
}

export interface StormOptions {
  readonly gate: string
  readonly operationsPerSecond: number
  readonly random?: () => number
}

type Kind = 'plain' | 'asks-again' | 'race' | 'reuses-key' | 'impatient'

/** Which client comes next: the rest of the probability is a plain one. */
const KINDS: ReadonlyArray<readonly [Kind, share: number]> = [
  ['asks-again', 0.25],
  ['race', 0.12],
  ['reuses-key', 0.06],
  ['impatient', 0.07],
]

const ACCOUNTS = ['acme', 'globex', 'initech', 'umbrella']
const RUNNING_MAX = 100
const TRIES_MAX = 8
const RETRY_MS = 150
const RACERS = 5
const IMPATIENT_MS = 200
const REQUEST_MS_MAX = 10_000

export function startStorm({ gate, operationsPerSecond, random = Math.random }: StormOptions): Storm {
  const counts = { operations: 0, requests: 0, done: 0, replayed: 0, conflicts: 0, unknown: 0, givenUp: 0 }
  const running = new Set<Promise<void>>()
  const stopping = new AbortController()
  const session = Date.now().toString(36)

  const begin = (): void => {
    // Behind a gate that is slow the storm thins out, and does not pile up.
    if (running.size >= RUNNING_MAX) return
    counts.operations += 1
    const client = new Client(gate, `${session}-${counts.operations}`, random, counts, stopping.signal)
    const ended = client.live(kindOf(random())).finally(() => running.delete(ended))
    running.add(ended)
  }
  const timer = setInterval(begin, 1_000 / operationsPerSecond)
  return {
    counts,
    async stop() {
      clearInterval(timer)
      stopping.abort()
      await Promise.all(running)
    },
  }
}

function kindOf(drawn: number): Kind {
  let rest = drawn
  for (const [kind, share] of KINDS) {
    rest -= share
    if (rest < 0) return kind
  }
  return 'plain'
}

class Client {
  readonly #url: string
  readonly #name: string
  readonly #account: string
  readonly #amount: number
  readonly #counts: StormCounts
  readonly #stopping: AbortSignal

  constructor(gate: string, name: string, random: () => number, counts: StormCounts, stopping: AbortSignal) {
    this.#url = `${gate}/charges`
    this.#name = name
    this.#account = ACCOUNTS[Math.floor(random() * ACCOUNTS.length)] ?? 'acme'
    this.#amount = 100 + Math.floor(random() * 9_900)
    this.#counts = counts
    this.#stopping = stopping
  }

  async live(kind: Kind): Promise<void> {
    if (kind === 'race') await Promise.all(Array.from({ length: RACERS }, () => this.#send(this.#amount)))
    if (kind === 'impatient') await this.#send(this.#amount, IMPATIENT_MS)
    if (!(await this.#untilAnswered())) return
    if (kind === 'asks-again') await this.#send(this.#amount)
    // Another amount under the same key: a bug of the client, and money if nobody saw it.
    if (kind === 'reuses-key') await this.#send(this.#amount + 1)
  }

  async #untilAnswered(): Promise<boolean> {
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const answer = await this.#send(this.#amount)
      if (answer === 'done') {
        this.#counts.done += 1
        return true
      }
      if (answer === 'unknown') {
        this.#counts.unknown += 1
        return false
      }
      if (this.#stopping.aborted) return false
      await pause(RETRY_MS * (tries + 1), undefined, { signal: this.#stopping }).catch(() => {})
    }
    this.#counts.givenUp += 1
    return false
  }

  async #send(amount: number, waitMs = REQUEST_MS_MAX): Promise<'done' | 'unknown' | 'again'> {
    this.#counts.requests += 1
    try {
      const response = await fetch(this.#url, {
        method: 'POST',
        headers: {
          'Content-Type': 'application/json',
          'Idempotency-Key': `order-${this.#name}`,
          'X-Account': this.#account,
        },
        body: JSON.stringify({ order: this.#name, amount, currency: 'eur' }),
        signal: AbortSignal.timeout(waitMs),
      })
      const text = await response.text()
      if (response.headers.get('idempotent-replayed') === 'true') this.#counts.replayed += 1
      if (response.status === 422) this.#counts.conflicts += 1
      // 502: the gate has seen the connection break, and says so at once.
      if (response.status === 502 || text.includes('"outcome-unknown"')) return 'unknown'
      return response.status < 500 && response.status !== 409 ? 'done' : 'again'
    } catch {
      return 'again'
    }
  }
}
