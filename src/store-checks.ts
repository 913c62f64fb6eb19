import { OncekeyError } from './error.ts'

/** What every store refuses in the same words: a time that cannot be meant turns the protection off in silence. */
export function assertLease(leaseMs: number): void {
  if (leaseMs > 0 && leaseMs < Number.POSITIVE_INFINITY) return
  throw new OncekeyError(
    'config-invalid',
    `leaseMs is ${leaseMs}; a claim needs a lease of more than 0 ms, or nothing would protect the running operation.`,
  )
}

export function assertDuration(field: string, valueMs: number): void {
  if (valueMs >= 0 && valueMs < Number.POSITIVE_INFINITY) return
  throw new OncekeyError('config-invalid', `${field} is ${valueMs}; it must be a finite number of ms, 0 or more.`)
}

/** For callers without types: an address where a client belongs is told at once, not by the first request. */
export function assertClient(client: unknown, verb: string, store: string, example: string): void {
  if (typeof (client as Record<string, unknown> | null | undefined)?.[verb] === 'function') return
  throw new OncekeyError(
    'config-invalid',
    `${store} needs a client of yours, such as ${example}, but was given ${client === null ? 'null' : `a ${typeof client}`}.`,
  )
}
