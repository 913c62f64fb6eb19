import { expectReply } from './probes.ts'
import { nats } from './recipes.ts'
import { freePort, launch, type Server, Unavailable } from './server.ts'

/** Three NATS servers on loopback that replicate JetStream among them; each may be killed, frozen and started again. */
export interface NatsCluster {
  readonly servers: readonly Server[]
  readonly urls: readonly string[]
  readonly title: string
  /** The server of this name, as a stream's cluster information gives it. */
  named(name: string): Server
  stop(): Promise<void>
}

/** The cluster, or the reason why there is none. */
export async function findNatsCluster(): Promise<NatsCluster | string> {
  try {
    return await launchCluster()
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

const NODES = [0, 1, 2]

async function launchCluster(): Promise<NatsCluster> {
  const routePorts = await Promise.all(NODES.map(() => freePort()))
  const routes = routePorts.map((port) => `nats://127.0.0.1:${port}`)
  const names = NODES.map((node) => `node-${node}`)
  const servers: Server[] = []
  // One after the other: servers that all start at the same moment do not always agree on who belongs to the cluster.
  for (const node of NODES) {
    const member = ['-n', `${names[node]}`, '--cluster_name', 'oncekey', '--cluster', `${routes[node]}`]
    const others = routes.filter((_, other) => other !== node)
    const recipe = nats([...member, '--routes', others.join(',')])
    const server = await launch({
      ...recipe,
      // A server that cannot open its route port ends only after it has served its clients.
      async probe(url, port) {
        await expectReply(routePorts[node] ?? 0, '', /^INFO/)
        await recipe.probe(url, port)
      },
    })
    servers.push(server)
  }
  return {
    servers,
    urls: servers.map(({ url }) => url),
    title: `${servers[0]?.title} × ${servers.length}`,
    named(name) {
      const server = servers[names.indexOf(name)]
      if (!server) throw new Error(`no server is called ${name}`)
      return server
    },
    async stop() {
      await Promise.all(servers.map((server) => server.stop()))
    },
  }
}
