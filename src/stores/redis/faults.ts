import type { ErrorCode } from '../../error.ts'
import { OncekeyError } from '../../error.ts'
import { NOT_OURS } from './scripts.ts'

/** The starts of Redis's own errors that mean something of their own to the user. */
const TEXTS: ReadonlyArray<readonly [pattern: RegExp, code: ErrorCode, text: string]> = [
  [
    /\bOOM\b/,
    'store-full',
    'Redis has reached its maxmemory, and under noeviction it forgets nothing to make room. Nothing new was claimed; ' +
      'what runs may still be answered. Raise maxmemory, or keep answers for a shorter time.',
  ],
  [
    new RegExp(`${NOT_OURS}|^WRONGTYPE`),
    'store-incompatible',
    'The key of this record holds something that this version of oncekey did not write. It was left as it is. Give ' +
      'the store a prefix of its own, or update oncekey.',
  ],
  [
    /ompiling script|unexpected symbol near/,
    'store-incompatible',
    'This server cannot run the scripts of the store. It needs Redis 7.0 or later, or Valkey.',
  ],
  [
    /^(?:NOAUTH|WRONGPASS|NOPERM|DENIED)|invalid (?:username-)?password|without any password/i,
    'store-unavailable',
    'Redis refused this user: the password is wrong or missing, or the user may not run EVALSHA and EVAL on the keys ' +
      'of the store. Correct the client, or the ACL; no restart of the server is needed.',
  ],
  [
    /^READONLY/,
    'store-unavailable',
    'This server is a replica and takes no writes. After a failover this passes when the client finds the new master; ' +
      'otherwise connect by Sentinel, by Cluster, or to the master.',
  ],
  [/^LOADING/, 'store-unavailable', 'Redis was restarted and still loads its data. It passes by itself.'],
  [
    /^(?:CLUSTERDOWN|MASTERDOWN|TRYAGAIN)/,
    'store-unavailable',
    'A part of the Redis Cluster has no master now. It passes when a replica takes over, or when the server is back.',
  ],
  [
    /^(?:MOVED|ASK|CROSSSLOT)/,
    'store-unavailable',
    'This server belongs to a Redis Cluster, and the record lives on another one. Give the store a cluster client: ' +
      'createCluster of `redis`, or Cluster of `ioredis`.',
  ],
  [
    /^MISCONF/,
    'store-unavailable',
    'Redis refuses writes because it cannot save them to its disk. Look at its log; most often the disk is full.',
  ],
  [/^NOREPLICAS/, 'store-unavailable', 'Redis refuses writes because too few replicas follow (min-replicas-to-write).'],
  [/^BUSY\b/, 'store-unavailable', 'Redis is busy with a script of somebody else (lua-time-limit).'],
]

/** Everything that a driver throws, as the one error of this library. */
export function faultOf(error: unknown): OncekeyError {
  if (error instanceof OncekeyError) return error
  const message = messageOf(error)
  for (const [pattern, code, text] of TEXTS) {
    if (pattern.test(message)) return new OncekeyError(code, `${text} Redis said: ${message}`, { cause: error })
  }
  return new OncekeyError(
    'store-unavailable',
    `Redis could not be reached, or broke off: ${message}. Whether this operation was recorded is not certain; asking ` +
      'again with the same token tells. Check that the server runs and that the client is connected.',
    { cause: error },
  )
}

/** Drivers wrap the reason: in `cause`, in `lastNodeError` (ioredis Cluster), or in `errors` (several addresses). */
function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const inner = 'lastNodeError' in error ? error.lastNodeError : error.cause
  const parts = [error.message || error.name]
  if (error instanceof AggregateError) parts.push(...error.errors.map(messageOf))
  if (inner instanceof Error) parts.push(messageOf(inner))
  return parts.join(': ')
}
