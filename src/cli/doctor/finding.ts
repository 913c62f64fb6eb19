/** `fail`: it will go wrong. `warn`: it can go wrong, or it is a choice that somebody should have made knowingly. */
export type Level = 'ok' | 'warn' | 'fail'

export interface Finding {
  /** What was looked at; stable, for machines. */
  readonly id: string
  readonly level: Level
  /** What was seen. */
  readonly found: string
  /** What it means; empty when all is well. */
  readonly means: string
  /** What to do about it; empty when all is well. */
  readonly next: string
}

export function ok(id: string, found: string): Finding {
  return { id, level: 'ok', found, means: '', next: '' }
}

export function warn(id: string, found: string, means: string, next: string): Finding {
  return { id, level: 'warn', found, means, next }
}

export function fail(id: string, found: string, means: string, next: string): Finding {
  return { id, level: 'fail', found, means, next }
}
