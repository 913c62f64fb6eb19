import { jobsFromEnvironment } from '../../src/contracts/index.ts'
import { findService } from '../../test/services/index.ts'
import { type Example, needed, type StartOptions } from '../kit.ts'
import { type Centre, startCentres } from './centres.ts'

export { tour } from './tour.ts'

export interface JobsExample extends Example {
  readonly centres: readonly [Centre, Centre]
  readonly natsUrl: string
}

export async function start({ port, env }: StartOptions): Promise<JobsExample> {
  const { settings } = jobsFromEnvironment(env)
  const nats = needed(await findService('nats'))
  try {
    const { centres, stop } = await startCentres({ natsUrl: nats.url, env, port })
    const [here, there] = centres
    return {
      title: `Job submission in two data centres: a gate and a manager on SQLite in each, and ${nats.title} between them`,
      url: here.gate.url,
      settings,
      centres,
      natsUrl: nats.url,
      tries: [
        ['Submit a job', curl(here.gate.url, 'abc')],
        ['The retry, under another job id: the same job', curl(here.gate.url, 'def')],
        ['The same in the other data centre', curl(there.gate.url, 'ghi')],
        [
          'What the managers know',
          `curl ${here.manager.url}/ledger ${there.manager.url}/jobs ${there.manager.url}/stats`,
        ],
      ],
      async stop() {
        await stop()
        await nats.stop()
      },
    }
  } catch (error) {
    await nats.stop()
    throw error
  }
}

function curl(url: string, jobId: string): string {
  return `curl -i ${url}/jobs -H 'Idempotency-Key: laptop:1:00112233445566aa' -d '{"job_id":"${jobId}","task":"render"}'`
}
