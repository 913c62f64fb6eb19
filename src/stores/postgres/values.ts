import type { SettleOp } from '../../sql/operations.ts'
import type { ClaimRequest } from '../../store.ts'
import { arrayOf, toText, whole } from './encoding.ts'

/** The parameters of the statements of the hot path: one array for each column, one element for each operation. */
export function claimNewValues(requests: readonly ClaimRequest[], lockMsMax: number): string[] {
  return [
    arrayOf(requests.map(idOf)),
    arrayOf(requests.map(tokenOf)),
    arrayOf(requests.map(({ fingerprint }) => toText(fingerprint))),
    arrayOf(requests.map(leaseMsOf)),
    arrayOf(requests.map(goneMsOf)),
    arrayOf(requests.map(labelsOf)),
    String(lockMsMax),
  ]
}

export function claimValues(requests: readonly ClaimRequest[], lockMsMax: number): string[] {
  const [ids = '', tokens = '', fingerprints = '', leases = '', gone = '', labels = ''] = claimNewValues(
    requests,
    lockMsMax,
  )
  const takeovers = requests.map(({ takeover }) => takeover)
  const areFirst = requests.map(({ id }, index) => id !== requests[index - 1]?.id)
  const mayBeTaken = requests.filter(({ takeover }) => takeover).map(idOf)
  const others = [arrayOf(takeovers), labels, arrayOf(areFirst), arrayOf(mayBeTaken), String(lockMsMax)]
  return [ids, tokens, fingerprints, leases, gone, ...others]
}

function idOf({ id }: { readonly id: string }): string {
  return toText(id)
}

function tokenOf({ token }: { readonly token: string }): string {
  return toText(token)
}

function leaseMsOf({ leaseMs }: ClaimRequest): number {
  return whole(leaseMs)
}

function goneMsOf({ leaseMs, unknownTtlMs }: ClaimRequest): number {
  return whole(leaseMs) + whole(unknownTtlMs)
}

function labelsOf({ labels }: ClaimRequest): string | null {
  return labels === undefined ? null : JSON.stringify(labels)
}

export function settleValues(ops: readonly SettleOp[]): unknown[] {
  const answers = ops.map(({ settlement }) => settlement.answer)
  const offsets: number[] = []
  let at = 1
  for (const { body } of answers) {
    offsets.push(at)
    at += body?.length ?? 0
  }
  return [
    arrayOf(ops.map(idOf)),
    arrayOf(ops.map(tokenOf)),
    arrayOf(ops.map(({ settlement }) => settlement.outcome)),
    arrayOf(ops.map(({ settlement }) => whole(settlement.ttlMs))),
    arrayOf(ops.map(({ settlement }) => whole(settlement.expiredTtlMs))),
    arrayOf(answers.map(({ status }) => status)),
    arrayOf(answers.map(({ headers }) => JSON.stringify(headers))),
    arrayOf(offsets),
    arrayOf(answers.map(({ body }) => body?.length ?? -1)),
    Buffer.concat(answers.map(({ body }) => body ?? NO_BYTES)),
  ]
}

const NO_BYTES = new Uint8Array(0)
