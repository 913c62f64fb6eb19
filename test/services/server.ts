import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, closeSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** A database server that belongs to one test file: it may be killed, frozen and started again on the same data. */
export interface Server {
  readonly url: string
  readonly port: number
  /** What ran, for the report: name and version. */
  readonly title: string
  readonly folder: string
  /** SIGKILL: nothing is flushed. */
  kill(): Promise<void>
  /** Starts it again on the same port and data. */
  start(): Promise<void>
  /** SIGSTOP: it hangs, as a server on an overloaded machine does. */
  freeze(): void
  thaw(): void
  /** Ends it and removes its data. */
  stop(): Promise<void>
}

export interface ServerRecipe {
  readonly name: string
  readonly program: string
  /** The user to run as, for servers that refuse to run as root. */
  readonly user?: string
  args(folder: string, port: number): readonly string[]
  url(port: number): string
  /** The line that names version, from the program itself. */
  readonly version: readonly string[]
  /** Makes the data folder, once. */
  prepare?(folder: string, port: number): void | Promise<void>
  /** Resolves when the server really answers; rejects while it does not. */
  probe(url: string, port: number): Promise<void>
  readonly port?: number
}

/** What a machine does not have, in words: the tests that need it are skipped with them. */
export class Unavailable extends Error {}

export async function launch(recipe: ServerRecipe): Promise<Server> {
  const folder = mkdtempSync(join(tmpdir(), `oncekey-${recipe.name.toLowerCase()}-`))
  const port = recipe.port ?? (await freePort())
  const url = recipe.url(port)
  if (recipe.user) {
    chmodSync(folder, 0o777)
    spawnSync('chown', [recipe.user, folder])
  }
  await recipe.prepare?.(folder, port)
  let child = await boot(recipe, folder, port, url)
  const server: Server = {
    url,
    port,
    folder,
    title: versionOf(recipe),
    async kill() {
      await end(child, 'SIGKILL')
    },
    async start() {
      child = await boot(recipe, folder, port, url)
    },
    freeze: () => void child.kill('SIGSTOP'),
    thaw: () => void child.kill('SIGCONT'),
    async stop() {
      child.kill('SIGCONT')
      await end(child, 'SIGKILL')
      rmSync(folder, { recursive: true, force: true })
    },
  }
  return server
}

/** As another user, when the server will not run as root and we are. */
export function asUser(user: string | undefined, program: string, args: readonly string[]): [string, string[]] {
  if (!user || process.getuid?.() !== 0) return [program, [...args]]
  return ['setpriv', ['--reuid', user, '--regid', user, '--clear-groups', program, ...args]]
}

export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const address = probe.address()
  probe.close()
  await once(probe, 'close')
  if (address === null || typeof address === 'string') throw new Error('no port')
  return address.port
}

const READY_MS_MAX = 60_000
const PROBE_EVERY_MS = 50
const STARTS_MAX = 40
const children = new Set<ChildProcess>()
process.once('exit', () => {
  for (const child of children) child.kill('SIGKILL')
})

async function boot(recipe: ServerRecipe, folder: string, port: number, url: string): Promise<ChildProcess> {
  const logFile = join(folder, 'server.log')
  const deadline = performance.now() + READY_MS_MAX
  let starts = 0
  let child: ChildProcess | undefined
  while (performance.now() < deadline) {
    // A server that was killed may have children that still hold its port or its memory: it is started again.
    if (!child || child.exitCode !== null) {
      if (++starts > STARTS_MAX) break
      child = spawnServer(recipe, folder, port, logFile)
    }
    const ready = await recipe.probe(url, port).then(
      () => true,
      () => false,
    )
    if (ready && child.exitCode === null) return child
    await new Promise((resolve) => setTimeout(resolve, PROBE_EVERY_MS))
  }
  child?.kill('SIGKILL')
  throw new Error(`${recipe.name} did not start:\n${readFileSync(logFile, 'utf8').slice(-2_000)}`)
}

function spawnServer(recipe: ServerRecipe, folder: string, port: number, logFile: string): ChildProcess {
  const log = openSync(logFile, 'a')
  const [program, args] = asUser(recipe.user, recipe.program, recipe.args(folder, port))
  const child = spawn(program, args, {
    stdio: ['ignore', log, log],
    cwd: folder,
    // Ctrl-C is for us: whoever uses the server lets go of it first.
    detached: true,
  })
  closeSync(log)
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill(signal)
  await exited
}

function versionOf({ name, program, version }: ServerRecipe): string {
  const { stdout, stderr } = spawnSync(program, [...version], { encoding: 'utf8' })
  const number = /\d+\.\d+(?:\.\d+)?/.exec(`${stdout}${stderr}`)?.[0]
  return number ? `${name} ${number}` : name
}
