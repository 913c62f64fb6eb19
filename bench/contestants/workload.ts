import { setTimeout as sleep } from 'node:timers/promises'

/**
 * The work that every contestant protects: one and the same function, which costs next to nothing, so that what is
 * measured is the layer around it. It counts its runs, and the count is the judge of every correctness mark.
 */
export interface PaymentRequest {
  readonly amount: number
  readonly currency: string
  readonly customer: string
  /** Only the race probe asks the handler to take its time. */
  readonly waitMs?: number
}

export interface Payment {
  readonly id: string
  readonly status: 'captured'
  readonly amount: number
  readonly currency: string
  readonly customer: string
  readonly sequence: number
}

let runs = 0

export function runCount(): number {
  return runs
}

export async function capturePayment({ amount, currency, customer, waitMs = 0 }: PaymentRequest): Promise<Payment> {
  const sequence = ++runs
  if (waitMs > 0) await sleep(Math.min(waitMs, WAIT_MS_MAX))
  return {
    id: `pay_${sequence.toString(36).padStart(10, '0')}`,
    status: 'captured',
    amount,
    currency,
    customer,
    sequence,
  }
}

const WAIT_MS_MAX = 1_000

export const ROUTE = '/payments'

/** About 150 bytes, as a client would send it. */
export const REQUEST_BODY: string = JSON.stringify({
  amount: 129_900,
  currency: 'EUR',
  customer: 'cus_8f3a2b71c4',
  description: 'Order 2026-11-0042, three items, express delivery',
  method: 'card',
  capture: true,
} satisfies PaymentRequest & Record<string, unknown>)

/** A request that differs from REQUEST_BODY in what it says. */
export const OTHER_BODY: string = REQUEST_BODY.replace('129900', '129901')

/** The same request, with a handler slow enough that all of a race meet inside it. */
export const SLOW_BODY: string = REQUEST_BODY.replace('{', '{"waitMs":50,')
