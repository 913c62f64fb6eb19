import type { Finding } from './types.ts'

export function pass(came: string, meaning: string): Finding {
  return { verdict: 'pass', came, meaning, next: '' }
}

export function warn(came: string, meaning: string, next: string): Finding {
  return { verdict: 'warn', came, meaning, next }
}

export function fail(came: string, meaning: string, next: string): Finding {
  return { verdict: 'fail', came, meaning, next }
}

/** Nothing was judged: `next` says what it would take. */
export function skip(meaning: string, next: string): Finding {
  return { verdict: 'skip', came: '', meaning, next }
}

/** What the service did cannot be seen from its answers. */
export function unclear(came: string): Finding {
  const meaning = 'This service answers every operation the same, so that a second run cannot be told from a replay.'
  return warn(came, meaning, 'Give --count-url, where the number of effects can be read.')
}

/** What many cases rest on. The sections are those of version 06. */
export const DRAFT = 'draft-ietf-httpapi-idempotency-key-header'
