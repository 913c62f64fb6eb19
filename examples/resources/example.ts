import { randomUUID } from 'node:crypto'
import { MongoClient } from 'mongodb'
import { resourcesFromEnvironment } from '../../src/contracts/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { type Example, needed, type StartOptions } from '../kit.ts'
import { createResources } from './service.ts'

export { tour } from './tour.ts'

/** The service with its database, and a place where requests can be made to stop, to see what happens meanwhile. */
export interface ResourcesExample extends Example {
  readonly mongo: MongoClient
  readonly mongodbUrl: string
  readonly database: string
  /** Called before a record is created. */
  beforeCreate: () => Promise<void> | void
}

export async function start({ port, env }: StartOptions): Promise<ResourcesExample> {
  // Before anything is started: a setting that cannot be meant ends it here.
  const { contract, settings } = resourcesFromEnvironment(env)
  const given = env.MONGODB_URL
  const server = given
    ? { url: given, title: 'the server of MONGODB_URL', stop: async () => {} }
    : needed(await findMongod())
  const mongo = new MongoClient(server.url, { monitorCommands: true })
  const database = `oncekey_resources_${randomUUID().slice(0, 8)}`
  const app = createResources({
    db: mongo.db(database),
    contract,
    hooks: { beforeCreate: () => example.beforeCreate() },
  })
  const url = await app.listen({ host: '127.0.0.1', port })
  const example: ResourcesExample = {
    title: `Resources: REST routes and MCP tools from one schema file. Fastify, ${server.title}`,
    url,
    settings,
    tries: triesOf(url, server.url, database),
    mongo,
    mongodbUrl: server.url,
    database,
    beforeCreate: () => {},
    async stop() {
      await app.close()
      await mongo.db(database).dropDatabase()
      await mongo.close()
      await server.stop()
    },
  }
  return example
}

function triesOf(url: string, mongodbUrl: string, database: string): Example['tries'] {
  const as = (token: string) => `-H 'Authorization: Bearer ${token}' -H 'Content-Type: application/json'`
  const post = (path: string, key: string, record: string, token = 'anna-token') =>
    `curl -si ${url}/api/v1/${path} ${as(token)} -H 'Idempotency-Key: ${key}' -d '${record}'`
  const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_account","arguments":{"record":{"accountName":"Acme"},"idempotencyKey":"k-2"}}}`
  return [
    [
      'A 201; send it again, and it is the same one with Idempotency-Replay: true',
      post('account', 'k-1', '{"accountName":"Acme"}'),
    ],
    [
      'The same: a member may not write creditLimit, so it is stripped before the hash',
      post('account', 'k-1', '{"creditLimit":9000000,"accountName":"Acme"}'),
    ],
    ['409 IDEMPOTENCY_CONFLICT: the same key for something else', post('account', 'k-1', '{"accountName":"Globex"}')],
    [
      '400, and nothing is remembered; correct it and send it under the same key',
      post('contact', 'k-1', '{"email":"ada@example.org"}'),
    ],
    ['Another user’s key k-1 is another key', post('account', 'k-1', '{"accountName":"Globex"}', 'zoe-token')],
    ['What there is now', `curl -s ${url}/api/v1/account ${as('anna-token')}`],
    [
      'A tool over HTTP; the second time with _idempotent_replay: true',
      `curl -s ${url}/mcp ${as('anna-token')} -H 'Accept: application/json, text/event-stream' -d '${call}'`,
    ],
    [
      'The tools over stdio, for the configuration of an agent',
      `MONGODB_URL='${mongodbUrl}' MONGODB_DATABASE=${database} RESOURCES_TOKEN=anna-token npx node examples/resources/mcp-stdio.ts`,
    ],
  ]
}
