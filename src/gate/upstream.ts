import { Agent, type ClientRequest, request as httpRequest } from 'node:http'
import { request as httpsRequest, Agent as TlsAgent } from 'node:https'
import { type Dispatcher, Pool } from 'undici'
import { OncekeyError } from '../error.ts'
import type { GateLimits } from './limits.ts'

/** Trust in the upstream's certificate, when it is not one that the system trusts. */
export interface UpstreamTls {
  readonly ca?: string | Uint8Array
}

/**
 * The service behind the gate. Operations go by undici, which is the faster client; what is streamed through in both
 * directions, or needs more of HTTP/1.1 (trailers, Expect, an upgrade), by node:http. Neither ever sends a request twice.
 */
export class Upstream {
  readonly url: URL
  readonly #base: string
  readonly #pool: Pool
  readonly #agent: Agent
  readonly #ca: { readonly ca?: Buffer }
  readonly #limits: GateLimits

  constructor(address: string, limits: GateLimits, tls: UpstreamTls = {}) {
    this.url = checkedUrl(address)
    this.#limits = limits
    this.#base = this.url.pathname.replace(/\/$/, '')
    this.#ca = tls.ca === undefined ? {} : { ca: Buffer.from(tls.ca as string) }
    this.#pool = new Pool(this.url.origin, {
      connections: limits.inFlightMax,
      pipelining: 1,
      connect: { timeout: limits.connectMsMax, ...this.#ca },
      headersTimeout: limits.upstreamMsMax,
      bodyTimeout: limits.upstreamMsMax,
      maxHeaderSize: UPSTREAM_HEADER_BYTES_MAX,
    })
    const agentOptions = { keepAlive: true, maxSockets: limits.inFlightMax, maxFreeSockets: FREE_SOCKETS_MAX }
    this.#agent =
      this.url.protocol === 'https:' ? new TlsAgent({ ...agentOptions, ...this.#ca }) : new Agent(agentOptions)
  }

  /** `handler.onRequestStart` is called before the first byte is sent, and not at all when there is no connection. */
  dispatch(
    method: string,
    target: string,
    headers: string[],
    body: Buffer | null,
    timeoutMs: number | undefined,
    handler: Dispatcher.DispatchHandler,
  ): void {
    const timeouts = timeoutMs === undefined ? undefined : { headersTimeout: timeoutMs, bodyTimeout: timeoutMs }
    const path = this.#base + target
    this.#pool.dispatch({ method: method as Dispatcher.HttpMethod, path, headers, body, ...timeouts }, handler)
  }

  /** `own-connection`: nothing was sent on it before, and nothing will be after. */
  request(method: string, target: string, headers: string[], on: 'any' | 'own-connection' = 'any'): ClientRequest {
    const { hostname, port, protocol } = this.url
    const send = protocol === 'https:' ? httpsRequest : httpRequest
    return send({
      method,
      host: hostname.replace(/^\[|\]$/g, ''),
      port,
      path: target === '*' ? '*' : this.#base + target,
      headers,
      ...(on === 'any' ? { agent: this.#agent } : { agent: false, ...this.#ca }),
      setHost: false,
      maxHeaderSize: UPSTREAM_HEADER_BYTES_MAX,
    })
  }

  get connectMsMax(): number {
    return this.#limits.connectMsMax
  }

  get upgradeMsMax(): number {
    return this.#limits.upstreamMsMax
  }

  async close(): Promise<void> {
    this.#agent.destroy()
    await this.#pool.destroy()
  }
}

const UPSTREAM_HEADER_BYTES_MAX = 64 * 1024
const FREE_SOCKETS_MAX = 256

function checkedUrl(address: string): URL {
  const url = URL.canParse(address) ? new URL(address) : undefined
  if (!url || (url.protocol !== 'http:' && url.protocol !== 'https:')) {
    throw new OncekeyError(
      'config-invalid',
      `upstream is ${JSON.stringify(address)}, but must be an address such as http://127.0.0.1:3000`,
    )
  }
  if (url.search || url.hash || url.username || url.password) {
    throw new OncekeyError(
      'config-invalid',
      'upstream must have no query, fragment or password; give scheme, host, port and, if need be, a base path',
    )
  }
  return url
}
