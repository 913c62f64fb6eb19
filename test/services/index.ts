import { recipes, type ServiceName } from './recipes.ts'
import { launch, type Server, Unavailable } from './server.ts'

export { nats, pgbouncer, postgres, redis, type ServiceName } from './recipes.ts'
export { freePort, launch, type Server, type ServerRecipe, Unavailable } from './server.ts'

/** A server for one test file: the one that the environment names, else one of its own. */
export interface Service {
  readonly url: string
  readonly title: string
  stop(): Promise<void>
}

const VARIABLES: Readonly<Record<ServiceName, string>> = {
  redis: 'REDIS_URL',
  postgres: 'POSTGRES_URL',
  mariadb: 'MYSQL_URL',
  ferretdb: 'FERRETDB_URL',
  nats: 'NATS_URL',
}

/** The service, or the reason why there is none, in words: `describe.skipIf(reason)`. */
export async function findService(name: ServiceName): Promise<Service | string> {
  const given = process.env[VARIABLES[name]]
  if (given) return { url: given, title: `the server of ${VARIABLES[name]}`, stop: async () => {} }
  return findOwn(name)
}

/** One that the test may kill: never the environment's. */
export async function findOwn(name: ServiceName): Promise<Server | string> {
  try {
    const server = await launch(recipes[name]())
    console.log(`${name}: ${server.title}`)
    return server
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}
