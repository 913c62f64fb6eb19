import { existsSync } from 'node:fs'
import type { Store } from '../store.ts'
import { Misuse } from './command.ts'

/** A store that the command line has opened by its address, with a connection of its own. */
export interface OpenedStore {
  readonly store: Store
  /** The address without its password. */
  readonly shown: string
  /** Closes the store, and then the connection. */
  close(): Promise<void>
}

/**
 * The only place that takes an address: in code, the caller owns the connection and hands it to the store. With
 * `mustExist` a file that is not there is a mistake, and is not made.
 */
export async function openStore(address: string, mustExist = false): Promise<OpenedStore> {
  const scheme = /^([a-z+]+):/i.exec(address)?.[1]?.toLowerCase()
  const open = scheme === undefined ? undefined : OPENERS[scheme]
  if (open === undefined) {
    throw new Misuse(
      `--store is ${JSON.stringify(withoutPassword(address))}; give memory:, sqlite:PATH, redis://…, postgres://…, mysql://…, mongodb://…/DATABASE or nats://…/BUCKET.`,
    )
  }
  // A server that is named wrongly is not one that will answer later.
  if (open !== memory && open !== sqlite && !isServerAddress(address, open === mongodb)) {
    throw new Misuse(`--store is ${JSON.stringify(withoutPassword(address))}; write it as ${scheme}://host:port.`)
  }
  const { store, end } = await open(address, mustExist)
  return {
    store,
    shown: withoutPassword(address),
    close: async () => {
      await store.close()
      await end()
    },
  }
}

/** Those of MongoDB may list several hosts, which is no URL. */
function isServerAddress(address: string, mayList: boolean): boolean {
  return /^[^:]+:\/\/\S+$/.test(address) && (mayList || URL.canParse(address))
}

interface Connected {
  readonly store: Store
  end(): Promise<unknown>
}

/** Connections per process: group commit needs few. */
const POOL_MAX = 8
const CONNECT_MS_MAX = 5_000
const RECONNECT_STEP_MS = 50
const RECONNECT_MS_MAX = 2_000
const COLLECTION = 'oncekey_records'
const BUCKET = 'oncekey'
const SQLITE_FILE = 'oncekey.db'

async function memory(_address: string, mustExist: boolean): Promise<Connected> {
  if (mustExist)
    throw new Misuse('--store is memory:, which no other process can look into; ask its gate: oncekey tail.')
  const { memoryStore } = await import('../stores/memory.ts')
  return { store: memoryStore(), end: async () => {} }
}

async function sqlite(address: string, mustExist: boolean): Promise<Connected> {
  const { sqliteStore } = await import('../stores/sqlite.ts')
  const path = sqlitePath(address) ?? SQLITE_FILE
  if (mustExist && !existsSync(path))
    throw new Misuse(`There is no file ${path}; say --store with the address of your store.`)
  return { store: sqliteStore({ path }), end: async () => {} }
}

async function redis(url: string): Promise<Connected> {
  const { redisStore } = await import('../stores/redis.ts')
  const { createClient } = await driver('redis', () => import('redis'))
  let isConnected = false
  // Left to itself the driver tries for ever and says nothing: the first failure is the caller's to tell.
  const reconnectStrategy = (retries: number, cause: Error): number | Error =>
    isConnected ? Math.min(RECONNECT_STEP_MS * (retries + 1), RECONNECT_MS_MAX) : cause
  const client = createClient({ url, socket: { connectTimeout: CONNECT_MS_MAX, reconnectStrategy } })
  // Without a listener a lost connection would end the process; the verbs report it.
  client.on('error', () => {})
  await client.connect()
  isConnected = true
  return { store: redisStore(client), end: () => client.close() }
}

async function postgres(url: string): Promise<Connected> {
  const { postgresStore } = await import('../stores/postgres.ts')
  const { default: pg } = await driver('pg', () => import('pg'))
  const pool = new pg.Pool({ connectionString: url, max: POOL_MAX, connectionTimeoutMillis: CONNECT_MS_MAX })
  pool.on('error', () => {})
  return { store: postgresStore(pool), end: () => pool.end() }
}

async function mysql(url: string): Promise<Connected> {
  const { mysqlStore } = await import('../stores/mysql.ts')
  const { createPool } = await driver('mysql2', () => import('mysql2/promise'))
  const uri = url.replace(/^mariadb:/i, 'mysql:')
  const pool = createPool({ uri, connectionLimit: POOL_MAX, connectTimeout: CONNECT_MS_MAX })
  return { store: mysqlStore(pool), end: () => pool.end() }
}

async function mongodb(url: string): Promise<Connected> {
  const { mongodbStore } = await import('../stores/mongodb.ts')
  const { MongoClient } = await driver('mongodb', () => import('mongodb'))
  const client = new MongoClient(url, { serverSelectionTimeoutMS: CONNECT_MS_MAX })
  await client.connect()
  return { store: mongodbStore(client.db().collection(COLLECTION), { client }), end: () => client.close() }
}

async function nats(url: string): Promise<Connected> {
  const { natsStore } = await import('../stores/nats.ts')
  const { connect } = await driver('@nats-io/transport-node', () => import('@nats-io/transport-node'))
  const { jetstream } = await driver('@nats-io/jetstream', () => import('@nats-io/jetstream'))
  const { Kvm } = await driver('@nats-io/kv', () => import('@nats-io/kv'))
  const bucket = new URL(url).pathname.slice(1) || BUCKET
  const connection = await connect({ servers: url, timeout: CONNECT_MS_MAX, maxReconnectAttempts: -1 })
  await new Kvm(connection).create(bucket)
  return { store: natsStore(jetstream(connection), { bucket }), end: () => connection.close() }
}

const OPENERS: Readonly<Record<string, (address: string, mustExist: boolean) => Promise<Connected>>> = {
  memory,
  sqlite,
  redis,
  rediss: redis,
  postgres,
  postgresql: postgres,
  mysql,
  mariadb: mysql,
  mongodb,
  'mongodb+srv': mongodb,
  nats,
  tls: nats,
}

/** The drivers are the user's: only the one that is asked for must be there. */
async function driver<T>(name: string, load: () => Promise<T>): Promise<T> {
  try {
    return await load()
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_MODULE_NOT_FOUND') throw error
    throw new Misuse(`This store needs the package ${name}, which is not installed; run npm install ${name}.`)
  }
}

/** The file of an sqlite: address; `undefined` for any other. */
export function sqlitePath(address: string): string | undefined {
  if (!/^sqlite:/i.test(address)) return undefined
  const path = address.slice('sqlite:'.length).replace(/^\/\/(?=\/|\.)/, '')
  try {
    return decodeURIComponent(path) || SQLITE_FILE
  } catch {
    throw new Misuse(`--store is ${JSON.stringify(address)}; a percent sign in a path is written as %25.`)
  }
}

const SECRET_PARAMETER = /[?&][^=&]*(?:pass|pwd|token|secret|key|properties)[^=&]*=/gi
/** A value goes on over a bare `&`, which somebody forgot to encode. */
const PARAMETER_AFTER = /&[\w.%-]+=|$/g
const USER_NAME = /^[\w.-]*:/

/**
 * The address as it may be shown. A password with @, / or ? in it is read differently by every parser, so all up to the
 * last @ counts as one: rather a host too few than a secret in a log.
 */
export function withoutPassword(address: string): string {
  const scheme = /^[a-z][a-z\d+.-]*:(?:\/\/)?/i.exec(address)?.[0] ?? ''
  if (/^(?:sqlite|memory):/i.test(scheme)) return address
  const hidden: Array<readonly [from: number, to: number]> = []
  const at = address.lastIndexOf('@')
  if (at >= scheme.length) {
    const user = USER_NAME.exec(address.slice(scheme.length, at))?.[0] ?? ''
    hidden.push([scheme.length + user.length, at])
  }
  for (const { index, 0: text } of address.matchAll(SECRET_PARAMETER)) {
    const from = index + text.length
    PARAMETER_AFTER.lastIndex = from
    hidden.push([from, PARAMETER_AFTER.exec(address)?.index ?? address.length])
  }
  return masked(address, hidden)
}

/** With one … for each stretch that is hidden, overlapping or not. */
function masked(text: string, hidden: ReadonlyArray<readonly [from: number, to: number]>): string {
  let [shown, end] = ['', 0]
  for (const [from, to] of hidden.filter(([a, b]) => b > a).sort(([a], [b]) => a - b)) {
    if (from >= end) shown += `${text.slice(end, from)}…`
    end = Math.max(end, to)
  }
  return shown + text.slice(end)
}
