import cluster from 'node:cluster'
import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Misuse, wholeNumber } from './command.ts'
import { withoutPassword } from './store-url.ts'

/**
 * The settings of the gate. A flag wins over the environment, that over the config file, and that over the default; each
 * value remembers where it came from, and `oncekey config` shows it.
 */
export interface Settings {
  readonly upstream: string | undefined
  readonly host: string
  readonly port: number
  readonly adminHost: string
  readonly adminPort: number
  readonly adminToken: string | undefined
  readonly readOnly: boolean
  readonly reveal: boolean
  readonly store: string
  readonly contract: string
  readonly principal: string | undefined
  readonly jwtKey: string | undefined
  readonly routes: string | undefined
  readonly tlsCert: string | undefined
  readonly tlsKey: string | undefined
  readonly tlsCa: string | undefined
  readonly workers: number
  readonly shadow: boolean
  readonly retry: boolean
  readonly json: boolean
}

export interface Origin {
  readonly name: keyof Settings
  readonly value: string
  /** `flag --port`, `environment ONCEKEY_PORT`, `file oncekey.config.json`, `default`. */
  readonly origin: string
}

interface Field {
  readonly flag: string
  readonly kind: 'text' | 'flag' | 'port' | 'count'
  readonly fallback: string | undefined
  readonly help: string
}

export const FIELDS: Readonly<Record<keyof Settings, Field>> = {
  upstream: {
    flag: 'upstream',
    kind: 'text',
    fallback: undefined,
    help: 'the service behind the gate, http://host:port',
  },
  host: { flag: 'host', kind: 'text', fallback: '127.0.0.1', help: 'where the gate listens' },
  port: { flag: 'port', kind: 'port', fallback: '8080', help: 'and on which port; 0 takes a free one' },
  adminHost: { flag: 'admin-host', kind: 'text', fallback: '127.0.0.1', help: 'other than loopback only with a token' },
  adminPort: {
    flag: 'admin-port',
    kind: 'port',
    fallback: '8081',
    help: 'admin API and dashboard; 0 takes a free one',
  },
  adminToken: { flag: 'admin-token', kind: 'text', fallback: undefined, help: 'asked for by the admin API' },
  readOnly: { flag: 'read-only', kind: 'flag', fallback: 'false', help: 'the admin API changes nothing' },
  reveal: { flag: 'reveal', kind: 'flag', fallback: 'false', help: 'the admin API may show keys and bodies' },
  store: {
    flag: 'store',
    kind: 'text',
    fallback: 'sqlite:oncekey.db',
    help: 'memory:, sqlite:PATH, redis://, postgres://, mysql://, mongodb://, nats://',
  },
  contract: {
    flag: 'contract',
    kind: 'text',
    fallback: 'ietf',
    help: 'ietf, stripe, traces, resources, writes, payments, or a JSON file',
  },
  principal: {
    flag: 'principal',
    kind: 'text',
    fallback: undefined,
    help: 'public, header:NAME, jwt-claim:NAME or mtls',
  },
  jwtKey: {
    flag: 'jwt-key',
    kind: 'text',
    fallback: undefined,
    help: 'verify tokens, for jwt-claim: a file with a public key in PEM, or with the secret',
  },
  routes: { flag: 'routes', kind: 'text', fallback: undefined, help: 'a JSON file with a rule for each route' },
  tlsCert: { flag: 'tls-cert', kind: 'text', fallback: undefined, help: 'speak TLS: the certificate, a PEM file' },
  tlsKey: { flag: 'tls-key', kind: 'text', fallback: undefined, help: 'and its key, a PEM file' },
  tlsCa: {
    flag: 'tls-ca',
    kind: 'text',
    fallback: undefined,
    help: 'who has signed the clients’, for mtls: a PEM file',
  },
  workers: { flag: 'workers', kind: 'count', fallback: '1', help: 'processes that share the port' },
  shadow: {
    flag: 'shadow',
    kind: 'flag',
    fallback: 'false',
    help: 'forward everything, only report what would have been caught',
  },
  retry: {
    flag: 'retry',
    kind: 'flag',
    fallback: 'true',
    help: '--no-retry: end when the store cannot be reached at start',
  },
  json: { flag: 'json', kind: 'flag', fallback: 'false', help: 'speak JSON lines instead of sentences' },
}

const FILES = ['oncekey.config.ts', 'oncekey.config.js', 'oncekey.config.json']

type Environment = Readonly<Record<string, string | undefined>>
type FlagValues = Readonly<Record<string, string | boolean | string[] | undefined>>

/** For `readFlags`: one flag for each setting, and `--config FILE`. */
export function settingFlags(): Record<string, { readonly type: 'string' | 'boolean' }> {
  const flags: Record<string, { readonly type: 'string' | 'boolean' }> = { config: { type: 'string' } }
  for (const { flag, kind } of Object.values(FIELDS)) flags[flag] = { type: kind === 'flag' ? 'boolean' : 'string' }
  return flags
}

export async function readSettings(
  flags: FlagValues,
  env: Environment,
  directory: string,
): Promise<{ readonly settings: Settings; readonly origins: readonly Origin[] }> {
  const file = await readFile(flags.config, directory)
  const settings: Record<string, unknown> = {}
  const origins: Origin[] = []
  for (const [name, field] of Object.entries(FIELDS) as Array<[keyof Settings, Field]>) {
    const variable = variableOf(name)
    const candidates: ReadonlyArray<readonly [value: unknown, origin: string, label: string]> = [
      [flags[field.flag], `flag --${field.flag}`, `--${field.flag}`],
      [
        isOfKubernetes(variable, env[variable]) ? undefined : env[variable] || undefined,
        `environment ${variable}`,
        variable,
      ],
      [file.values[name], `file ${file.name}`, `${name} in ${file.name}`],
      [field.fallback, 'default', name],
    ]
    const [value, origin, label] = candidates.find(([given]) => given !== undefined) ?? [undefined, 'not set', name]
    settings[name] = value === undefined ? undefined : parse(label, String(value), field.kind)
    origins.push({ name, value: value === undefined ? '' : shown(name, String(value)), origin })
  }
  // Said once, not by every worker.
  if (cluster.isPrimary) for (const name of strayVariables(env)) sayStray(name, settings.json === true)
  return { settings: settings as unknown as Settings, origins }
}

/** `adminPort` is ONCEKEY_ADMIN_PORT. */
export function variableOf(name: string): string {
  return `ONCEKEY_${name.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`
}

/** Read by other commands than those that read the settings. */
const OTHER_VARIABLES = ['ONCEKEY_ADMIN_URL']

/** A cluster that has a service called oncekey tells every container where it is, by variables of these names. */
function isOfKubernetes(name: string, value: string | undefined): boolean {
  return /^ONCEKEY_(?:SERVICE_|PORT_\d)/.test(name) || (name === 'ONCEKEY_PORT' && /^\w+:\/\//.test(value ?? ''))
}

/** A variable that nobody reads is most likely a slip of the pen, and its setting silently stays at its default. */
function strayVariables(env: Environment): readonly string[] {
  const known = [...Object.keys(FIELDS).map(variableOf), ...OTHER_VARIABLES]
  return Object.keys(env).filter(
    (name) => name.startsWith('ONCEKEY_') && !known.includes(name) && !isOfKubernetes(name, env[name]),
  )
}

function sayStray(name: string, asJson: boolean): void {
  const message = `${name} is no setting of oncekey, and was not read. oncekey config --help names them all.`
  console.error(asJson ? JSON.stringify({ event: 'warning', message }) : message)
}

function parse(label: string, text: string, kind: Field['kind']): string | number | boolean {
  switch (kind) {
    case 'text':
      if (text.trim() === '') throw new Misuse(`${label} is empty; give it a value, or leave it out.`)
      return text
    case 'port':
      return wholeNumber(label, text, 0, 65_535)
    case 'count':
      return wholeNumber(label, text, 1, 256)
    case 'flag':
      if (['true', '1', 'yes', 'on'].includes(text.toLowerCase())) return true
      if (['false', '0', 'no', 'off'].includes(text.toLowerCase())) return false
      throw new Misuse(`${label} is ${JSON.stringify(text)}, but must be true or false.`)
  }
}

interface ConfigFile {
  readonly name: string
  readonly values: Readonly<Record<string, unknown>>
}

async function readFile(given: FlagValues[string], directory: string): Promise<ConfigFile> {
  const found = FILES.find((name) => existsSync(resolve(directory, name)))
  const name = typeof given === 'string' ? given : found
  if (name === undefined) return { name: '', values: {} }
  const path = resolve(directory, name)
  if (!existsSync(path)) throw new Misuse(`--config is ${JSON.stringify(name)}, but there is no such file.`)
  const values = await load(name, path)
  if (typeof values !== 'object' || values === null || Array.isArray(values)) {
    throw new Misuse(`${name} must hold an object with settings, such as { "upstream": "http://127.0.0.1:3000" }.`)
  }
  for (const field of Object.keys(values)) {
    if (Object.hasOwn(FIELDS, field)) continue
    throw new Misuse(
      `${name} has ${JSON.stringify(field)}, which is no setting; there are ${Object.keys(FIELDS).join(', ')}.`,
    )
  }
  return { name, values: values as ConfigFile['values'] }
}

async function load(name: string, path: string): Promise<unknown> {
  try {
    if (name.endsWith('.json')) return JSON.parse(readFileSync(path, 'utf8'))
    return ((await import(pathToFileURL(path).href)) as { default?: unknown }).default
  } catch (error) {
    throw new Misuse(`${name} cannot be read: ${error instanceof Error ? error.message : String(error)}`)
  }
}

function shown(name: keyof Settings, value: string): string {
  // Somebody may have given the key itself instead of its file.
  if (name === 'adminToken' || (name === 'jwtKey' && !existsSync(value))) return '…'
  return name === 'store' || name === 'upstream' ? withoutPassword(value) : value
}
