import type { Contract } from '../contract.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from './ietf.ts'

/**
 * Job submission. The document's PENDING is our `running`, COMMITTED and REJECTED are `settled` below and from 400, and
 * EXPIRED is `unknown`: a submission that got no answer in its time, which only the reconcile hook may decide.
 */
export const jobs: Contract = defineContract(ietf, {
  name: 'jobs',
  methods: ['POST'],
  inFlight: 'wait',
  waitMsMax: 30_000,
  answers: {
    // A rejection is an answer, also one for lack of capacity.
    keep: ['2xx', '3xx', '4xx', 503],
    // Any other server error says nothing of the job.
    release: [408, 425],
    unknown: ['5xx'],
  },
  ttl: { committedMs: 300_000, rejectedMs: 60_000, unknownMs: 300_000 },
  // A dead owner's pending ends after this. A living one is told to stop then, and its last renewal runs out.
  lease: { ms: 60_000, handlerMsMax: 60_000 },
  // A crash must not lose a submission either: the manager looks into its own jobs.
  crash: 'reconcile',
  errors: { statuses: { 'key-conflict': 409, 'key-expired': 409 } },
})
