import type { ComponentChildren } from 'preact'
import type { ApiError } from '../api.ts'
import { retryNow } from '../live.ts'

/** What there is to say when there is nothing to show. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <p class="state-title">{title}</p>
      {children !== undefined && <p>{children}</p>}
    </div>
  )
}

export function Loading({ what }: { what: string }) {
  return (
    <div class="state" role="status">
      <p class="state-title quiet">Loading {what} …</p>
    </div>
  )
}

export function Failed({ what, error, retry }: { what: string; error: ApiError; retry: () => void }) {
  const again = (): void => {
    retryNow()
    retry()
  }
  return (
    <div class="state failed" role="alert">
      <p class="state-title">{what} could not be loaded.</p>
      <p>{error.message}</p>
      <button type="button" onClick={again}>
        Try again
      </button>
    </div>
  )
}

/** What is shown is old, and why. */
export function Stale({ error }: { error: ApiError | undefined }) {
  if (error === undefined) return null
  return (
    <p class="stale" role="alert">
      This is not up to date: {error.message}
    </p>
  )
}
