import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/** One policy for every unsafe method of an API: success and failure are both answers, and both are replayed. */
export const writes: Contract = defineContract(ietf, {
  name: 'writes',
  methods: ['POST', 'PUT', 'PATCH', 'DELETE'],
  // In a race one wins, and the others get its answer instead of an error.
  inFlight: 'wait',
  waitMsMax: 20_000,
  answers: {
    // A 500 is kept, too: replays are deterministic, and a client that wants another try takes another key.
    keep: ['2xx', '3xx', '4xx', '5xx'],
    // But these say that nothing was decided: replaying them for a day would keep a client out for nothing.
    release: [408, 425, 429, 503],
    unknown: [],
  },
  headers: { echoKey: true },
  errors: { statuses: { 'key-conflict': 409, 'key-expired': 409 } },
})
