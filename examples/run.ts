/** `npm run example NAME`: starts one of the examples with everything that it needs, or walks through it. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { OncekeyError } from '../src/index.ts'
import { Unavailable } from '../test/services/index.ts'
import { type Example, type ExampleModule, Stage } from './kit.ts'

const EXAMPLES = {
  traces: 'trace ingestion that is never billed twice: Express, MongoDB',
  resources: 'REST routes and MCP tools from a schema file: Fastify, MongoDB',
  writes: 'one policy for every write of an API: Hono, Redis with PostgreSQL behind it',
  payments: 'payment decisions with nonce gate and audit log: node:http, SQLite',
  jobs: 'job submission through gates and managers, in two data centres: SQLite, NATS',
} as const

const HELP = `npm run example NAME [-- --tour] [-- --port N]

${Object.entries(EXAMPLES)
  .map(([name, what]) => `  ${name.padEnd(10)} ${what}`)
  .join('\n')}

  --tour     walk through the clauses of the example, printing each request and its answer, and end
  --port N   listen here (default 8080; a tour takes any free port)

It starts the servers that it needs by itself, or uses those of REDIS_URL, POSTGRES_URL, MONGODB_URL and NATS_URL.`

async function main(): Promise<number> {
  const { name, isTour, port, isHelp } = readArguments()
  if (isHelp) {
    console.log(HELP)
    return 0
  }
  const { start, tour } = (await import(join(import.meta.dirname, name, 'example.ts'))) as ExampleModule
  const example = await start({ port, env: process.env })
  console.log(`${example.title}\n${example.url}`)
  for (const { name: setting, value, source } of example.settings) console.log(`  ${setting} = ${value} (${source})`)
  if (!isTour) return serve(example)
  const stage = new Stage(example.url, console.log, process.stdout.isTTY && !process.env.NO_COLOR)
  try {
    await tour(stage, example)
  } finally {
    await example.stop()
  }
  console.log(stage.failures.length === 0 ? '\nEverything held.' : `\nDid not hold: ${stage.failures.join('; ')}`)
  return stage.failures.length === 0 ? 0 : 1
}

async function serve(example: Example): Promise<number> {
  for (const [shows, command] of example.tries) console.log(`\n${shows}\n  ${command}`)
  console.log('\nCtrl-C ends it.')
  await new Promise<void>((resolve) => {
    process.once('SIGINT', () => resolve())
    process.once('SIGTERM', () => resolve())
  })
  await example.stop()
  return 0
}

function readArguments() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { tour: { type: 'boolean' }, port: { type: 'string' }, help: { type: 'boolean', short: 'h' } },
  })
  const { tour: isTour = false, help: isHelp = positionals.length === 0 } = values
  const [name = '', ...more] = positionals
  if (!isHelp && !(name in EXAMPLES && existsSync(join(import.meta.dirname, name)))) {
    throw new Unusable(`There is no example ${JSON.stringify(name)}; there are ${Object.keys(EXAMPLES).join(', ')}.`)
  }
  if (more.length > 0) throw new Unusable(`One example at a time: ${JSON.stringify(more[0])} is too many.`)
  const port = Number(values.port ?? (isTour ? 0 : 8080))
  if (!Number.isInteger(port) || port < 0 || port > 65_535) {
    throw new Unusable(`--port is ${JSON.stringify(values.port)}, but must be a number from 0 to 65535.`)
  }
  return { name, isTour, port, isHelp }
}

class Unusable extends Error {}

try {
  process.exitCode = await main()
} catch (error) {
  const { code } = error as NodeJS.ErrnoException
  const isUsage =
    error instanceof Unusable || String(code).startsWith('ERR_PARSE_ARGS') || error instanceof OncekeyError
  if (!isUsage && !(error instanceof Unavailable) && code !== 'EADDRINUSE') throw error
  const hint = code === 'EADDRINUSE' ? ' Choose another with -- --port N.' : ''
  console.error(`${(error as Error).message}${hint}`)
  process.exitCode = isUsage ? 2 : 1
}
