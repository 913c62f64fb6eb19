import { OncekeyError } from '../../error.ts'
import type { Settlement } from '../../store.ts'

/** Text of twice this size is what PostgreSQL and JavaScript can still carry in one value. */
const BODY_BYTES_MAX = 128 * 1024 * 1024

export function assertSettlement({ ttlMs, expiredTtlMs, answer }: Settlement): void {
  assertDuration('ttlMs', ttlMs)
  assertDuration('expiredTtlMs', expiredTtlMs)
  const bytes = answer.body?.length ?? 0
  if (bytes <= BODY_BYTES_MAX) return
  throw new OncekeyError(
    'body-too-large',
    `The body has ${bytes} bytes; the PostgreSQL store keeps ${BODY_BYTES_MAX} at most. Nothing was recorded; keep ` +
      'large results elsewhere, and answer with where they are.',
  )
}

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
