import cluster from 'node:cluster'
import { setTimeout as pause } from 'node:timers/promises'
import { startAdmin } from '../admin/server.ts'
import { OncekeyError } from '../error.ts'
import { startGate } from '../gate/gate.ts'
import { PROBE_ID } from '../store-checks.ts'
import { type Command, EXIT_FAILED, Misuse, readFlags } from './command.ts'
import { believesTokens, gateOptions } from './gate-options.ts'
import { FIELDS, readSettings, type Settings, settingFlags, variableOf } from './settings.ts'
import { type OpenedStore, openStore, withoutPassword } from './store-url.ts'
import { version } from './version.ts'

export const gate: Command = {
  name: 'gate',
  summary: 'a reverse proxy that gives any service idempotency, with a dashboard',
  help: `oncekey gate --upstream URL --principal public|header:NAME|jwt-claim:NAME|mtls [options]

${Object.entries(FIELDS)
  .map(([name, { flag, kind, fallback, help }]) => {
    const said = kind === 'flag' ? `--${flag}` : `--${flag} ${kind === 'text' ? 'X' : 'N'}`
    return `  ${said.padEnd(18)} ${help}${kind !== 'flag' && fallback !== undefined ? ` (${fallback})` : ''} · ${variableOf(name)}`
  })
  .join('\n')}
  --config FILE      settings from this file (default oncekey.config.ts, .js or .json)

A flag wins over the environment, that over the config file; oncekey config shows where each value came from.

  oncekey gate --upstream http://127.0.0.1:3000 --principal public
  oncekey gate --upstream http://127.0.0.1:3000 --principal header:X-User --store redis://localhost --contract stripe
  oncekey gate --upstream http://127.0.0.1:3000 --principal jwt-claim:sub --jwt-key public.pem --routes routes.json`,

  async run(args) {
    const { values, positionals } = readFlags(args, settingFlags())
    if (positionals.length > 0)
      throw new Misuse(`${JSON.stringify(positionals[0])} is too much; everything has a flag.`)
    const { settings } = await readSettings(values, process.env, process.cwd())
    // Wrong settings are found before a store is waited for.
    gateOptions(settings, NO_STORE)
    if (believesTokens(settings) && cluster.isPrimary) sayUnverified(settings)
    if (settings.workers > 1) return (await import('./gate-workers.ts')).runWorkers(settings)
    const running = await startAll(settings)
    if (running === undefined) return EXIT_FAILED
    // Heard from before it is said: whoever waits for the line may end it at once.
    const signal = untilSignal()
    sayReady(settings, running.gate, running.admin)
    await signal
    await running.stop()
    return 0
  },
}

const NO_STORE = { name: 'none' } as Parameters<typeof gateOptions>[1]

interface Running {
  readonly gate: string
  readonly admin: string
  stop(): Promise<void>
}

/** Store, gate and admin API; `undefined` when the store cannot be reached and nobody wants to wait. */
export async function startAll(settings: Settings): Promise<Running | undefined> {
  const opened = await reach(settings)
  if (opened === undefined) return undefined
  const ends: Array<() => Promise<void>> = [() => opened.close()]
  const stop = async (): Promise<void> => {
    for (const end of ends.splice(0).reverse()) await end()
  }
  try {
    const started = await startGate(gateOptions(settings, opened.store)).catch((error) => {
      throw cannotListen(error, 'port', settings)
    })
    ends.push(() => started.stop())
    const { upstream, contract, shadow } = settings
    const admin = await startAdmin({
      store: opened.store,
      version: version(),
      host: settings.adminHost,
      port: settings.adminPort,
      token: settings.adminToken,
      readOnly: settings.readOnly,
      reveal: settings.reveal,
      gate: () => ({
        info: {
          url: started.url,
          upstream,
          contract,
          shadow: shadow && started.shadow,
          store: opened.shown,
          load: started.load,
        },
        gauges: Object.entries(started.load).map(([name, value]) => ({
          name: `oncekey_gate_${name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`,
          help: `The gate's load: ${name}.`,
          value,
        })),
      }),
    }).catch((error) => {
      throw cannotListen(error, 'admin-port', settings)
    })
    ends.push(() => admin.stop())
    return { gate: started.url, admin: admin.url, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

const RETRY_MS_MIN = 500
const RETRY_MS_MAX = 10_000
/** The store, once it answers. */
export async function reach({ store: address, retry, json }: Settings): Promise<OpenedStore | undefined> {
  for (let pauseMs = RETRY_MS_MIN; ; pauseMs = Math.min(2 * pauseMs, RETRY_MS_MAX)) {
    let opened: OpenedStore | undefined
    try {
      opened = await openStore(address)
      await opened.store.read(PROBE_ID)
      return opened
    } catch (error) {
      await opened?.close().catch(() => {})
      if (error instanceof Misuse || (error instanceof OncekeyError && error.code !== 'store-unavailable')) throw error
      const what = `The store ${withoutPassword(address)} does not answer: ${(error as Error).message.replace(/\.$/, '')}`
      const next = retry ? `trying again in ${pauseMs / 1_000} s` : 'it was told not to wait (--no-retry)'
      console.error(json ? JSON.stringify({ event: 'store-unreachable', error: what, next }) : `${what}; ${next}`)
      if (!retry) return undefined
      await pause(pauseMs)
    }
  }
}

export function sayReady({ json, upstream, store, shadow }: Settings, gate: string, admin: string): void {
  if (json) return console.log(JSON.stringify({ event: 'ready', gate, admin }))
  const mode = shadow ? ' in shadow mode' : ''
  console.log(`oncekey gate${mode} on ${gate} → ${upstream}, keys in ${withoutPassword(store)}; dashboard on ${admin}`)
}

function sayUnverified({ json, principal }: Settings): void {
  const what = `${principal} is believed without a look at the token’s signature: anybody who reaches the gate can make up a name`
  const next = 'say --jwt-key FILE, or let only an authenticating proxy reach it'
  console.error(json ? JSON.stringify({ event: 'unverified', warning: what, next }) : `${what}; ${next}.`)
}

/** The first signal lets what runs come to its end; the second does not wait for it. */
export async function untilSignal(): Promise<void> {
  await new Promise<void>((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM'] as const) {
      process.once(signal, () => {
        process.once(signal, () => process.exit(EXIT_FAILED))
        resolve()
      })
    }
  })
}

/** Says which flag to change. */
export function cannotListen(error: unknown, flag: 'port' | 'admin-port', settings: Settings): unknown {
  const { code, cause } = error as NodeJS.ErrnoException
  const [host, port] = flag === 'port' ? [settings.host, settings.port] : [settings.adminHost, settings.adminPort]
  const hostFlag = flag.replace('port', 'host')
  switch ((cause as NodeJS.ErrnoException | undefined)?.code ?? code) {
    case 'EADDRINUSE':
      return new Misuse(`--${flag} ${port} is taken by another process; choose another, or 0 for any.`)
    case 'EACCES':
      return new Misuse(`--${flag} ${port} is not allowed for this user; choose one above 1023.`)
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return new Misuse(`--${hostFlag} is ${JSON.stringify(host)}, which is not an address of this machine.`)
    default:
      return error
  }
}
