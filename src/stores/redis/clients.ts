/**
 * What the store uses of a client, so that no driver is imported and any version with these members fits.
 * The caller made it, connects it, listens to its errors and closes it.
 */
export type RedisClient = NodeRedisClient | NodeRedisCluster | NodeRedisSentinel | IoredisClient | IoredisCluster

export type Arg = string | Buffer

interface Emitter {
  on(event: string, listener: (...args: string[]) => void): unknown
}

/** Of `redis`: `createClient()`, and what a cluster or a pool gives. */
export interface NodeRedisClient {
  /** Whether commands are sent at once; a pool does not say. */
  readonly isReady?: boolean
  sendCommand(args: readonly Arg[], options?: object): Promise<unknown>
  duplicate(): NodeRedisSubscriber
}

/** Of `redis`: `createCluster()`. */
export interface NodeRedisCluster {
  sendCommand(
    firstKey: string | undefined,
    isReadonly: boolean | undefined,
    args: Arg[],
    options?: object,
  ): Promise<unknown>
  readonly masters: readonly unknown[]
  nodeClient(node: unknown): Promise<Pick<NodeRedisClient, 'sendCommand'>>
  duplicate(): NodeRedisSubscriber
}

/** Of `redis`: `createSentinel()`. */
export interface NodeRedisSentinel {
  sendCommand(isReadonly: boolean | undefined, args: Arg[], options?: object): Promise<unknown>
  getMasterNode(): unknown
  duplicate(): NodeRedisSubscriber
}

/** What `duplicate()` of `redis` gives. */
export interface NodeRedisSubscriber extends Emitter {
  connect(): Promise<unknown>
  subscribe(channel: string, listener: (message: string) => unknown): Promise<unknown>
  destroy(): unknown
}

/** Of `ioredis`: `new Redis()`, of one server or found by Sentinels. */
export interface IoredisClient {
  readonly isCluster: boolean
  readonly options: IoredisOptions
  callBuffer(command: string, ...args: (Arg | number)[]): Promise<unknown>
  evalshaBuffer?(sha: string, keys: number, ...args: Arg[]): Promise<unknown>
  evalBuffer?(text: string, keys: number, ...args: Arg[]): Promise<unknown>
  pipeline(): IoredisPipeline
  duplicate(override?: object): IoredisSubscriber
}

/** Of `ioredis`: `new Cluster()`. */
export interface IoredisCluster {
  readonly isCluster: boolean
  readonly options: IoredisOptions
  callBuffer(command: string, ...args: (Arg | number)[]): Promise<unknown>
  evalshaBuffer?(sha: string, keys: number, ...args: Arg[]): Promise<unknown>
  evalBuffer?(text: string, keys: number, ...args: Arg[]): Promise<unknown>
  nodes(role: 'master'): readonly Pick<IoredisClient, 'pipeline'>[]
  duplicate(startupNodes?: never[], override?: object): IoredisSubscriber
}

export interface IoredisOptions {
  readonly keyPrefix?: string | undefined
}

export interface IoredisPipeline {
  callBuffer(command: string, ...args: (Arg | number)[]): unknown
  exec(): Promise<ReadonlyArray<readonly [error: Error | null, reply?: unknown]> | null>
}

/** What `duplicate()` of `ioredis` gives. */
export interface IoredisSubscriber extends Emitter {
  subscribe(channel: string): Promise<unknown>
  disconnect(): void
}
