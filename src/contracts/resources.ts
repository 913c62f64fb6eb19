import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/** Generated REST routes and tools for agents: an optional key, and only success is kept. */
export const resources: Contract = defineContract(ietf, {
  name: 'resources',
  methods: ['POST'],
  key: { absent: 'bypass' },
  answers: {
    keep: ['2xx'],
    // An agent that sent a bad payload corrects it and tries again under the same key.
    release: ['3xx', '4xx', '5xx'],
    unknown: [],
  },
  headers: { replayed: 'Idempotency-Replay' },
  errors: {
    shape: 'nested',
    statuses: { 'key-conflict': 409, 'key-expired': 409 },
    codes: {
      'key-missing': 'IDEMPOTENCY_KEY_MISSING',
      'key-invalid': 'IDEMPOTENCY_KEY_INVALID',
      'key-conflict': 'IDEMPOTENCY_CONFLICT',
      'key-expired': 'IDEMPOTENCY_KEY_EXPIRED',
      'in-flight': 'IDEMPOTENCY_IN_PROGRESS',
      'outcome-unknown': 'IDEMPOTENCY_OUTCOME_UNKNOWN',
      'answer-not-kept': 'IDEMPOTENCY_ANSWER_NOT_KEPT',
      'store-unavailable': 'IDEMPOTENCY_UNAVAILABLE',
      'body-too-large': 'BODY_TOO_LARGE',
    },
  },
})
