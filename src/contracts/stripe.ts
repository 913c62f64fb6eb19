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
  headers: { echoKey: true },
  errors: {
    shape: 'stripe',
    statuses: { 'key-conflict': 400, 'key-expired': 400 },
    codes: { 'key-conflict': 'idempotency_error', 'in-flight': 'idempotency_key_in_use' },
  },
})
