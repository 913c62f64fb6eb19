import { MongoClient } from 'mongodb'
import { launch, type Server, Unavailable } from './index.ts'
import { answersHello, mongod, REPLICA_SET } from './mongod.ts'

/** Three MongoDB servers on loopback that are one replica set; each may be killed and started again. */
export interface MongodSet {
  readonly servers: readonly Server[]
  readonly url: string
  readonly title: string
  /** Resolves when a majority has elected one. */
  primary(): Promise<Server>
  stop(): Promise<void>
}

const MEMBERS = [0, 1, 2]
/** Short, so that a failover does not keep the tests waiting; the server's own default is 10 s. */
const ELECTION_MS = 2_000
const READY_MS_MAX = 30_000
const LOOK_EVERY_MS = 50

/** The replica set, or the reason why there is none, in words. */
export async function findMongodSet(): Promise<MongodSet | string> {
  try {
    return await launchSet()
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

async function launchSet(): Promise<MongodSet> {
  const recipe = { ...mongod(), probe: (_url: string, port: number) => answersHello(port) }
  const servers = await Promise.all(MEMBERS.map(() => launch(recipe)))
  const hosts = servers.map(({ port }) => `127.0.0.1:${port}`)
  const members = hosts.map((host, _id) => ({ _id, host }))
  const settings = { electionTimeoutMillis: ELECTION_MS, heartbeatIntervalMillis: ELECTION_MS / 4 }
  await asked(servers[0], { replSetInitiate: { _id: REPLICA_SET, members, settings } })
  const set: MongodSet = {
    servers,
    url: `mongodb://${hosts.join(',')}/?replicaSet=${REPLICA_SET}`,
    title: `${servers[0]?.title} × ${servers.length}, a replica set`,
    async primary() {
      const deadline = performance.now() + READY_MS_MAX
      while (performance.now() < deadline) {
        for (const server of servers) {
          const { isWritablePrimary } = await asked(server, { hello: 1 }).catch(() => ({ isWritablePrimary: false }))
          if (isWritablePrimary) return server
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS))
      }
      throw new Error('no primary was elected')
    },
    async stop() {
      await Promise.all(servers.map((server) => server.stop()))
    },
  }
  await set.primary()
  console.log(`mongod: ${set.title}`)
  return set
}

async function asked(server: Server | undefined, command: object): Promise<{ isWritablePrimary?: boolean }> {
  const client = new MongoClient(`mongodb://127.0.0.1:${server?.port}/?directConnection=true`, {
    serverSelectionTimeoutMS: 500,
  })
  try {
    return await client.db('admin').command({ ...command })
  } finally {
    await client.close()
  }
}
