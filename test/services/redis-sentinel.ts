import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { launch, redis, type Server, type ServerRecipe, Unavailable } from './index.ts'
import { command, until } from './redis-cluster.ts'

/** A master, its replica and a Sentinel that watches them, on loopback; all three belong to one test file. */
export interface RedisSentinel {
  readonly title: string
  readonly master: Server
  readonly replica: Server
  readonly sentinel: Server
  /** Resolves when the Sentinel names this server as the master. */
  isMaster(server: Server): Promise<void>
  stop(): Promise<void>
}

export const SENTINEL_NAME = 'main'
/** Short, so that a failover does not keep the tests waiting; a production default is 30 s. */
const DOWN_AFTER_MS = 500

/** The three, or the reason why there are none, in words. */
export async function findRedisSentinel(): Promise<RedisSentinel | string> {
  const servers: Server[] = []
  const start = async (recipe: ServerRecipe) => {
    const server = await launch(recipe)
    servers.push(server)
    return server
  }
  const stop = async () => void (await Promise.all(servers.map((server) => server.stop())))
  const diskless = ['--repl-diskless-sync-delay', '0']
  try {
    const master = await start(redis(diskless))
    const replica = await start(redis(['--replicaof', '127.0.0.1', String(master.port), ...diskless]))
    const sentinel = await start(watching(master.port))
    await until('the replica follows, and the Sentinel knows it', async () => {
      const isUp = /master_link_status:up/.test(await command(replica.port, 'INFO', 'replication'))
      return isUp && (await command(sentinel.port, 'SENTINEL', 'REPLICAS', SENTINEL_NAME)).includes(`${replica.port}`)
    })
    const title = `${master.title}, a master and a replica under a Sentinel`
    console.log(`redis sentinel: ${title}`)
    const isMaster = (server: Server) =>
      until(`port ${server.port} is the master`, async () => {
        const address = await command(sentinel.port, 'SENTINEL', 'GET-MASTER-ADDR-BY-NAME', SENTINEL_NAME)
        const role = await command(server.port, 'INFO', 'replication')
        return address.includes(`\r\n${server.port}\r\n`) && role.includes('role:master')
      })
    return { title, master, replica, sentinel, isMaster, stop }
  } catch (error) {
    await stop()
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

function watching(masterPort: number): ServerRecipe {
  const config = (folder: string) => join(folder, 'sentinel.conf')
  return {
    ...redis(),
    name: 'Redis Sentinel',
    args: (folder) => [config(folder), '--sentinel'],
    prepare(folder, port) {
      const lines = [
        `port ${port}`,
        'bind 127.0.0.1',
        `sentinel monitor ${SENTINEL_NAME} 127.0.0.1 ${masterPort} 1`,
        `sentinel down-after-milliseconds ${SENTINEL_NAME} ${DOWN_AFTER_MS}`,
        `sentinel failover-timeout ${SENTINEL_NAME} 3000`,
      ]
      writeFileSync(config(folder), `${lines.join('\n')}\n`)
    },
  }
}
