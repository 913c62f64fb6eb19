import type { Contract } from '../contract.ts'
import { ietf } from '../contracts/ietf.ts'
import { OncekeyError } from '../error.ts'
import type { Store } from '../store.ts'
import { ConflictPaths, type PathChange } from './conflicts.ts'
import { type GateLimits, gateLimits } from './limits.ts'
import type { PrincipalSource } from './principals.ts'
import { GateProxy } from './proxy.ts'
import type { RouteRule } from './routes.ts'
import { drainMsMax, listen, type ServerTls } from './server.ts'
import { Shadow, type ShadowCounters } from './shadow.ts'
import { Budget, type Load } from './shedding.ts'
import { Upstream, type UpstreamTls } from './upstream.ts'

export type { PathChange } from './conflicts.ts'
export type { GateEvent } from './events.ts'
export type { GateLimits } from './limits.ts'
export type { PrincipalSource } from './principals.ts'
export { parseRoutes, type RouteRule } from './routes.ts'
export type { ServerTls } from './server.ts'
export type { ShadowCounters } from './shadow.ts'
export type { Load } from './shedding.ts'
export type { UpstreamTls } from './upstream.ts'

export interface GateOptions {
  /** `http://host:port`, with a base path if need be; https too. */
  readonly upstream: string
  /** The caller's: `stop()` does not close it. */
  readonly store: Store
  /** Default 8080; 0 takes any that is free. */
  readonly port?: number
  /** Default 127.0.0.1. */
  readonly host?: string
  readonly principal: 'public' | PrincipalSource
  /** Default: `ietf`. */
  readonly contract?: Contract
  /** The first match decides; without a match the gate's own contract holds, with the path as the route. */
  readonly routes?: readonly RouteRule[]
  /** Forward everything, block nothing, and report what would have happened. */
  readonly shadow?: boolean
  readonly limits?: Partial<GateLimits>
  /** Speak TLS to clients. With `principal: { kind: 'mtls' }` they must show a certificate that `ca` has signed. */
  readonly tls?: ServerTls
  readonly upstreamTls?: UpstreamTls
  /**
   * The Host that the upstream sees. `keep`: the client's, so that links and signatures made of it stay right. `replace`:
   * the upstream's own. Default: `keep` for http, and `replace` for https, where Host and certificate must agree.
   */
  readonly upstreamHost?: 'keep' | 'replace'
  /** Believe and continue X-Forwarded-* and Forwarded of whoever connects. Default `false`: they are replaced. */
  readonly trustForwarded?: boolean
  /** Remember hashes of recent JSON bodies, to tell where a conflicting request differs. Default `true`. */
  readonly conflictPaths?: boolean
}

export interface Gate {
  readonly url: string
  readonly load: Load
  /** What shadow mode found so far; `undefined` when it is off. */
  readonly shadow: ShadowCounters | undefined
  /** Where the last conflicting request of this operation differed from the first, if both were seen here. */
  changes(id: string): readonly PathChange[] | undefined
  /** Takes no new requests, lets those inside come to their end, at most for `limits.stopMsMax`, and then cuts them. */
  stop(): Promise<void>
  /** The longest that `stop()` takes, with clients that never read and a store that never answers. */
  readonly stopMsMax: number
}

/** A reverse proxy that gives any HTTP service idempotency (X8). Rejects when the options are wrong or the port is taken. */
export async function startGate(options: GateOptions): Promise<Gate> {
  checkOptions(options)
  const limits = gateLimits(options.limits)
  const budget = new Budget(limits)
  const upstream = new Upstream(options.upstream, limits, options.upstreamTls)
  const shadow = options.shadow ? new Shadow(options.store, leaseMsMin(options, limits)) : undefined
  const conflicts = options.conflictPaths === false || shadow ? undefined : new ConflictPaths()
  const { upstreamHost = upstream.url.protocol === 'https:' ? 'replace' : 'keep' } = options
  const proxy = new GateProxy({
    store: options.store,
    contract: options.contract ?? ietf,
    routes: options.routes ?? [],
    principal: options.principal,
    limits,
    budget,
    upstream,
    shadow,
    conflicts,
    host: upstreamHost === 'replace' ? upstream.url.host : undefined,
    trustForwarded: options.trustForwarded ?? false,
  })
  const isMutual = options.principal !== 'public' && options.principal.kind === 'mtls'
  const { port = DEFAULT_PORT, host = '127.0.0.1', tls } = options
  const server = await listen(proxy, { port, host, tls, isMutual, limits, budget }).catch(async (error) => {
    await upstream.close()
    throw error
  })
  let stopped: Promise<void> | undefined
  const stop = async (): Promise<void> => {
    await server.stop()
    await shadow?.idle(limits.stopMsMax)
    await upstream.close()
    await proxy.idle(limits.stopMsMax)
  }
  return {
    url: server.url,
    get load() {
      const { inFlight, bufferedBytes, shed } = budget
      return { inFlight, bufferedBytes, connections: server.connections, shed }
    },
    get shadow() {
      return shadow && { ...shadow.counters }
    },
    changes: (id) => conflicts?.changes(id),
    // One for the requests, one for what shadow mode finds of them, one for the store.
    stopMsMax: drainMsMax(limits.stopMsMax) + 2 * limits.stopMsMax,
    stop: () => {
      stopped ??= stop()
      return stopped
    },
  }
}

const DEFAULT_PORT = 8080
const MARGIN_MS = 10_000

/** In shadow mode no lease is renewed. */
function leaseMsMin({ routes = [] }: GateOptions, { upstreamMsMax }: GateLimits): number {
  return Math.max(upstreamMsMax, ...routes.map(({ limits }) => limits?.upstreamMsMax ?? 0)) + MARGIN_MS
}

function checkOptions(options: GateOptions): void {
  for (const name of Object.keys(options)) {
    if (!OPTIONS.has(name)) {
      throw new OncekeyError(
        'config-invalid',
        `${name} is not an option of the gate; the options are ${[...OPTIONS].join(', ')}`,
      )
    }
  }
  const { port, principal, tls } = options
  if (port !== undefined && !(Number.isInteger(port) && port >= 0 && port <= 65_535)) {
    throw new OncekeyError('config-invalid', `port is ${String(port)}, but must be a whole number from 0 to 65535`)
  }
  if (principal !== 'public' && principal?.kind === 'mtls' && !tls?.ca) {
    throw new OncekeyError(
      'config-invalid',
      'principal is mtls, but tls.ca is missing; give tls: { key, cert, ca }, where ca has signed the certificates of the clients',
    )
  }
}

const OPTIONS: ReadonlySet<string> = new Set<keyof GateOptions>([
  'upstream',
  'store',
  'port',
  'host',
  'principal',
  'contract',
  'routes',
  'shadow',
  'limits',
  'tls',
  'upstreamTls',
  'upstreamHost',
  'trustForwarded',
  'conflictPaths',
])
