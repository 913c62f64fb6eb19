import { type IdempotentFetchOptions, idempotentFetch, isReplay } from '../../src/client/index.ts'
import { type Draft, type Path, paths, type Saved } from './schema.ts'

/** The client of this API, typed by the schema: `client.account.create({ accountName: 'Acme' }, { idempotencyKey })`. */
export type ResourcesClient = { readonly [P in Path]: ResourceClient<P> }

export interface ResourceClient<P extends Path> {
  /**
   * Creates one record, however often it has to be sent: every retry carries the same key. Give the key when the
   * operation has a name of its own, so that it may be repeated by another process; else each call gets a new one.
   */
  create(record: Draft<P>, options?: { readonly idempotencyKey?: string }): Promise<Created<P>>
  list(): Promise<ReadonlyArray<Saved<P>>>
}

export interface Created<P extends Path> {
  readonly record: Saved<P>
  /** Whether an earlier call had created it. */
  readonly isReplay: boolean
}

export interface ClientOptions {
  readonly url: string
  readonly token: string
  readonly retrying?: IdempotentFetchOptions
}

export class ApiError extends Error {
  readonly status: number
  readonly code: string

  constructor(status: number, { code, message }: { readonly code: string; readonly message: string }) {
    super(message)
    this.status = status
    this.code = code
  }
}

export function createClient({ url, token, retrying = {} }: ClientOptions): ResourcesClient {
  const send = idempotentFetch(retrying)
  const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }
  const of = <P extends Path>(path: P): ResourceClient<P> => {
    const target = new URL(`/api/v1/${path}`, url)
    return {
      async create(record, { idempotencyKey } = {}) {
        const named = idempotencyKey === undefined ? {} : { idempotencyKey }
        const response = await send(target, { method: 'POST', headers, body: JSON.stringify(record), ...named })
        return { record: await read<Saved<P>>(response), isReplay: isReplay(response) }
      },
      async list() {
        return (await read<{ items: Saved<P>[] }>(await send(target, { headers }))).items
      },
    }
  }
  return Object.fromEntries(paths.map((path) => [path, of(path)])) as unknown as ResourcesClient
}

async function read<T>(response: Response): Promise<T> {
  const body: unknown = await response.json()
  if (response.ok) return body as T
  throw new ApiError(response.status, (body as { error: { code: string; message: string } }).error)
}
