import { OncekeyError } from '../../error.ts'
import type { ClaimRequest, Settlement } from '../../store.ts'
import { assertClaimTimes, assertSettlementTimes } from '../../store-checks.ts'
import { bytesOf } from './encoding.ts'

/** What the columns hold. A server that is not in strict mode would cut longer values off, and mix two records up. */
export const TEXT_BYTES_MAX = 1_024
const STATUS_MAX = 2 ** 31 - 1
const LABELS_BYTES_MAX = 64 * 1_024
/** Beyond this JavaScript cannot hold the statement. */
const BODY_BYTES_MAX = 128 * 1_024 * 1_024

export function assertClaim(request: ClaimRequest): void {
  const { id, token, fingerprint, labels } = request
  assertClaimTimes(request)
  assertBytes('id', bytesOf(id), TEXT_BYTES_MAX)
  assertBytes('token', bytesOf(token), TEXT_BYTES_MAX)
  assertBytes('fingerprint', bytesOf(fingerprint), TEXT_BYTES_MAX)
  if (labels !== undefined) assertBytes('labels', Buffer.byteLength(JSON.stringify(labels)), LABELS_BYTES_MAX)
}

export function assertSettlement(settlement: Settlement): void {
  assertSettlementTimes(settlement)
  const { answer } = settlement
  if (!Number.isSafeInteger(answer.status) || Math.abs(answer.status) > STATUS_MAX) {
    throw new OncekeyError('config-invalid', `status is ${answer.status}; it must be a whole number, as of HTTP.`)
  }
  const bytes = answer.body?.length ?? 0
  if (bytes <= BODY_BYTES_MAX) return
  throw new OncekeyError(
    'body-too-large',
    `The body has ${bytes} bytes; the MySQL store keeps ${BODY_BYTES_MAX} at most. Nothing was recorded; keep large ` +
      'results elsewhere, and answer with where they are.',
  )
}

function assertBytes(field: string, bytes: number, bytesMax: number): void {
  if (bytes <= bytesMax) return
  throw new OncekeyError(
    'config-invalid',
    `${field} has ${bytes} bytes; the MySQL store keeps ${bytesMax} at most. Nothing was recorded.`,
  )
}
