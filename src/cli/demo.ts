import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative, resolve } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import { type Command, EXIT_FAILED, Misuse, readFlags, wholeNumber } from './command.ts'
import { BAD_DAY, type PaymentsService, startPayments } from './demo/service.ts'
import { type Storm, startStorm } from './demo/storm.ts'
import { startAll, untilSignal } from './gate.ts'
import { readSettings } from './settings.ts'

export const demo: Command = {
  name: 'demo',
  summary: 'a flaky payments service behind a gate, a retry storm, and the dashboard',
  help: `oncekey demo [options]

Starts a payments service that fails at random, the gate before it on SQLite, and clients that retry, race and make
mistakes, and shows where to look. The service counts the charges of each order: none may be charged twice.

  --port N         the gate's port (8080); 0 takes a free one
  --admin-port N   the dashboard's port (8081); 0 takes a free one
  --data FOLDER    where the keys are kept (default: a folder of its own, removed at the end)
  --rate N         operations that the clients begin each second (8)
  --no-storm       no clients: only you
  --seconds N      end after so long; code 1 if an order was charged twice (default: until Ctrl-C)
  --json           JSON lines instead of sentences

  oncekey demo
  oncekey demo --port 0 --admin-port 0 --seconds 10 --rate 50`,

  async run(args) {
    const { values, positionals } = readFlags(args, FLAGS)
    if (positionals.length > 0)
      throw new Misuse(`${JSON.stringify(positionals[0])} is too much; everything has a flag.`)
    const rate = wholeNumber('--rate', values.rate ?? '8', 1, RATE_MAX)
    const seconds = values.seconds === undefined ? undefined : wholeNumber('--seconds', values.seconds, 1, SECONDS_MAX)
    const data = values.data === undefined ? mkdtempSync(join(tmpdir(), 'oncekey-demo-')) : resolve(values.data)
    try {
      const flags = { port: values.port ?? '8080', 'admin-port': values['admin-port'] ?? '8081' }
      const isOver = () =>
        Promise.race([
          untilSignal(),
          ...(seconds === undefined ? [] : [pause(seconds * 1_000, undefined, { ref: false })]),
        ])
      const doubles = await play(flags, data, values.storm === false ? 0 : rate, values.json ?? false, isOver)
      return doubles > 0 ? EXIT_FAILED : 0
    } finally {
      if (values.data === undefined) rmSync(data, { recursive: true, force: true })
    }
  },
}

const FLAGS = {
  port: { type: 'string' },
  'admin-port': { type: 'string' },
  data: { type: 'string' },
  rate: { type: 'string' },
  storm: { type: 'boolean' },
  seconds: { type: 'string' },
  json: { type: 'boolean' },
} as const

const RATE_MAX = 500
const SECONDS_MAX = 86_400
const STATUS_EVERY_MS = 5_000
const STATUS_ON_TERMINAL_EVERY_MS = 500
/** A demo forgets after an hour: it may run for days, and its disk is somebody's laptop. */
const HOUR_MS = 3_600_000
const CONTRACT = {
  name: 'demo',
  ttl: { committedMs: HOUR_MS, rejectedMs: HOUR_MS, unknownMs: HOUR_MS, expiredMs: 0 },
}

type Ports = Readonly<Record<'port' | 'admin-port', string>>

/** Gives the number of doubles. */
async function play(ports: Ports, data: string, rate: number, json: boolean, isOver: () => Promise<void>) {
  mkdirSync(data, { recursive: true })
  const contract = join(data, 'contract.json')
  writeFileSync(contract, `${JSON.stringify(CONTRACT, null, 2)}\n`)
  const store = `sqlite:${join(data, 'keys.db')}`
  const service = await startPayments(BAD_DAY)
  try {
    // Its own settings, and nobody's environment or config file: it is the same demo everywhere.
    const flags = { ...ports, upstream: service.url, store, contract, principal: 'header:X-Account', reveal: true }
    const { settings } = await readSettings(flags, {}, data)
    const running = await startAll(settings)
    if (running === undefined) throw new Misuse(`--data ${data} cannot be used.`)
    try {
      if (json) {
        const { gate, admin } = running
        console.log(JSON.stringify({ event: 'ready', gate, admin, service: service.url, store }))
      } else console.log(welcome(running.gate, running.admin, store, rate))
      const storm = rate > 0 ? startStorm({ gate: running.gate, operationsPerSecond: rate }) : undefined
      const status = new StatusLine(service, storm, json)
      await isOver()
      await storm?.stop()
      status.end()
    } finally {
      await running.stop()
    }
  } finally {
    await service.stop()
  }
  return service.counts.doubles
}

/** One line that renews itself on a terminal, a line now and then elsewhere, and the last word at the end. */
class StatusLine {
  readonly #service: PaymentsService
  readonly #storm: Storm | undefined
  readonly #json: boolean
  readonly #renews: boolean
  readonly #timer: NodeJS.Timeout

  constructor(service: PaymentsService, storm: Storm | undefined, json: boolean) {
    this.#service = service
    this.#storm = storm
    this.#json = json
    this.#renews = process.stdout.isTTY === true && !json
    const everyMs = this.#renews ? STATUS_ON_TERMINAL_EVERY_MS : STATUS_EVERY_MS
    this.#timer = setInterval(() => this.#tell('status'), everyMs)
  }

  end(): void {
    clearInterval(this.#timer)
    this.#tell('end')
    if (this.#json) return
    const { doubles } = this.#service.counts
    const verdict = doubles === 0 ? 'No order was charged twice.' : `${doubles} charges too many: this is a bug.`
    console.log(`${this.#renews ? '\n' : ''}${verdict}`)
  }

  #tell(event: 'status' | 'end'): void {
    const { charges, doubles, failures, lost } = this.#service.counts
    const storm = this.#storm?.counts
    if (this.#json) return console.log(JSON.stringify({ event, ...storm, charges, doubles, failures, lost }))
    const clients =
      storm === undefined
        ? []
        : [
            `${storm.operations} operations`,
            `${storm.requests} requests`,
            `${storm.replayed} replayed`,
            `${storm.conflicts} conflicts refused`,
            `${storm.unknown} unknown`,
          ]
    const line = [...clients, `${charges} charges`, `${doubles} doubles`].join(' · ')
    if (this.#renews) process.stdout.write(`\r\x1b[K${line}`)
    else console.log(line)
  }
}

function welcome(gate: string, admin: string, store: string, rate: number): string {
  const isColored = process.stdout.isTTY === true && !process.env.NO_COLOR
  const bold = (text: string) => (isColored ? `\x1b[1m${text}\x1b[0m` : text)
  const post = (amount: number) =>
    `curl -i ${gate}/charges -H 'X-Account: you' -H 'Idempotency-Key: mine-1' --json '{"amount":${amount}}'`
  const clients =
    rate > 0 ? `, and clients that begin ${rate} charges a second, retry, race themselves and reuse keys` : ''
  return `
${bold('oncekey: a retried request runs once, and every retry gets the same answer.')}

A payments service that fails at random (10 % refuse, 5 % charge and break off, 10 % are slow), the gate before it on
SQLite${clients}.

  ${bold('Dashboard')}  ${admin}
  ${bold('Gate')}       ${gate}

Try it:

  # A charge. A 503 has charged nothing: send it again. After a 502 nobody knows, and the gate will not guess.
  ${post(4200)}
  # The same again: the first answer, with Idempotent-Replayed: true
  ${post(4200)}
  # The same key for another amount: refused with 422
  ${post(4300)}
  # Did that charge run?
  ${ownCommand()} show mine-1 --store ${store} --reveal
  # What the service has really charged
  curl ${gate}/charges

Ctrl-C ends all of it.
`
}

/** How this program was called, for people to call it again. */
function ownCommand(): string {
  const [, script = ''] = process.argv
  const near = relative(process.cwd(), script)
  // With npx: the Node that npm has found for this project, which may be another than the shell's.
  return /(?:^|\/)main\.[jt]s$/.test(script) && !near.includes('node_modules') ? `npx node ${near}` : 'npx oncekey'
}
