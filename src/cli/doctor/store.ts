import { randomBytes } from 'node:crypto'
import { setImmediate as turn } from 'node:timers/promises'
import { OncekeyError } from '../../error.ts'
import type { Store } from '../../store.ts'
import { Misuse } from '../command.ts'
import { type OpenedStore, openStore, withoutPassword } from '../store-url.ts'
import { type Finding, fail, ok, warn } from './finding.ts'

const READS = 5
const LATENCY_MS_HIGH = 50
const SKEW_MS_HIGH = 2_000
const PROBE_MS = 30_000
/** No machine that runs this can be earlier. */
const EARLIEST = Date.UTC(2026, 0, 1)

/** Opens the store, uses it as an operation would, and leaves nothing there. */
export async function judgeStore(address: string): Promise<readonly Finding[]> {
  const warnings: string[] = []
  const hear = (warning: Error): void => {
    if (warning.name === 'OncekeyWarning') warnings.push(warning.message)
  }
  // What a store has to say about its server is a finding here, and not a line on stderr besides.
  const others = process.listeners('warning')
  process.removeAllListeners('warning').on('warning', hear)
  let opened: OpenedStore | undefined
  try {
    opened = await openStore(address)
    const findings = [await judgeLatency(opened.store, withoutPassword(address)), await judgeClock(opened.store)]
    // Warnings are told a turn later.
    await turn()
    return [...findings, ...judgeDurability(opened.store.name, warnings)]
  } catch (error) {
    if (error instanceof Misuse) throw error
    return [unusable(withoutPassword(address), error)]
  } finally {
    await opened?.close().catch(() => {})
    process.off('warning', hear)
    for (const other of others) process.on('warning', other)
  }
}

async function judgeLatency(store: Store, shown: string): Promise<Finding> {
  const id = randomBytes(32).toString('hex')
  // The first one also connects, looks at the server and makes the table.
  await store.read(id)
  const tookMs: number[] = []
  for (let i = 0; i < READS; i++) {
    const startedMs = performance.now()
    await store.read(id)
    tookMs.push(performance.now() - startedMs)
  }
  const medianMs = tookMs.sort((a, b) => a - b)[Math.floor(READS / 2)] ?? 0
  const found = `${shown} answers, a read in ${medianMs.toFixed(1)} ms.`
  if (medianMs <= LATENCY_MS_HIGH) return ok('store', found)
  return warn(
    'store',
    found,
    'Each protected request waits for two steps of the store: a claim before, and the answer’s record after.',
    'Put the store nearer, or find out what it is busy with.',
  )
}

async function judgeClock(store: Store): Promise<Finding> {
  const [id, token] = [randomBytes(32).toString('hex'), randomBytes(16).toString('hex')]
  const beforeMs = Date.now()
  await store.claim({
    ...{ id, token, fingerprint: 'doctor', takeover: false },
    ...{ leaseMs: PROBE_MS, unknownTtlMs: PROBE_MS },
  })
  try {
    const afterMs = Date.now()
    const { createdAt } = (await store.read(id)) ?? { createdAt: beforeMs }
    const skewMs = createdAt < beforeMs ? createdAt - beforeMs : Math.max(0, createdAt - afterMs)
    return judgeSkew(skewMs, beforeMs)
  } finally {
    await store.release(id, token)
  }
}

export function judgeSkew(skewMs: number, now: number): Finding {
  if (now < EARLIEST) {
    return fail(
      'clock',
      `This machine’s clock says ${new Date(now).toISOString()}.`,
      'Records on this machine are kept and forgotten by that clock.',
      'Set the clock; let it be kept by NTP.',
    )
  }
  if (Math.abs(skewMs) <= SKEW_MS_HIGH) return ok('clock', 'The store’s clock and this machine’s agree.')
  return warn(
    'clock',
    `The store’s clock is ${Math.round(Math.abs(skewMs) / 100) / 10} s ${skewMs > 0 ? 'ahead of' : 'behind'} this machine’s.`,
    'Leases and expiry go by the store’s clock alone, so nothing runs twice for that; but times on the dashboard are off, and a clock that jumps forward ends leases early.',
    'Let both be kept by NTP.',
  )
}

function judgeDurability(name: string, warnings: readonly string[]): readonly Finding[] {
  if (warnings.length === 0) return [ok('durability', `Nothing that ${name} says of itself is against it.`)]
  return warnings.map((text) => {
    // The stores' warnings end with what to do.
    const sentences = text.split(/(?<=\.) /)
    const next = sentences.length > 1 ? sentences.pop() : undefined
    const means = 'Claims that were acknowledged can be lost, and their operations then run again.'
    return warn('durability', sentences.join(' '), means, next ?? 'See docs/stores.md for what this store can keep.')
  })
}

function unusable(shown: string, error: unknown): Finding {
  const { message } = error as Error
  if (error instanceof OncekeyError && error.code === 'config-invalid') {
    return fail('durability', message, 'oncekey refuses to use this store as it is.', 'Do what it says, and run again.')
  }
  return fail(
    'store',
    `${shown} does not answer: ${message}`,
    'No claim can be made: protected requests are refused with 503, or run unprotected where a contract is open.',
    'Start the store, or correct --store.',
  )
}
