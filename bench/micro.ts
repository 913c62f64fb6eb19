import type { Engine } from '../src/engine.ts'
import type { Settlement, Store } from '../src/store.ts'
import { built } from './contestants/built.ts'
import { REQUEST_BODY } from './contestants/workload.ts'
import { median } from './results.ts'

/** Nanoseconds of single operations, so that a regression is found where it is made. */
export async function runMicro(): Promise<void> {
  const { parseKey } = await built<typeof import('../src/operation/key.ts')>('operation/key.js')
  const { operationId } = await built<typeof import('../src/operation/scope.ts')>('operation/scope.js')
  const { fingerprint } = await built<typeof import('../src/operation/fingerprint.ts')>('operation/fingerprint.js')
  const { memoryStore } = await built<typeof import('../src/stores/memory.ts')>('stores/memory.js')
  const engineModule = await built<typeof import('../src/engine.ts')>('engine.js')
  const { ietf } = await built<typeof import('../src/contracts/ietf.ts')>('contracts/ietf.js')

  const key = '"8e03978e-40d5-43dd-bc93-6894a57f9324"'
  const bare = key.slice(1, -1)
  const bytes = Buffer.from(REQUEST_BODY)
  const value: unknown = JSON.parse(REQUEST_BODY)
  const request = { method: 'POST', target: '/payments' }
  process.stdout.write(`ns per operation, median of ${ROUNDS} rounds (lowest in brackets)\n`)
  print('parseKey, bare', await time(() => parseKey(bare, 255)))
  print('parseKey, quoted', await time(() => parseKey(key, 255)))
  print('operationId', await time(() => operationId(['public', 'POST', '/payments'], bare)))
  print('fingerprint, JSON value', await time(() => fingerprint({ ...request, payload: { kind: 'value', value } })))
  print(
    'fingerprint, JSON bytes',
    await time(() => fingerprint({ ...request, payload: { kind: 'bytes', bytes, contentType: 'application/json' } })),
  )
  print('memory claim + settle', await time(newOperation(memoryStore())))
  const engine = new engineModule.Engine({ store: memoryStore(), contract: ietf })
  print('engine.execute, new key', await timeAsync(newExecution(engine)))
  print('engine.execute, replay', await timeAsync(() => engine.execute(REPLAYED, work)))
  await runGrowth(memoryStore)
}

const ROUNDS = 9
const ROUND_MS = 40
const BATCH = 500

interface Timing {
  readonly medianNs: number
  readonly minNs: number
}

const ANSWER = { status: 201, headers: [['content-type', 'application/json']] as const, body: Buffer.alloc(120, 'x') }
const SETTLEMENT: Settlement = { outcome: 'committed', answer: ANSWER, ttlMs: 86_400_000, expiredTtlMs: 0 }
const FINGERPRINT = 'f'.repeat(64)
const REPLAYED = { id: idOf(-1), key: 'k', fingerprint: FINGERPRINT }

const work = async () => ({ kind: 'answered', answer: ANSWER }) as const

function newOperation(store: Store): () => void {
  let number = 0
  return () => {
    const id = idOf(number++)
    store.claim({ id, token: id, fingerprint: FINGERPRINT, leaseMs: 30_000, unknownTtlMs: 86_400_000, takeover: false })
    store.settle(id, id, SETTLEMENT)
  }
}

function newExecution(engine: Engine): () => Promise<unknown> {
  let number = 0
  return () => engine.execute({ id: idOf(number++), key: 'k', fingerprint: FINGERPRINT }, work)
}

/** Fixed length, like the hash it stands for; cheap to make, so that the clock sees the store and not this. */
function idOf(number: number): string {
  return `${number}`.padStart(64, '0')
}

const SIZES = [1_000, 10_000, 100_000, 1_000_000] as const
const LOOKUPS = 100_000

/**
 * J5: the cost of a lookup as the store grows. A Map of the same ids stands beside it: what the Map loses to caches
 * that are too small, every store must lose; the last column is what this store loses beyond that.
 */
async function runGrowth(memoryStore: (options: { recordsMax: number }) => Store): Promise<void> {
  process.stdout.write('\nmemory store as it grows: ns per operation\n')
  process.stdout.write('     records    new key, full    replay    Map.get    replay − Map.get\n')
  for (const recordsMax of SIZES) {
    const store = memoryStore({ recordsMax })
    const add = newOperation(store)
    for (let count = 0; count < recordsMax; count++) add()
    const ids = shuffled(recordsMax)
    const map = new Map(ids.map((id) => [id, {}]))
    const claim = (id: string) =>
      store.claim({ id, token: 't', fingerprint: FINGERPRINT, leaseMs: 1, unknownTtlMs: 1, takeover: false })
    const replayNs = visit(ids, claim)
    const mapNs = visit(ids, (id) => map.get(id))
    const { medianNs } = await time(add)
    const columns = [recordsMax.toLocaleString('en').padStart(12), whole(medianNs, 17), whole(replayNs, 10)]
    process.stdout.write(`${columns.join('')}${whole(mapNs, 11)}${whole(replayNs - mapNs, 20)}\n`)
    await store.close()
  }
}

function visit(ids: readonly string[], each: (id: string) => unknown): number {
  const samples: number[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const startedAt = performance.now()
    for (let count = 0; count < LOOKUPS; count++) each(ids[count % ids.length] ?? '')
    samples.push(((performance.now() - startedAt) * 1e6) / LOOKUPS)
  }
  return median(samples)
}

/** In an order in which no cache can guess the next; the same in every run. */
function shuffled(count: number): readonly string[] {
  const ids = Array.from({ length: count }, (_, number) => idOf(number))
  let seed = 1
  for (let at = count - 1; at > 0; at--) {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff
    const other = seed % (at + 1)
    const id = ids[at] ?? ''
    ids[at] = ids[other] ?? ''
    ids[other] = id
  }
  return ids
}

let sink: unknown

async function time(each: () => unknown): Promise<Timing> {
  return timeAsync(each, (count) => {
    // Kept, so that no compiler finds out that the result is never used.
    for (let at = 0; at < count; at++) sink = each()
  })
}

async function timeAsync(
  each: () => unknown,
  batch: (count: number) => unknown = async (count) => {
    for (let at = 0; at < count; at++) sink = await each()
  },
): Promise<Timing> {
  const samples: number[] = []
  // The first round warms up, and is not counted.
  for (let round = 0; round <= ROUNDS; round++) {
    const startedAt = performance.now()
    let count = 0
    while (performance.now() - startedAt < ROUND_MS) {
      await batch(BATCH)
      count += BATCH
    }
    if (round > 0) samples.push(((performance.now() - startedAt) * 1e6) / count)
  }
  if (sink === samples) throw new Error('unreachable')
  return { medianNs: median(samples), minNs: Math.min(...samples) }
}

function print(name: string, { medianNs, minNs }: Timing): void {
  process.stdout.write(`  ${name.padEnd(26)}${whole(medianNs, 8)}  (${whole(minNs, 0)})\n`)
}

function whole(ns: number, width: number): string {
  return Math.round(ns).toLocaleString('en').padStart(width)
}
