import { OncekeyError } from '../error.ts'

/** Every bound of the gate. */
export interface GateLimits {
  /** Requests under way at once; one more is shed with 503. Default 2,000. */
  readonly inFlightMax: number
  /** Bytes of request and answer bodies of protected operations held at once. Default 64 MiB. */
  readonly bufferedBytesMax: number
  /** Open client connections; one more is dropped. Default 10,000. */
  readonly connectionsMax: number
  /** Of a request's head; more is 431. Default 16 KiB. */
  readonly headerBytesMax: number
  /** For a request's head to arrive; later is 408. Default 10,000. */
  readonly headerMsMax: number
  /** For the body of a protected request to arrive; later is 408. Default 30,000. */
  readonly bodyMsMax: number
  /** A client that sends, or reads, slower than `rateBytesMin` a second for this long is cut off. Default 30,000. */
  readonly slowMsMax: number
  readonly rateBytesMin: number
  /** An idle client connection is kept for this long. Default 65,000: longer than the usual balancer keeps its own. */
  readonly idleMsMax: number
  /** For a connection to the upstream; later, nothing was done: 503. Default 5,000. */
  readonly connectMsMax: number
  /** Without a head, or between two pieces of the answer; later, the outcome is unknown: 504. Default 60,000. */
  readonly upstreamMsMax: number
  /** What runs when `stop()` is called may go on for this long. Default 30,000. */
  readonly stopMsMax: number
}

const MIB = 1024 * 1024

const DEFAULTS: GateLimits = {
  inFlightMax: 2_000,
  bufferedBytesMax: 64 * MIB,
  connectionsMax: 10_000,
  headerBytesMax: 16 * 1024,
  headerMsMax: 10_000,
  bodyMsMax: 30_000,
  slowMsMax: 30_000,
  rateBytesMin: 1_024,
  idleMsMax: 65_000,
  connectMsMax: 5_000,
  upstreamMsMax: 60_000,
  stopMsMax: 30_000,
}

export function gateLimits(given: Partial<GateLimits> = {}): GateLimits {
  for (const [name, value] of Object.entries(given)) {
    if (!Object.hasOwn(DEFAULTS, name)) {
      throw new OncekeyError(
        'config-invalid',
        `limits.${name} is not a limit of the gate; the limits are ${Object.keys(DEFAULTS).join(', ')}`,
      )
    }
    if (value !== undefined && !(Number.isSafeInteger(value) && value > 0)) {
      throw new OncekeyError(
        'config-invalid',
        `limits.${name} is ${String(value)}, but must be a whole number of at least 1`,
      )
    }
  }
  return { ...DEFAULTS, ...given }
}
