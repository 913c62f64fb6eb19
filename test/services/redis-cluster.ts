import { connect } from 'node:net'
import { freePort, launch, redis, type Server, Unavailable } from './index.ts'

/** Six servers on loopback, three masters with a replica each, as one Redis Cluster that belongs to one test file. */
export interface RedisCluster {
  readonly title: string
  /** The masters come first; the replica of the n-th is the n-th after them. */
  readonly servers: readonly Server[]
  readonly nodes: ReadonlyArray<{ readonly host: string; readonly port: number }>
  stop(): Promise<void>
}

const MASTERS = 3
const SLOTS = 16_384
const READY_MS_MAX = 30_000
/** Short, so that a failover does not keep the tests waiting; a production default is 15 s. */
const NODE_TIMEOUT_MS = 1_000
const FAST = ['--repl-diskless-sync-delay', '0']

/** The cluster, or the reason why there is none, in words. */
export async function findRedisCluster(): Promise<RedisCluster | string> {
  const servers: Server[] = []
  const stop = async () => void (await Promise.all(servers.map((server) => server.stop())))
  try {
    // One after the other: free ports are found by asking, and two that ask at once may hear the same.
    for (let i = 0; i < 2 * MASTERS; i++) servers.push(await launchNode())
    await join(servers)
    const title = `${servers[0]?.title}, a cluster of ${servers.length}`
    console.log(`redis cluster: ${title}`)
    return { title, servers, nodes: servers.map(({ port }) => ({ host: '127.0.0.1', port })), stop }
  } catch (error) {
    await stop()
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

/** The bus has a port of its own: by default it would be at port + 10,000, which need not be free, nor exist. */
async function launchNode(): Promise<Server> {
  const bus = ['--cluster-port', String(await freePort())]
  return launch(redis(['--cluster-enabled', 'yes', '--cluster-node-timeout', String(NODE_TIMEOUT_MS), ...bus, ...FAST]))
}

async function join(servers: readonly Server[]): Promise<void> {
  const masters = servers.slice(0, MASTERS)
  const first = masters[0] as Server
  for (const [i, { port }] of masters.entries()) {
    const from = Math.floor((i * SLOTS) / MASTERS)
    const to = Math.floor(((i + 1) * SLOTS) / MASTERS) - 1
    await command(port, 'CLUSTER', 'ADDSLOTSRANGE', String(from), String(to))
    await command(port, 'CLUSTER', 'SET-CONFIG-EPOCH', String(i + 1))
  }
  const firstBus = await busPortOf(first.port)
  for (const { port } of servers.slice(1)) {
    await command(port, 'CLUSTER', 'MEET', '127.0.0.1', String(first.port), firstBus)
  }
  await until('every server knows every other', async () => {
    const lists = await Promise.all(servers.map(({ port }) => command(port, 'CLUSTER', 'NODES')))
    return lists.every((list) => list.split('\n').filter((line) => /connected/.test(line)).length === servers.length)
  })
  for (const [i, { port }] of servers.slice(MASTERS).entries()) {
    const master = await command((masters[i] as Server).port, 'CLUSTER', 'MYID')
    await command(port, 'CLUSTER', 'REPLICATE', master.trim())
  }
  await until('the cluster is whole', async () => {
    const infos = await Promise.all(servers.map(({ port }) => command(port, 'CLUSTER', 'INFO')))
    const roles = await Promise.all(servers.slice(MASTERS).map(({ port }) => command(port, 'INFO', 'replication')))
    return (
      infos.every((info) => /cluster_state:ok/.test(info)) && roles.every((info) => /master_link_status:up/.test(info))
    )
  })
}

async function busPortOf(port: number): Promise<string> {
  const config = await command(port, 'CONFIG', 'GET', 'cluster-port')
  return config.trim().split('\r\n').at(-1) ?? ''
}

/** One command on a connection of its own; the raw reply without its first line's sign. Errors are thrown. */
export function command(port: number, ...args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1')
    let reply = ''
    socket.setTimeout(COMMAND_MS_MAX, () => socket.destroy(new Error(`no reply to ${args[0]}`)))
    socket.on('error', reject)
    // A server that changes its role drops its clients; after a reply this rejects nothing any more.
    socket.on('close', () => reject(new Error(`the connection was closed before the reply to ${args[0]}`)))
    socket.on('data', (data) => {
      reply += data.toString('latin1')
      const [line = ''] = reply.split('\r\n', 1)
      const isBulk = line.startsWith('$') && line !== '$-1'
      if (isBulk && reply.length < line.length + 2 + Number(line.slice(1)) + 2) return
      if (!reply.endsWith('\r\n')) return
      socket.destroy()
      if (line.startsWith('-')) reject(new Error(line.slice(1)))
      else resolve(isBulk ? reply.slice(line.length + 2) : reply.slice(1))
    })
    socket.write(`*${args.length}\r\n${args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`).join('')}`)
  })
}

const COMMAND_MS_MAX = 5_000
const LOOK_EVERY_MS = 50

/** Asks until it is so; a condition that fails counts as not yet. */
export async function until(what: string, isSo: () => Promise<boolean>, msMax: number = READY_MS_MAX): Promise<void> {
  const deadline = performance.now() + msMax
  for (;;) {
    if (await isSo().catch(() => false)) return
    if (performance.now() > deadline) throw new Error(`still not so: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
  }
}
