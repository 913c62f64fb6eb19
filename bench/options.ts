import { parseArgs } from 'node:util'

export interface Options {
  readonly rounds: number
  readonly seconds: number
  readonly connections: number
  readonly only: RegExp | undefined
  readonly scenario: RegExp | undefined
  readonly json: string | undefined
  readonly profile: string | undefined
  readonly against: string | undefined
  readonly peers: boolean
  readonly build: boolean
  readonly micro: boolean
  readonly help: boolean
}

export const HELP = `npm run bench -- [options]

Measures oncekey against the bare framework and against published libraries, all in one run and interleaved: every
round gives each contestant one short slice, right before or after one of the bare framework, which it is compared with.

  --rounds N        rounds; the median of them is reported (default 7)
  --seconds S       length of one slice (default 0.8)
  --connections N   keep-alive connections, each with one request under way (default 64)
  --only REGEX      only contestants whose name matches, and the bare frameworks they are compared with
  --scenario REGEX  only these: new-keys, replays, lone
  --no-peers        leave the published libraries out; without this, they are installed into bench/peers on first use
  --no-build        measure dist as it is
  --json FILE       also write the results there
  --against DIR     measure another build of oncekey, too, beside each of its rows: before and after in one run
  --profile DIR     write a CPU profile of each server there, and print where its time went
  --micro           nanoseconds of single operations and of the memory store as it grows; nothing else
  --help            this text

A whole run (without --only, --scenario, --no-peers, --against) also writes bench/results/latest.json and bench/results/latest.svg.
`

const ROUNDS_MAX = 1_000
const SECONDS_MAX = 60
const CONNECTIONS_MAX = 1_000

export function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    allowNegative: true,
    options: {
      rounds: { type: 'string', default: '7' },
      seconds: { type: 'string', default: '0.8' },
      connections: { type: 'string', default: '64' },
      only: { type: 'string' },
      scenario: { type: 'string' },
      json: { type: 'string' },
      profile: { type: 'string' },
      against: { type: 'string' },
      peers: { type: 'boolean', default: true },
      build: { type: 'boolean', default: true },
      micro: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  })
  return {
    rounds: Math.round(within('rounds', values.rounds, 1, ROUNDS_MAX)),
    seconds: within('seconds', values.seconds, 0.05, SECONDS_MAX),
    connections: Math.round(within('connections', values.connections, 1, CONNECTIONS_MAX)),
    only: values.only === undefined ? undefined : new RegExp(values.only),
    scenario: values.scenario === undefined ? undefined : new RegExp(values.scenario),
    json: values.json,
    profile: values.profile,
    against: values.against,
    peers: values.peers,
    build: values.build,
    micro: values.micro,
    help: values.help,
  }
}

function within(name: string, text: string, min: number, max: number): number {
  const value = Number(text)
  if (value >= min && value <= max) return value
  throw new Error(`--${name} is ${text}; it must be a number from ${min} to ${max}`)
}
