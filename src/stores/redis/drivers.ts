import { OncekeyError } from '../../error.ts'
import { GroupCommit } from '../../group-commit.ts'
import type {
  Arg,
  IoredisClient,
  IoredisCluster,
  IoredisSubscriber,
  NodeRedisClient,
  NodeRedisCluster,
  NodeRedisSentinel,
  NodeRedisSubscriber,
  RedisClient,
} from './clients.ts'
import type { Script } from './scripts.ts'
import type { ClientTraits } from './turns.ts'

/** The five kinds of client, seen as one. Strings come back as Buffers, whatever the client's own settings are. */
export interface Driver extends ClientTraits {
  /** What the client itself puts before every key. */
  readonly keyPrefix: string
  /**
   * One round trip; two when the server does not know the script yet. `signal` says that nobody waits for it any more:
   * where the client can, it then does not send what it has not sent yet.
   */
  run(script: Script, keys: readonly string[], args: readonly Arg[], signal: AbortSignal): Promise<unknown>
  /** Every server that holds keys of its own. */
  servers(): Promise<readonly Ask[]>
  /** On a connection of its own. `onChange` is called when something happened to it, so that messages may be missing. */
  subscribe(channel: string, onMessage: (message: string) => void, onChange: () => void): Subscription
}

/** A plain command to one server. */
export type Ask = (command: string, ...args: string[]) => Promise<unknown>

export interface Subscription {
  readonly ready: Promise<unknown>
  close(): void
}

export function driverOf(client: RedisClient): Driver {
  const members: object = Object(client)
  if ('callBuffer' in members) return ioredisDriver(client as IoredisClient | IoredisCluster)
  if ('sendCommand' in members) return nodeRedisDriver(client as NodeRedisClient | NodeRedisCluster | NodeRedisSentinel)
  throw new OncekeyError(
    'config-invalid',
    'redisStore needs a client of `redis` (createClient, createCluster, createSentinel) or of `ioredis` (Redis, Cluster).',
  )
}

/** RESP's sign for a string of bytes, to be mapped to Buffer; the other kinds of reply stay as they are. */
const BYTES_AS_BUFFERS = { typeMapping: { ['$'.charCodeAt(0)]: Buffer } }

function nodeRedisDriver(client: NodeRedisClient | NodeRedisCluster | NodeRedisSentinel): Driver {
  const send = nodeRedisSend(client)
  return {
    // Raw commands go out as they are.
    keyPrefix: '',
    isCluster: isNodeRedisCluster(client),
    writesAtTurnEnd: true,
    run: (script, keys, args, signal) =>
      withScript(
        () => send(keys[0], ['EVALSHA', script.sha, String(keys.length), ...keys, ...args], signal),
        () => send(keys[0], ['EVAL', script.text, String(keys.length), ...keys, ...args], signal),
      ),
    async servers() {
      if (!isNodeRedisCluster(client)) return [(command, ...args) => send(undefined, [command, ...args])]
      const nodes = await Promise.all(client.masters.map((master) => client.nodeClient(master)))
      return nodes.map<Ask>(
        (node) =>
          (command, ...args) =>
            node.sendCommand([command, ...args], BYTES_AS_BUFFERS),
      )
    },
    subscribe(channel, onMessage, onChange) {
      const subscriber: NodeRedisSubscriber = client.duplicate()
      for (const event of ['error', 'ready', 'reconnecting', 'end', 'topology-change']) subscriber.on(event, onChange)
      const ready = subscriber.connect().then(() => subscriber.subscribe(channel, onMessage))
      return { ready, close: () => quietly(() => subscriber.destroy()) }
    },
  }
}

type Send = (key: string | undefined, args: Arg[], signal?: AbortSignal) => Promise<unknown>

function nodeRedisSend(client: NodeRedisClient | NodeRedisCluster | NodeRedisSentinel): Send {
  if (isNodeRedisCluster(client)) return (key, args) => client.sendCommand(key, false, args, BYTES_AS_BUFFERS)
  if (isNodeRedisSentinel(client)) return (_key, args) => client.sendCommand(false, args, BYTES_AS_BUFFERS)
  return (_key, args, signal) => client.sendCommand(args, optionsFor(client, signal))
}

/**
 * The client sets a timer for each command, against a queue that fills while there is no connection; and each timer keeps
 * what it is about alive for seconds, which costs more than the command. While there is one, the store's own signal does.
 */
function optionsFor({ isReady }: NodeRedisClient, signal: AbortSignal | undefined): object {
  if (signal === undefined) return BYTES_AS_BUFFERS
  if (!isReady) return { ...BYTES_AS_BUFFERS, abortSignal: signal }
  return { ...BYTES_AS_BUFFERS, abortSignal: signal, timeout: undefined }
}

function isNodeRedisCluster(client: object): client is NodeRedisCluster {
  return 'nodeClient' in client
}

function isNodeRedisSentinel(client: object): client is NodeRedisSentinel {
  return 'getMasterNode' in client
}

function ioredisDriver(client: IoredisClient | IoredisCluster): Driver {
  const cluster = isIoredisCluster(client) ? client : undefined
  const call = isIoredisCluster(client) ? directCall(client) : gatheredCall(client)
  return {
    keyPrefix: client.options.keyPrefix ?? '',
    isCluster: cluster !== undefined,
    writesAtTurnEnd: false,
    run: (script, keys, args) =>
      withScript(
        () => call('evalsha', script.sha, keys, args),
        () => call('eval', script.text, keys, args),
      ),
    async servers() {
      // Until its first command is answered, a cluster client may not know its servers.
      if (cluster) await call('eval', 'return 1', ['oncekey'], [])
      const nodes = isIoredisCluster(client) ? client.nodes('master') : [client]
      return nodes.map(ioredisAsk)
    },
    subscribe(channel, onMessage, onChange) {
      const override = { keyPrefix: '', enableOfflineQueue: true, autoResubscribe: true, lazyConnect: true }
      const subscriber: IoredisSubscriber = cluster ? cluster.duplicate([]) : client.duplicate(override as never)
      for (const event of ['error', 'ready', 'close', 'end', '-node', '+node']) subscriber.on(event, onChange)
      subscriber.on('message', (_channel, message) => onMessage(String(message)))
      return { ready: subscriber.subscribe(channel), close: () => quietly(() => subscriber.disconnect()) }
    },
  }
}

/** By a pipeline, because `callBuffer` loses the command's name when `enableAutoPipelining` is on (ioredis 6.0). */
function ioredisAsk(node: Pick<IoredisClient, 'pipeline'>): Ask {
  return async (command, ...args) => {
    const pipeline = node.pipeline()
    pipeline.callBuffer(command, ...args)
    const [[error, reply] = [null]] = (await pipeline.exec()) ?? []
    if (error) throw error
    return reply
  }
}

type Call = (
  command: 'evalsha' | 'eval',
  script: string,
  keys: readonly string[],
  args: readonly Arg[],
) => Promise<unknown>

function isIoredisCluster(client: IoredisClient | IoredisCluster): client is IoredisCluster {
  return client.isCluster
}

/** Not by `callBuffer` where it can be helped: see `ioredisAsk`. */
function directCall(client: IoredisClient | IoredisCluster): Call {
  const { evalshaBuffer, evalBuffer } = client
  if (!evalshaBuffer || !evalBuffer) {
    return (command, script, keys, args) => client.callBuffer(command, script, keys.length, ...keys, ...args)
  }
  return (command, script, keys, args) => {
    return (command === 'evalsha' ? evalshaBuffer : evalBuffer).call(client, script, keys.length, ...keys, ...args)
  }
}

/**
 * What the same turn of the event loop asks for, in one write: by itself ioredis writes the first command alone, and
 * spends a fifth more on each.
 */
function gatheredCall(client: IoredisClient): Call {
  const direct = directCall(client)
  const gathered = new GroupCommit<Parameters<Call>, readonly [Error | null, unknown?]>(
    async (batch) => {
      const [first] = batch
      // A lone one needs no pipeline, which costs as much as the command.
      if (batch.length === 1 && first) return [[null, await direct(...first)]]
      const pipeline = client.pipeline()
      for (const [command, script, keys, args] of batch) {
        pipeline.callBuffer(command, script, keys.length, ...keys, ...args)
      }
      return (await pipeline.exec()) ?? []
    },
    { batchMax: PIPELINE_MAX, queueMax: Number.MAX_SAFE_INTEGER, inFlightMax: Number.MAX_SAFE_INTEGER },
  )
  return async (...call) => {
    const [error, reply] = await gathered.submit(call)
    if (error) throw error
    return reply
  }
}

const PIPELINE_MAX = 256

/** A server that was restarted, or that became the master, knows no script: then the text is sent, which it keeps. */
async function withScript(bySha: () => Promise<unknown>, byText: () => Promise<unknown>): Promise<unknown> {
  try {
    return await bySha()
  } catch (error) {
    if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error
    return byText()
  }
}

/** What is closed may be down already; that is no news to anybody. */
function quietly(close: () => unknown): void {
  try {
    Promise.resolve(close()).catch(() => {})
  } catch {
    // As above: some clients throw, some reject.
  }
}
