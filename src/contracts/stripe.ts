import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/** The behaviour that clients of Stripe's API know: an optional key on POST, one namespace per account, 400 on reuse. */
export const stripe: Contract = defineContract(ietf, {
  name: 'stripe',
  methods: ['POST'],
  key: { absent: 'bypass' },
  // A key belongs to the account: reusing it on another route is a conflict, not a new operation.
  scope: [],
  // Every answer of a handler that began to run is kept, 500 too; only the rate limiter's is not.
  answers: { keep: ['2xx', '3xx', '4xx', 500, 501, 505], release: [408, 425, 429, 503], unknown: ['5xx'] },
  headers: { echoKey: true },
  errors: {
    shape: 'nested',
    statuses: { 'key-conflict': 400, 'key-expired': 400 },
    codes: { 'key-conflict': 'idempotency_error', 'in-flight': 'idempotency_key_in_use' },
  },
})
