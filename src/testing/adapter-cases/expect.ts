import assert from 'node:assert/strict'
import { headerFilter } from '../../contract.ts'
import { ietf } from '../../contracts/ietf.ts'
import type { RefusalCode } from '../../error.ts'
import { value, type Wire } from './wire.ts'

/** X4: the retry got what the first request got, and says that it is a replay. */
export function assertReplay(first: Wire, again: Wire): void {
  assert.equal(value(first, 'Idempotent-Replayed'), undefined, 'a first answer is not marked as a replay')
  assert.equal(value(first, 'Idempotent-Recorded'), undefined, 'a recorded answer is not marked as unrecorded')
  assert.equal(value(again, 'Idempotent-Replayed'), 'true', `a retry is replayed, but got ${brief(again)}`)
  assert.equal(again.status, first.status)
  assert.deepEqual(keptHeaders(again), keptHeaders(first), 'the kept headers come back in their order')
  assert.ok(again.body.equals(first.body), `the same bytes come back: ${brief(first)}, then ${brief(again)}`)
  assertLength(again)
}

/** Whole when it begins, so it says its length, unless its status forbids one. A `Response` is framed by its server. */
function assertLength(wire: Wire): void {
  const length = value(wire, 'Content-Length')
  if (wire.status === 204 || wire.status === 304) assert.equal(length, undefined, 'this status has no length')
  else if (!wire.chunked) assert.equal(length, String(wire.body.length))
}

export function keptHeaders({ headers }: Wire): string[] {
  const isKept = headerFilter(ietf)
  return headers
    .map(([name, content]) => `${name.toLowerCase()}: ${content}`)
    .filter((line) => isKept(line.slice(0, line.indexOf(':'))))
}

const STATUSES = ietf.errors.statuses

/** An answer of the layer itself, as RFC 9457 wants it. Gives the problem's members. */
export function assertRefused(wire: Wire, code: RefusalCode): Record<string, unknown> {
  assert.equal(wire.status, STATUSES[code], `refused as ${code}, but got ${brief(wire)}`)
  assert.match(value(wire, 'Content-Type') ?? '', /^application\/problem\+json(;|$)/)
  assert.match(value(wire, 'Link') ?? '', /^<https?:[^>]+>; ?rel="describedby"/)
  assertLength(wire)
  assert.equal(value(wire, 'Idempotent-Replayed'), undefined, 'a refusal is not a replay')
  const problem = JSON.parse(wire.body.toString()) as Record<string, unknown>
  assert.equal(problem.code, code)
  assert.equal(problem.status, wire.status)
  for (const member of ['type', 'title', 'detail'] as const) {
    assert.ok(typeof problem[member] === 'string' && problem[member] !== '', `the problem has a ${member}`)
  }
  return problem
}

export function brief({ status, body }: Wire): string {
  return `${status} with ${body.length} bytes ${JSON.stringify(body.subarray(0, 120).toString('latin1'))}`
}
