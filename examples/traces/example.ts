import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { MongoClient } from 'mongodb'
import { traces } from '../../src/contracts/index.ts'
import type { Server, Service } from '../../test/services/index.ts'
import { findMongod } from '../../test/services/mongod.ts'
import { type Example, needed, type StartOptions } from '../kit.ts'
import { createTraces, type TracesService } from './service.ts'
import { closed, listen, ORGANIZATIONS } from './site.ts'

export { tour } from './tour.ts'

export interface TracesExample extends Example {
  readonly service: TracesService
  /** What the service has logged. */
  readonly log: readonly string[]
  /** The server that the tour may kill; none when the environment names one. */
  readonly mongod: Server | undefined
}

export async function start({ port, env }: StartOptions): Promise<TracesExample> {
  const own = env.MONGODB_URL ? undefined : needed(await findMongod())
  const mongodb: Service = own ?? {
    url: env.MONGODB_URL ?? '',
    title: 'the server of MONGODB_URL',
    stop: async () => {},
  }
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-traces-'))
  const client = new MongoClient(mongodb.url, { serverSelectionTimeoutMS: 1_000 })
  const log: string[] = []
  const service = await createTraces({
    client,
    db: client.db('traces_example'),
    spoolFile: join(folder, 'spool.jsonl'),
    organizations: ORGANIZATIONS,
    webhookUrls: new Map([['acme', UNHEARD_URL]]),
    log: (line) => log.push(line),
  })
  // An organization's count is right from the start, also when the last process did not live to count.
  await service.meter.catchUp(service.store)
  // Makes the indexes of the counts, so that the first count need not wait for them.
  await service.meter.count('nobody')
  const { server, url } = await listen(service.app, port)
  return {
    title: `Trace ingestion that is never blocked and never billed twice. Express, ${mongodb.title}`,
    url,
    settings: [{ name: 'answers are kept for', value: `${traces.ttl.committedMs / 3_600_000} h`, source: 'default' }],
    tries: triesOf(url),
    service,
    log,
    mongod: own,
    async stop() {
      await closed(server)
      await service.close()
      await client.close()
      await mongodb.stop()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** Nobody listens there: the tour shows that a failing webhook changes nothing. */
const UNHEARD_URL = 'http://127.0.0.1:9/hooks'

function triesOf(url: string): Example['tries'] {
  const headers = "-H 'X-API-Key: key-acme' -H 'Content-Type: application/json'"
  const body = `-d '{"agentId":"agent-1","decision":"approve"}'`
  return [
    ['A trace without a key; send it twice, and it is one trace.', `curl -i ${url}/api/v1/traces ${headers} ${body}`],
    ['With a key of your own.', `curl -i ${url}/api/v1/traces ${headers} -H 'Idempotency-Key: mine-1' ${body}`],
    ['What acme is billed for.', `curl ${url}/api/v1/usage -H 'X-API-Key: key-acme'`],
    ['What ran without protection, and what waits.', `curl ${url}/api/v1/status -H 'X-API-Key: key-acme'`],
    ['A name is unique; send it twice.', `curl -i ${url}/api/v1/policies ${headers} -d '{"name":"no-weekends"}'`],
  ]
}
