import type { Request } from 'express'

/** As authentication has found it. */
export function organizationOf(request: Request): string {
  return request.res?.locals.organizationId as string
}

export function invalid(message: string): object {
  return { error: { code: 'VALIDATION_ERROR', message } }
}
