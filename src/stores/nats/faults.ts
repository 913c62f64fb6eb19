import { OncekeyError } from '../../error.ts'

/** Codes of JetStream's API that mean something of their own here. */
/** The revision is another one, or a message that replaces it is being stored by somebody else. */
const CONFLICT = [10_071, 10_158, 10_164]
const NOT_FOUND = 10_059
const TOO_LARGE = [10_054]
const FULL = [10_002, 10_023, 10_028, 10_047, 10_077, 10_122]
const NO_JETSTREAM = [10_039, 10_076]
/** No quorum, or no leader yet. */
const NO_LEADER = [10_008, 10_009]

/** Nothing came back within the time that a request may take. */
export class NoReply extends Error {
  override readonly name = 'TimeoutError'
}

export function isConflict(error: unknown): boolean {
  return CONFLICT.includes(codeOf(error))
}

/** Nobody took the request, so it surely did nothing: no leader at this moment, no such bucket, or no JetStream. */
export function isNoLeader(error: unknown): boolean {
  return NO_LEADER.includes(codeOf(error)) || chain(error).some(({ name }) => name === 'NoRespondersError')
}

export function faultOf(error: unknown, bucket: string, valueBytes = 0): unknown {
  if (error instanceof OncekeyError) return error
  const code = codeOf(error)
  const texts = chain(error)
  const said = texts.map(({ message }) => message).join(': ')
  if (code === NOT_FOUND) {
    return new OncekeyError(
      'config-invalid',
      `There is no NATS bucket ${bucket}. Create it (nats kv add ${bucket}, or Kvm.create) with the replicas that you ` +
        'need. Nothing of this operation was recorded.',
      { cause: error },
    )
  }
  if (TOO_LARGE.includes(code) || /max_payload/.test(said)) return tooLarge(bucket, valueBytes, undefined, error)
  if (FULL.includes(code)) {
    return new OncekeyError(
      'store-full',
      `The NATS bucket ${bucket} is full (${said}), and it refuses rather than forgets. Raise its max_bytes or the ` +
        "account's limits, sweep it, or give it a ttl. Nothing of this operation was recorded.",
      { cause: error },
    )
  }
  return new OncekeyError('store-unavailable', `${whatFailed(error, bucket, said)} ${recorded(error)}`, {
    cause: error,
  })
}

export function tooLarge(bucket: string, valueBytes: number, limit: number | undefined, cause?: unknown): OncekeyError {
  const over =
    limit === undefined ? "the server's max_payload (1 MB unless configured)" : `its maxValueSize of ${limit}`
  return new OncekeyError(
    'body-too-large',
    `A record of ${valueBytes} bytes does not fit into the NATS bucket ${bucket}: it is over ${over}. Nothing was ` +
      'changed. Raise that limit, or keep smaller answers: set limits.answerBytesMax below it.',
    { cause },
  )
}

function whatFailed(error: unknown, bucket: string, said: string): string {
  if (isNoLeader(error)) {
    return (
      `The NATS bucket ${bucket} has no leader at the moment: its servers are starting, electing one, or too few of ` +
      'them are up.'
    )
  }
  if (NO_JETSTREAM.includes(codeOf(error)) || /JetStreamNotEnabled/.test(said)) {
    return `JetStream is not enabled for this account (${said}). Start nats-server with -js, or enable it for the account.`
  }
  if (isTimeout(error)) return `NATS gave no reply in time for the bucket ${bucket}.`
  if (/authorization|permission|authentication/i.test(said)) {
    return (
      `NATS refused this client on the bucket ${bucket} (${said}). It needs to publish on $KV.${bucket}.> and on ` +
      '$JS.API.>.'
    )
  }
  return `NATS failed on the bucket ${bucket}: ${said}.`
}

function recorded(error: unknown): string {
  if (isNoLeader(error)) return 'Nothing of this operation was recorded. No restart is needed.'
  return 'Whether this operation was recorded is not certain; asking again with the same token tells.'
}

function isTimeout(error: unknown): boolean {
  return chain(error).some(({ name }) => name === 'TimeoutError')
}

function codeOf(error: unknown): number {
  const code = error instanceof Error && 'code' in error ? error.code : 0
  return typeof code === 'number' ? code : 0
}

/** The error and its causes: the driver wraps what it means. */
function chain(error: unknown): Error[] {
  const errors: Error[] = []
  for (let at = error; at instanceof Error && errors.length < CAUSES_MAX; at = at.cause) errors.push(at)
  return errors
}

const CAUSES_MAX = 5
