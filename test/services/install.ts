import { spawnSync } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { installMongod } from './mongod.ts'

const PACKAGES: Readonly<Record<string, string>> = {
  'redis-server': '/usr/bin/redis-server',
  postgresql: '/usr/lib/postgresql',
  'mariadb-server': '/usr/sbin/mariadbd',
  'nats-server': '/usr/sbin/nats-server',
  pgbouncer: '/usr/sbin/pgbouncer',
  chromium: '/usr/bin/chromium',
  // Without any, a browser measures no text.
  'fonts-liberation': '/usr/share/fonts/truetype/liberation',
}

/** Installs what is missing where that is possible (Debian as root); what is not is skipped by the tests, with the reason. */
export function installServers(log: (line: string) => void): void {
  const missing = Object.keys(PACKAGES).filter((name) => !existsSync(PACKAGES[name] ?? ''))
  if (missing.length > 0) installPackages(missing, log)
  if (!process.env.MONGODB_URL && spawnSync('mongod', ['--version']).error) installMongod(log)
}

function installPackages(names: readonly string[], log: (line: string) => void): void {
  if (process.getuid?.() !== 0 || spawnSync('apt-get', ['--version']).error) {
    log(`not installed, because this is not Debian as root: ${names.join(', ')}`)
    return
  }
  log(`installing ${names.join(', ')}`)
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  spawnSync('apt-get', ['update'], { env, stdio: 'ignore' })
  const keepStopped = !existsSync(POLICY)
  // The packages would start their servers at once; ours are started by the tests.
  if (keepStopped) writeFileSync(POLICY, '#!/bin/sh\nexit 101\n', { mode: 0o755 })
  const args = ['install', '-y', '--no-install-recommends', ...names]
  const { status, stderr } = spawnSync('apt-get', args, { env, encoding: 'utf8' })
  if (keepStopped) spawnSync('rm', [POLICY])
  if (status !== 0) log(`apt-get failed: ${stderr.slice(-500)}`)
}

const POLICY = '/usr/sbin/policy-rc.d'
