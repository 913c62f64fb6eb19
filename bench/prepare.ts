import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const PEERS = fileURLToPath(new URL('peers/', import.meta.url))
const WANTED = fileURLToPath(new URL('peers/package.json', import.meta.url))
const INSTALLED = fileURLToPath(new URL('peers/node_modules/.package-lock.json', import.meta.url))

/** What is measured is what users get: the built package. */
export function buildLibrary(root: string): void {
  const { status, output } = npm(['run', '--silent', 'build'], root)
  if (status !== 0) throw new Error(`npm run build failed, so there is nothing to measure:\n${output}`)
}

/** Installs the published libraries when they are not there. Returns why they are not there, when they are not. */
export function installPeers(): string | undefined {
  if (isInstalled()) return undefined
  process.stderr.write('Installing the published libraries into bench/peers (npm ci, once; --no-peers skips it)…\n')
  const { status, output } = npm(['ci', '--ignore-scripts', '--no-audit', '--no-fund'], PEERS)
  if (status === 0) return undefined
  process.stderr.write(output)
  return 'npm ci in bench/peers failed'
}

/** An install of before a library was added, or made newer, does not count. */
function isInstalled(): boolean {
  if (!existsSync(INSTALLED)) return false
  const { dependencies } = JSON.parse(readFileSync(WANTED, 'utf8')) as { dependencies: Record<string, string> }
  const { packages } = JSON.parse(readFileSync(INSTALLED, 'utf8')) as { packages: Record<string, { version: string }> }
  return Object.entries(dependencies).every(([name, version]) => packages[`node_modules/${name}`]?.version === version)
}

function npm(args: readonly string[], cwd: string): { status: number | null; output: string } {
  const { status, stdout, stderr, error } = spawnSync('npm', args, {
    cwd,
    encoding: 'utf8',
    // On Windows npm is a script, which only a shell can start.
    shell: process.platform === 'win32',
  })
  return { status, output: error === undefined ? `${stdout}${stderr}` : `${error.message}\n` }
}
