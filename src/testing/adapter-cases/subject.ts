import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Clock } from '../../clock.ts'
import type { Contract } from '../../contract.ts'
import type { Run } from '../../execution.ts'
import type { Store } from '../../store.ts'

/** What an author of an adapter brings to `adapterSuite`. */
export type AdapterUnderTest = NodeAdapterUnderTest | FetchAdapterUnderTest

interface Subject<Handle> {
  readonly name: string
  /**
   * Starts a server on 127.0.0.1, port 0, that answers every method on each of `ROUTES` with `handle`, behind the
   * adapter with these options. Rejects when the adapter refuses the options.
   */
  serve(setup: AdapterSetup<Handle>): Promise<AdapterServer>
  /** What becomes of a handler that throws: an error answer that is kept, or an unknown outcome. */
  readonly thrown: 'kept' | 'unknown'
  /** Cases that this adapter cannot be asked, each with the reason. */
  readonly skips?: Readonly<Record<string, string>>
}

/** Handlers write to a `ServerResponse`. */
export interface NodeAdapterUnderTest extends Subject<NodeHandle> {
  readonly flavour: 'node'
}

/** Handlers return a `Response`. */
export interface FetchAdapterUnderTest extends Subject<FetchHandle> {
  readonly flavour: 'fetch'
}

/** `body` where the framework has read it already; otherwise the handler reads `request` itself. */
export type NodeHandle = (
  request: IncomingMessage,
  response: ServerResponse,
  given: { readonly run: Run | undefined; readonly body?: Uint8Array | undefined },
) => void | Promise<void>

export type FetchHandle = (request: Request, run: Run | undefined) => Response | Promise<Response>

export interface AdapterSetup<Handle> {
  readonly options: AdapterSuiteOptions
  readonly handle: Handle
  readonly routes: readonly string[]
}

/** The part of an adapter's options that the suite sets. `principal` is given whatever the adapter calls a request. */
export interface AdapterSuiteOptions {
  readonly store: Store
  readonly principal: 'public' | ((request: unknown) => string | undefined | Promise<string | undefined>)
  readonly contract?: Contract
  readonly storeMsMax?: number
  readonly clock?: Clock
}

export interface AdapterServer {
  readonly server: Server
  close(): Promise<void>
}

/** The paths that the suite asks for. Two, so that a key on one can be told from the same key on the other. */
export const ROUTES: readonly string[] = ['/orders', '/refunds']
