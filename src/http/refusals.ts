import type { Contract } from '../contract.ts'
import { REFUSAL_TITLES, type Refusal } from '../refusal.ts'

/** An answer made by this layer itself. It is never stored. */
export interface RenderedRefusal {
  readonly status: number
  readonly headers: ReadonlyArray<readonly [string, string]>
  readonly body: string
}

/** A refusal in the contract's own words: status, shape and codes. */
export function renderRefusal({ errors }: Contract, refused: Refusal): RenderedRefusal {
  const { code, detail, retryAfterMs } = refused
  const status = errors.statuses[code]
  const wireCode = errors.codes[code] ?? code
  const headers: Array<readonly [string, string]> = [
    ['Content-Type', errors.shape === 'problem' ? 'application/problem+json' : 'application/json'],
    ['Cache-Control', 'no-store'],
  ]
  if (retryAfterMs !== undefined) headers.push(['Retry-After', String(Math.max(1, Math.ceil(retryAfterMs / 1000)))])
  if (errors.shape === 'problem') headers.push(['Link', `<${errors.docsUrl}>; rel="describedby"; type="text/html"`])
  return { status, headers, body: JSON.stringify(document()) }

  function document(): object {
    switch (errors.shape) {
      case 'problem':
        return { type: `${errors.docsUrl}#${code}`, title: REFUSAL_TITLES[code], status, detail, code: wireCode }
      case 'nested':
        return { error: { code: wireCode, message: detail } }
      case 'stripe':
        return { error: { code: wireCode, type: 'idempotency_error', message: detail } }
      case 'flat':
        return { code: wireCode, message: detail }
    }
  }
}
