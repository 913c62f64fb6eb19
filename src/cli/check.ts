import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { type CheckOptions, type CheckReport, checkApi, toJunit, toText } from '../check/index.ts'
import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'

export const check: Command = {
  name: 'check',
  summary: "check anybody's idempotent API from outside",
  help: `oncekey check URL [options]

Checks anybody's idempotent API from outside: replay, conflict, race, in-flight duplicates, key syntax, headers, retries
after a failure, and that tenants never meet. It sends real writes, so use a test system.

  oncekey check http://localhost:3000/orders --body '{"amount":{{n}}}'
  oncekey check https://api.test.example/v1/payments --yes --header 'Authorization: Bearer …' --body @payment.json \\
    --second-principal 'Authorization: Bearer …' --count-url https://api.test.example/v1/payments --count-path data
  oncekey check http://localhost:3000/orders --body '{"n":{{n}}}' --only replay,race --json
  oncekey check http://localhost:3000/orders --body order.json --junit check.xml

What to send
  --method POST               the method of the write
  --header 'Name: value'      with every request; may be repeated
  --body JSON|FILE|@FILE      a payload that is accepted; {{n}} and {{uuid}} in it are new for each operation
  --other-body JSON|FILE      another one (default: the body with other placeholders, or with one value changed)
  --reject-body JSON|FILE     one that is answered with a 4xx (default: JSON that breaks off)
  --fail-body JSON|FILE       one that makes the service fail with a 5xx
  --slow-body JSON|FILE       one that takes it longer than 150 ms
  --key-header NAME           default Idempotency-Key
  --key-template TEXT         for keys of a certain form: {{uuid}}, {{hex}} (16 digits) and {{n}} are new in each
  --second-principal 'Name: value'   makes a request somebody else's; may be repeated

How to judge
  --count-url URL             where the number of effects can be read as JSON; nobody else may write meanwhile
  --count-path PATH           where in it: /a/b or a.b; an array counts by its length
  --timeout 10s               for each request: 500ms, 10s, or seconds
  --only NAME[,NAME]          chapters or cases: replay, conflict, race, in-flight, keys, headers, reads, failures, tenants

What to show
  --json                      one JSON document instead of the report for people
  --junit FILE                JUnit XML for a build server, besides
  --yes                       do not ask before writing to a host that is not this machine

Exit code: 0 nothing failed (there may be warnings), 1 a case failed, 2 it could not be run.
Progress goes to stderr. NO_COLOR is respected.`,

  async run(args) {
    const { values, positionals } = readFlags(args, FLAGS)
    const [url, ...more] = positionals
    if (url === undefined) throw new Misuse('Name the URL to check: oncekey check http://localhost:3000/orders.')
    if (more.length > 0) throw new Misuse(`One URL at a time: ${JSON.stringify(more[0])} is too many.`)
    const options = toOptions(url, values)
    if (!values.yes && !isLoopback(url)) await consent(url)
    const report = await checkApi(options)
    if (values.junit !== undefined) writeJunit(values.junit, report)
    const isColored = process.stdout.isTTY === true && !process.env.NO_COLOR
    process.stdout.write(values.json ? `${JSON.stringify(report, null, 2)}\n` : toText(report, { isColored }))
    return report.totals.fail > 0 ? EXIT_FAILED : 0
  },
}

const FLAGS = {
  method: { type: 'string' },
  header: { type: 'string', multiple: true },
  body: { type: 'string' },
  'other-body': { type: 'string' },
  'reject-body': { type: 'string' },
  'fail-body': { type: 'string' },
  'slow-body': { type: 'string' },
  'key-header': { type: 'string' },
  'key-template': { type: 'string' },
  'second-principal': { type: 'string', multiple: true },
  'count-url': { type: 'string' },
  'count-path': { type: 'string' },
  timeout: { type: 'string' },
  only: { type: 'string', multiple: true },
  json: { type: 'boolean' },
  junit: { type: 'string' },
  yes: { type: 'boolean' },
} as const

type Values = ReturnType<typeof readFlags<typeof FLAGS>>['values']

function toOptions(url: string, values: Values): CheckOptions {
  const headers = (values.header ?? []).map((text) => header('--header', text))
  const second = values['second-principal']?.map((text) => header('--second-principal', text))
  const isText = headers.some(([name, value]) => name.toLowerCase() === 'content-type' && !/json/i.test(value))
  const bodies = {
    body: body('--body', values.body, isText),
    otherBody: body('--other-body', values['other-body'], isText),
    rejectBody: body('--reject-body', values['reject-body'], true),
    failBody: body('--fail-body', values['fail-body'], isText),
    slowBody: body('--slow-body', values['slow-body'], isText),
  }
  const given = {
    ...bodies,
    method: values.method?.toUpperCase(),
    keyHeader: values['key-header'],
    keyTemplate: values['key-template'],
    secondPrincipal: second,
    countUrl: values['count-url'],
    countPath: values['count-path'],
    timeoutMs: values.timeout === undefined ? undefined : duration(values.timeout),
    only: values.only?.flatMap((list) => list.split(',')).map((name) => name.trim()),
  }
  const present = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
  return {
    url,
    headers,
    ...present,
    onStart: (plan) => console.error(`${plan.cases} cases, ${plan.requestsMax} requests at most.`),
    onCase: ({ id, verdict }, index, total) => console.error(`[${index}/${total}] ${verdict} ${id}`),
  }
}

function header(flag: string, text: string): readonly [string, string] {
  const [name, ...value] = text.split(':')
  // Without the text itself: it may be a secret that lacks only its name.
  if (name === undefined || value.length === 0) throw new Misuse(`${flag} has no colon in it; write 'Name: value'.`)
  return [name.trim(), value.join(':').trim()]
}

/** JSON as it stands, or the content of a file. With a type of their own, other texts are payloads, too. */
function body(flag: string, given: string | undefined, isText: boolean): string | Uint8Array | undefined {
  if (given === undefined) return undefined
  if (given.startsWith('@')) return file(flag, given.slice(1))
  if (isJsonText(given)) return given
  if (existsSync(given)) return file(flag, given)
  if (isText) return given
  throw new Misuse(
    `${flag} is neither JSON nor a file: ${JSON.stringify(given.slice(0, 60))}. Correct it, write @FILE, or give a --header 'Content-Type: …' for what is not JSON.`,
  )
}

function file(flag: string, path: string): string | Uint8Array {
  try {
    const bytes = readFileSync(path)
    const text = bytes.toString()
    return Buffer.from(text).equals(bytes) ? text : bytes
  } catch (error) {
    throw new Misuse(`${flag}: ${path} cannot be read (${(error as Error).message}).`)
  }
}

function isJsonText(text: string): boolean {
  try {
    JSON.parse(text.replaceAll('{{n}}', '1').replaceAll('{{uuid}}', '1'))
    return true
  } catch {
    return false
  }
}

function duration(text: string): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s)?$/.exec(text)
  if (!found) throw new Misuse(`--timeout is ${JSON.stringify(text)}; give for example 500ms, 10s or 10.`)
  return Math.round(Number(found[1]) * (found[2] === 'ms' ? 1 : 1_000))
}

function writeJunit(path: string, report: CheckReport): void {
  try {
    writeFileSync(path, toJunit(report))
  } catch (error) {
    throw new Misuse(`--junit: ${path} cannot be written (${(error as Error).message}).`)
  }
}

function isLoopback(url: string): boolean {
  const { hostname } = URL.parse(url) ?? { hostname: 'localhost' }
  return /^(?:localhost|.*\.localhost|127(?:\.\d+){3}|\[::1\])$/i.test(hostname)
}

/** Real writes to somebody's service need a yes, from the flag or from a person. */
async function consent(url: string): Promise<void> {
  const { host } = new URL(url)
  const refusal = new Misuse(
    `The check sends real writes to ${host}, which is not this machine. Say --yes if it is a test system.`,
  )
  if (!process.stdin.isTTY) throw refusal
  const asked = createInterface({ input: process.stdin, output: process.stderr })
  try {
    const answer = await asked.question(`The check sends real writes to ${host}. Is it a test system? [y/N] `)
    if (!/^y(?:es)?$/i.test(answer.trim())) throw refusal
  } finally {
    asked.close()
  }
}
