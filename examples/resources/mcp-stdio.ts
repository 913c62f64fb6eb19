/**
 * The tools over stdio, for an agent that starts its servers itself:
 *
 *     MONGODB_URL=… MONGODB_DATABASE=… RESOURCES_TOKEN=anna-token node examples/resources/mcp-stdio.ts
 */
import { serveStdio } from '@modelcontextprotocol/server/stdio'
import { MongoClient } from 'mongodb'
import { resourcesFromEnvironment } from '../../src/contracts/index.ts'
import { Records } from './records.ts'
import { keyStore } from './service.ts'
import { createTools } from './tools.ts'
import { callerWith } from './users.ts'

const { MONGODB_URL, MONGODB_DATABASE, RESOURCES_TOKEN } = process.env
const caller = callerWith(RESOURCES_TOKEN)
if (!MONGODB_URL || !caller) throw new Error('Set MONGODB_URL, and RESOURCES_TOKEN to a token that is known.')

const { contract } = resourcesFromEnvironment()
const client = new MongoClient(MONGODB_URL)
const db = client.db(MONGODB_DATABASE)
const store = keyStore(db)
const tools = createTools({ records: new Records(db, {}), store, contract, callerOf: () => caller })
const served = serveStdio(tools)
process.stdin.once('end', async () => {
  await served.close()
  // What has begun is finished and recorded, though nobody is left to hear of it.
  await store.close()
  await client.close()
})
