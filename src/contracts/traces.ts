import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/** Ingestion that is never blocked and never billed twice. Its handler writes under an id made by `run.derive()`. */
export const traces: Contract = defineContract(ietf, {
  name: 'traces',
  methods: ['POST'],
  // Nobody can opt out: without a key, what is sent is its own name.
  key: { absent: 'derive', lengthMax: 256 },
  // A key belongs to the organization, which is the principal.
  scope: [],
  answers: {
    keep: ['2xx', '3xx', '4xx'],
    // A server's error must not swallow the trace for a day: the retry runs, and finds what the first has written.
    release: [408, 425, 429, '5xx'],
    unknown: [],
  },
  crash: 'rerun',
  // The count is guarded, the ingestion is not held up for it.
  storeFailure: 'open',
  errors: { shape: 'nested', statuses: { 'key-conflict': 409, 'key-expired': 409 } },
})
