import type { SeenEvent, SeriesName } from './api.ts'

/** The outcomes, bottom to top as the chart stacks them. */
export const OUTCOMES: ReadonlyArray<{ readonly name: SeriesName; readonly label: string; readonly meaning: string }> =
  [
    { name: 'executed', label: 'Executed', meaning: 'First requests, and takeovers: the handler ran.' },
    { name: 'replayed', label: 'Replayed', meaning: 'Retries that got the first answer again. Nothing ran.' },
    { name: 'inFlight', label: 'In flight', meaning: 'Retries that came while the first request was still running.' },
    { name: 'conflict', label: 'Conflict', meaning: 'The key was used before with another request. Nothing ran.' },
    {
      name: 'unknown',
      label: 'Unknown',
      meaning: 'Retries that were told: nobody knows the outcome, or it was not kept. Nothing ran.',
    },
    { name: 'refused', label: 'Refused', meaning: 'The store failed or the gate was full. Nothing ran.' },
    {
      name: 'unprotected',
      label: 'Unprotected',
      meaning: 'The store failed and the contract is open: it ran unprotected.',
    },
  ]

type Tone = SeriesName | 'plain' | 'operator'

interface EventWords {
  readonly title: string
  readonly meaning: string
  readonly tone: Tone
}

const EVENTS: Readonly<Record<string, EventWords>> = {
  claimed: { title: 'Claimed', tone: 'executed', meaning: 'The first request with this key: the handler started.' },
  takeover: {
    title: 'Taken over',
    tone: 'executed',
    meaning: 'The lease of an earlier owner had lapsed without an answer: the handler started again.',
  },
  kept: { title: 'Executed', tone: 'executed', meaning: 'The handler has answered, and the answer is kept.' },
  released: {
    title: 'Released',
    tone: 'refused',
    meaning: 'The answer says that nothing was done, so the key is free again: a retry runs.',
  },
  'left-unknown': {
    title: 'Left unknown',
    tone: 'unknown',
    meaning: 'The handler has ended, and nobody can say whether its effect took place.',
  },
  unrecorded: {
    title: 'Not recorded',
    tone: 'unknown',
    meaning: 'The client got the real answer, but the store does not have it.',
  },
  'lease-lost': {
    title: 'Lease lost',
    tone: 'unknown',
    meaning: 'Another owner has the record, or the lease could not be renewed in time.',
  },
  replayed: { title: 'Replayed', tone: 'replayed', meaning: 'A retry got the kept answer. Nothing ran.' },
  waiting: { title: 'Waiting', tone: 'inFlight', meaning: 'A retry waits for the first request to end.' },
  unprotected: {
    title: 'Unprotected',
    tone: 'unprotected',
    meaning: 'The store failed and the contract is open: the handler ran without protection.',
  },
  'store-failed': { title: 'Store failed', tone: 'refused', meaning: 'The store did not do what it was asked to.' },
  refused: { title: 'Refused', tone: 'refused', meaning: 'The store failed and the contract is closed: nothing ran.' },
  conflict: {
    title: 'Conflict',
    tone: 'conflict',
    meaning: 'Another request came with the same key. It was refused; nothing ran.',
  },
  'in-flight': {
    title: 'In flight',
    tone: 'inFlight',
    meaning: 'A retry came while the first request was running, and was told so.',
  },
  unknown: {
    title: 'Unknown',
    tone: 'unknown',
    meaning: 'A retry was told that the outcome is not known. Nothing ran.',
  },
  expired: { title: 'Expired', tone: 'unknown', meaning: 'A retry came after the answer had expired. Nothing ran.' },
  'not-kept': {
    title: 'Not kept',
    tone: 'unknown',
    meaning: 'A retry was told that the answer was not kept. Nothing ran.',
  },
  'operator-released': {
    title: 'Released by an operator',
    tone: 'operator',
    meaning: 'The record was forgotten: the next request with this key runs.',
  },
  'operator-failed': {
    title: 'Marked failed by an operator',
    tone: 'operator',
    meaning: 'From here on a retry is told that the operation failed.',
  },
  'operator-redacted': {
    title: 'Redacted by an operator',
    tone: 'operator',
    meaning: 'Body, headers and labels were removed; the claim stays.',
  },
  forwarded: { title: 'Forwarded', tone: 'plain', meaning: 'The upstream’s answer was passed on.' },
  shed: { title: 'Shed', tone: 'refused', meaning: 'The gate was full and sent the request away before anything ran.' },
  'upstream-refused': { title: 'Upstream refused', tone: 'refused', meaning: 'No byte was sent to the upstream.' },
  'upstream-broken': {
    title: 'Upstream broken',
    tone: 'unknown',
    meaning: 'The exchange broke after a byte was sent: what the upstream did is not known.',
  },
  'refused-request': { title: 'Bad request', tone: 'refused', meaning: 'The request was not acceptable.' },
  'slow-client': { title: 'Slow client', tone: 'plain', meaning: 'The connection was cut: it neither read nor wrote.' },
  shadow: { title: 'Shadow', tone: 'plain', meaning: 'What would have happened, were the gate not in shadow mode.' },
}

export function wordsOf({ type }: Pick<SeenEvent, 'type'>): EventWords {
  return EVENTS[type] ?? { title: type, tone: 'plain', meaning: '' }
}

export const STATE_WORDS: Readonly<Record<string, string>> = {
  running: 'A handler is running, under a lease that its owner renews.',
  unknown: 'The lease lapsed, or the handler broke off: nobody knows whether the effect took place.',
  settled: 'It has its answer, and a retry gets it again.',
  expired: 'Its answer has expired; that the key was used is still remembered.',
  absent: 'The store has no record: the next request with this key runs.',
}
