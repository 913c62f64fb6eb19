import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { findService, type Service, Unavailable } from '../../test/services/index.ts'
import { type Example, needed, type StartOptions } from '../kit.ts'

export { tour } from './tour.ts'

/** Two instances, each a process of its own, on one Redis and one PostgreSQL. */
export interface WritesExample extends Example {
  readonly instances: readonly [InstanceProcess, InstanceProcess]
  readonly redis: Service
  readonly postgres: Service
  readonly flagsFile: string
}

export async function start({ port, env }: StartOptions): Promise<WritesExample> {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-writes-'))
  const flagsFile = join(folder, 'flags.json')
  const started: { stop(): Promise<void> }[] = []
  const stop = async (): Promise<void> => {
    for (const part of started.splice(0).reverse()) await part.stop()
    rmSync(folder, { recursive: true, force: true })
  }
  const also = <Part extends { stop(): Promise<void> }>(part: Part): Part => {
    started.push(part)
    return part
  }
  try {
    const redis = also(needed(await findService('redis')))
    const postgres = also(needed(await findService('postgres')))
    const variables = { ...env, REDIS_URL: redis.url, POSTGRES_URL: postgres.url, FLAGS_FILE: flagsFile }
    const first = also(await InstanceProcess.start({ ...variables, PORT: String(port) }))
    const second = also(await InstanceProcess.start({ ...variables, PORT: String(port && port + 1) }))
    return {
      title: `Orders: one policy for every write. Hono, ${redis.title} with ${postgres.title} behind it (best effort)`,
      url: first.url,
      settings: [],
      tries: triesOf(first.url, second.url, flagsFile, postgres.url),
      instances: [first, second],
      redis,
      postgres,
      flagsFile,
      stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}

/** `instance.ts`, to be killed and started again on the same port. */
export class InstanceProcess {
  readonly url: string
  readonly #variables: NodeJS.ProcessEnv
  #child: ChildProcess

  private constructor(url: string, variables: NodeJS.ProcessEnv, child: ChildProcess) {
    this.url = url
    this.#variables = { ...variables, PORT: new URL(url).port }
    this.#child = child
  }

  static async start(variables: NodeJS.ProcessEnv): Promise<InstanceProcess> {
    const { url, child } = await spawnInstance(variables)
    return new InstanceProcess(url, variables, child)
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  /** SIGKILL: nothing is finished, nothing is said. */
  async kill(): Promise<void> {
    await this.#end(() => this.#child.kill('SIGKILL'))
  }

  async restart(): Promise<void> {
    this.#child = (await spawnInstance(this.#variables)).child
  }

  async stop(): Promise<void> {
    await this.#end(() => this.#child.stdin?.end())
  }

  async #end(how: () => void): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    how()
    await ended
  }
}

async function spawnInstance(variables: NodeJS.ProcessEnv): Promise<{ url: string; child: ChildProcess }> {
  const file = join(import.meta.dirname, 'instance.ts')
  const child = spawn(process.execPath, [file], { env: variables, stdio: ['pipe', 'pipe', 'inherit'] })
  const lines = createInterface(child.stdout)
  const line = once(lines, 'line').then(([url]) => String(url))
  const ended = once(child, 'exit').then(([code]) =>
    Promise.reject(new Unavailable(`An instance did not start (${code}).`)),
  )
  return { url: await Promise.race([line, ended]), child }
}

function triesOf(first: string, second: string, flagsFile: string, postgresUrl: string): Example['tries'] {
  const key = randomBytes(4).toString('hex')
  const send = (method: string, url: string, key: string, body: string) =>
    `curl -i -X ${method} ${url} -H 'Authorization: Bearer anna' -H 'Idempotency-Key: ${key}' --json '${body}'`
  return [
    ['Place an order; send it again, and it is the same one', send('POST', `${first}/orders`, key, ORDER)],
    ['The other instance knows it, too', send('POST', `${second}/orders`, key, ORDER)],
    ['The same key for another order: 409', send('POST', `${first}/orders`, key, OTHER_ORDER)],
    ['What was really done', `curl ${first}/changes -H 'Authorization: Bearer anna'`],
    ['Switch a route off while it runs, and see that each try is an order', `echo '${FLAG_OFF}' > ${flagsFile}`],
    ['What PostgreSQL has kept while Redis was away', `psql ${postgresUrl} -xc '${ENTRIES}'`],
  ]
}

const ORDER = '{"item":"tea","quantity":2}'
const OTHER_ORDER = '{"item":"tea","quantity":20}'
const FLAG_OFF = '{"POST /orders": false}'
const ENTRIES = 'SELECT * FROM system.idempotency_entries'
