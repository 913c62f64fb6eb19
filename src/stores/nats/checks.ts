import { OncekeyError } from '../../error.ts'

/** Each lost compare-and-set means that another one was won, and after that most find the record running. */
export const TRIES_MAX = 50
const TRIES_AT_ONCE = 3
const PAUSE_MS_MAX = 50

/** The write that won may not be carried out yet: after a few tries, it is given time. */
export async function pauseAfter(tries: number): Promise<void> {
  if (tries < TRIES_AT_ONCE) return
  await new Promise((resolve) => setTimeout(resolve, Math.min(tries, PAUSE_MS_MAX)))
}

export function tooContended(id: string): OncekeyError {
  return new OncekeyError(
    'store-unavailable',
    `The record ${id} was changed by others ${TRIES_MAX} times in a row while this operation tried to. Nothing of it was ` +
      'recorded; ask again.',
  )
}
