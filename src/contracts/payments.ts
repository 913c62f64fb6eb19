import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/** Payment decisions: the key and the canonical body are one identity, and everybody who retries shares one decision. */
export const payments: Contract = defineContract(ietf, {
  name: 'payments',
  methods: ['POST'],
  inFlight: 'wait',
  waitMsMax: 20_000,
  errors: {
    statuses: { 'key-conflict': 409, 'key-expired': 409 },
    codes: {
      'key-missing': 'protocol.idempotency_key_missing',
      'key-invalid': 'protocol.idempotency_key_invalid',
      'key-conflict': 'protocol.idempotency_conflict',
      'key-expired': 'protocol.idempotency_key_expired',
      'in-flight': 'protocol.idempotency_in_flight',
      'outcome-unknown': 'protocol.outcome_unknown',
      'answer-not-kept': 'protocol.answer_not_kept',
      'store-unavailable': 'protocol.unavailable',
      'body-too-large': 'protocol.body_too_large',
    },
  },
})
