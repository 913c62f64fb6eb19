import type { Clock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import { operationId } from '../../operation/scope.ts'
import type { Awaitable, Store } from '../../store.ts'

/**
 * Counting by places. A tenant has a few chains of numbered places; an operation is counted when it has a place, and the
 * count is the number of places that are taken. Nothing is ever changed or added up, so nothing can be added twice.
 *
 * Everything is a *word*: a claim that is never settled, whose fingerprint is what it says. The first to write a word
 * has written it for all, and everybody else is told what it says. There are two kinds:
 *
 *   register   belongs to an operation, and says which place the operation tries to take
 *   place      belongs to a chain, and says which operation has it
 *
 * To book an operation: write its first register (the free end of the chain is proposed, but what the word says counts),
 * then write that place. If the place says this operation, it is counted. If it says another one, that is final, and the
 * next register, which is named after the lost place, says which place is tried next.
 *
 * Why it is exact, whoever else books the same operation, and wherever anyone is killed:
 *  - At most one place. Everybody goes through the same registers, and leaves a place only after it was seen to belong
 *    to another operation, for ever. A write that arrives late writes a place that all others would have written, too.
 *  - At least one, once anybody books again. Each step only continues what the words say already; there is no lease to
 *    wait for, no owner to take over from, and no step that has to be undone.
 *  - No gaps. A place is proposed only when the one before it was seen taken. So the end can be found by halving.
 */
export class Chains {
  readonly #store: Store
  readonly #settings: ChainSettings
  /** How long each chain is at least. Only saves the search: a place that turns out to be taken is not lost, but left. */
  readonly #lengths = new Map<string, number>()

  constructor(store: Store, settings: ChainSettings) {
    this.#store = store
    this.#settings = settings
  }

  /** Gives the operation its place, unless it has one. To be called for one operation of a chain at a time. */
  async book(operation: string, chain: string): Promise<void> {
    const { keepMs, rememberMs } = this.#settings
    let lostPlace = ''
    for (let tries = 0; tries < PLACES_TRIED_MAX; tries++) {
      const end = this.#lengths.get(chain) ?? (await this.#findEnd(chain, 0))
      const register = operationId(['oncekey meter', 'register', operation], lostPlace)
      const place = await this.#write(register, placeId(chain, end), rememberMs)
      const owner = await this.#write(place, operation, keepMs)
      if (place === placeId(chain, end)) this.#learn(chain, end + 1)
      if (owner === operation) return
      lostPlace = place
      this.#learn(chain, await this.#findEnd(chain, this.#lengths.get(chain) ?? 0))
    }
    throw new OncekeyError(
      'store-unavailable',
      `The operation was not counted yet: ${PLACES_TRIED_MAX} places were each taken by another one first. It is tried again.`,
    )
  }

  /** A few reads for each chain, however many places are taken. */
  async count(tenant: string): Promise<number> {
    const chains = Array.from({ length: CHAINS_PER_TENANT }, (_, number) => chainId(tenant, number))
    const ends = await Promise.all(chains.map((chain) => this.#findEnd(chain, this.#lengths.get(chain) ?? 0)))
    for (const [index, chain] of chains.entries()) this.#learn(chain, ends[index] ?? 0)
    return ends.reduce((sum, end) => sum + end, 0)
  }

  /** The first place that is free; all places before `from` are known to be taken. Doubles its steps, then halves them. */
  async #findEnd(chain: string, from: number): Promise<number> {
    let low = from
    let step = 1
    while (await this.#isTaken(chain, low + step - 1)) {
      low += step
      step *= 2
    }
    let free = low + step - 1
    while (low < free) {
      const middle = Math.floor((low + free) / 2)
      if (await this.#isTaken(chain, middle)) low = middle + 1
      else free = middle
    }
    return low
  }

  async #isTaken(chain: string, number: number): Promise<boolean> {
    return (await this.#bounded(() => this.#store.read(placeId(chain, number)))) !== undefined
  }

  /** What the word says from now on, for everybody: this, or what somebody wrote before. */
  async #write(id: string, word: string, leaseMs: number): Promise<string> {
    for (let tries = 0; tries < WRITES_MAX; tries++) {
      const request = { id, token: crypto.randomUUID(), fingerprint: word, leaseMs, unknownTtlMs: 0, takeover: false }
      const claim = await this.#bounded(() => this.#store.claim(request))
      if (claim.state === 'acquired') return word
      if (claim.fingerprint !== word) return claim.fingerprint
      // While another writer has not committed, a store may know no better than to repeat the question. A read tells.
      const written = await this.#bounded(() => this.#store.read(id))
      if (written !== undefined) return written.fingerprint
    }
    throw new OncekeyError(
      'store-unavailable',
      `${this.#store.name} says that ${id} is written, but does not show it. Nothing was counted yet; it is tried again.`,
    )
  }

  #learn(chain: string, length: number): void {
    const known = this.#lengths.get(chain) ?? 0
    this.#lengths.delete(chain)
    this.#lengths.set(chain, Math.max(known, length))
    const [oldest] = this.#lengths.keys()
    if (this.#lengths.size > LENGTHS_MAX && oldest !== undefined) this.#lengths.delete(oldest)
  }

  /** A store that hangs counts as one that failed: whether it wrote is seen when it is asked again. */
  async #bounded<T>(call: () => Awaitable<T>): Promise<T> {
    const { clock, callMsMax } = this.#settings
    let cancel = (): void => {}
    const late = new Promise<never>((_, reject) => {
      cancel = clock.schedule(callMsMax, () => {
        reject(new OncekeyError('store-unavailable', `${this.#store.name} gave no reply within ${callMsMax} ms`))
      })
    })
    try {
      return await Promise.race([call(), late])
    } finally {
      cancel()
    }
  }
}

export interface ChainSettings {
  readonly keepMs: number
  readonly rememberMs: number
  readonly callMsMax: number
  readonly clock: Clock
}

/** Which of the tenant's chains the operation belongs to. Several, because each chain grows one place at a time. */
export function chainOf(tenant: string, operation: string): string {
  const digest = operationId(['oncekey meter', 'chain'], operation)
  return chainId(tenant, Number.parseInt(digest.slice(0, 8), 16) % CHAINS_PER_TENANT)
}

function chainId(tenant: string, number: number): string {
  return operationId(['oncekey meter', 'tenant', tenant], String(number))
}

function placeId(chain: string, number: number): string {
  return operationId(['oncekey meter', 'place', chain], String(number))
}

/** Part of the stored form: with another number, what was counted before would not be found. */
const CHAINS_PER_TENANT = 8
const LENGTHS_MAX = 100_000
/** Places are lost only to other processes that count for the same tenant at this very moment. */
const PLACES_TRIED_MAX = 100
const WRITES_MAX = 10
