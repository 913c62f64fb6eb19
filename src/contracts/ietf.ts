import type { Contract } from '../contract.ts'

const DAY_MS = 86_400_000

/**
 * The default: the IETF's Idempotency-Key header, with answers that never hide a doubt.
 * The reason for every status stands in docs/contracts.md.
 */
export const ietf: Contract = {
  name: 'ietf',
  methods: ['POST', 'PATCH'],
  key: { header: 'Idempotency-Key', absent: 'refuse', lengthMax: 255 },
  scope: ['method', 'route'],
  inFlight: 'reject',
  waitMsMax: 0,
  answers: {
    keep: ['2xx', '3xx', '4xx', 500, 501, 505],
    // The service says that it did nothing: too early, too slow a request, too many, or not available.
    release: [408, 425, 429, 503],
    // 502 and 504 speak for somebody behind the service, who may well have acted.
    unknown: ['5xx'],
  },
  ttl: { committedMs: DAY_MS, rejectedMs: DAY_MS, unknownMs: DAY_MS, expiredMs: 0 },
  lease: { ms: 30_000, handlerMsMax: 900_000 },
  crash: 'refuse',
  storeFailure: 'closed',
  headers: {
    replayed: 'Idempotent-Replayed',
    recorded: 'Idempotent-Recorded',
    echoKey: false,
    keep: [
      'content-type',
      'content-encoding',
      'content-language',
      'content-location',
      'content-disposition',
      'location',
      'link',
      'etag',
      'last-modified',
      'vary',
      'cache-control',
      'expires',
      'retry-after',
      'x-request-id',
    ],
  },
  errors: {
    shape: 'problem',
    docsUrl: 'https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/',
    statuses: {
      'key-missing': 400,
      'key-invalid': 400,
      'key-conflict': 422,
      'key-expired': 422,
      'in-flight': 409,
      'outcome-unknown': 409,
      'answer-not-kept': 409,
      'store-unavailable': 503,
      'body-too-large': 413,
    },
    codes: {},
  },
  limits: { requestBytesMax: 8 * 1024 * 1024, answerBytesMax: 8 * 1024 * 1024 },
}
