import { OncekeyError } from '../../error.ts'
import type { Settlement } from '../../store.ts'
import { assertSettlementTimes } from '../../store-checks.ts'

/** Text of twice this size is what PostgreSQL and JavaScript can still carry in one value. */
const BODY_BYTES_MAX = 128 * 1024 * 1024

export function assertSettlement(settlement: Settlement): void {
  assertSettlementTimes(settlement)
  const { answer } = settlement
  const bytes = answer.body?.length ?? 0
  if (bytes <= BODY_BYTES_MAX) return
  throw new OncekeyError(
    'body-too-large',
    `The body has ${bytes} bytes; the PostgreSQL store keeps ${BODY_BYTES_MAX} at most. Nothing was recorded; keep ` +
      'large results elsewhere, and answer with where they are.',
  )
}
