import { spawnSync } from 'node:child_process'
import { existsSync, globSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expectReply } from './probes.ts'
import { asUser, type ServerRecipe, Unavailable } from './server.ts'

/** How each server is started, on a free port of loopback with its own data, durable as in production. */
export const recipes = { redis, postgres, mariadb, ferretdb, nats }
export type ServiceName = keyof typeof recipes

/** `appendfsync always`: an acknowledged write is on disk. `extra` overrides. */
export function redis(extra: readonly string[] = []): ServerRecipe {
  return {
    name: 'Redis',
    program: onPath('redis-server'),
    args: (folder, port) => [
      ...['--port', String(port), '--bind', '127.0.0.1', '--dir', folder, '--save', ''],
      ...['--appendonly', 'yes', '--appendfsync', 'always', '--maxmemory-policy', 'noeviction', ...extra],
    ],
    url: (port) => `redis://127.0.0.1:${port}`,
    version: ['--version'],
    probe: (_url, port) => expectReply(port, 'PING\r\n', /PONG/),
  }
}

export function postgres(extra: readonly string[] = []): ServerRecipe {
  const bin = globSync('/usr/lib/postgresql/*/bin').at(-1)
  const program = bin ? join(bin, 'postgres') : onPath('postgres')
  const user = process.getuid?.() === 0 ? { user: 'postgres' } : {}
  return {
    name: 'PostgreSQL',
    program,
    ...user,
    args: (folder, port) => [
      ...['-D', join(folder, 'data'), '-p', String(port), '-h', '127.0.0.1', '-k', folder],
      ...['-c', 'synchronous_commit=on', '-c', 'fsync=on', '-c', 'max_connections=200', ...extra],
    ],
    url: (port) => `postgres://postgres@127.0.0.1:${port}/postgres`,
    version: ['--version'],
    prepare(folder) {
      const initdb = [
        '-D',
        join(folder, 'data'),
        '-U',
        'postgres',
        '-A',
        'trust',
        '-E',
        'UTF8',
        '--no-locale',
        '--no-sync',
      ]
      const [command, args] = asUser(user.user, program.replace(/postgres$/, 'initdb'), initdb)
      const { status, stderr } = spawnSync(command, args, { encoding: 'utf8', cwd: folder })
      if (status !== 0) throw new Error(`initdb failed: ${stderr}`)
    },
    // A startup packet, so that "still starting up" does not count: it is answered with an E, a ready server with an R.
    probe: (_url, port) => expectReply(port, startupPacket(), /^R/),
  }
}

function startupPacket(): Buffer {
  const body = Buffer.from('\0\x03\0\0user\0postgres\0database\0postgres\0\0', 'latin1')
  const length = Buffer.alloc(4)
  length.writeUInt32BE(body.length + 4)
  return Buffer.concat([length, body])
}

export function mariadb(extra: readonly string[] = []): ServerRecipe {
  const program = onPath('mariadbd')
  const user = process.getuid?.() === 0 ? ['--user=root'] : []
  // A tmpdir of its own: a server that starts removes all temporary tables that it finds there, also another's.
  const own = (folder: string) => [`--datadir=${join(folder, 'data')}`, `--tmpdir=${folder}`]
  return {
    name: 'MariaDB',
    program,
    args: (folder, port) => [
      ...[
        '--no-defaults',
        ...own(folder),
        `--port=${port}`,
        '--bind-address=127.0.0.1',
        `--socket=${join(folder, 'sock')}`,
      ],
      ...[
        `--pid-file=${join(folder, 'pid')}`,
        `--init-file=${join(folder, 'setup.sql')}`,
        '--skip-name-resolve',
        '--innodb-flush-log-at-trx-commit=1',
        ...user,
        ...extra,
      ],
    ],
    url: (port) => `mysql://oncekey:oncekey@127.0.0.1:${port}/oncekey`,
    version: ['--version'],
    prepare(folder) {
      writeFileSync(
        join(folder, 'setup.sql'),
        `CREATE DATABASE IF NOT EXISTS oncekey;
CREATE USER IF NOT EXISTS oncekey@'127.0.0.1' IDENTIFIED BY 'oncekey';
GRANT ALL ON *.* TO oncekey@'127.0.0.1';
`,
      )
      const args = ['--no-defaults', ...own(folder), '--auth-root-authentication-method=normal', ...user]
      const { status, stdout, stderr } = spawnSync(onPath('mariadb-install-db'), args, { encoding: 'utf8' })
      if (status !== 0) throw new Error(`mariadb-install-db failed: ${stdout}${stderr}`)
    },
    probe: (_url, port) => expectReply(port, '', /MariaDB|mysql/),
  }
}

/** Speaks MongoDB's protocol, but cannot hold a claim: the tests show that the store says so. It is not installed for that. */
export function ferretdb(): ServerRecipe {
  const hello = Buffer.from(
    // OP_MSG { hello: 1, $db: "admin" }
    '000000000100000000000000dd07000000000000001f0000001068656c6c6f000100000002246462000600000061646d696e0000',
    'hex',
  )
  hello.writeUInt32LE(hello.length, 0)
  return {
    name: 'FerretDB',
    program: onPath('ferretdb'),
    args: (folder, port) => [
      `--listen-addr=127.0.0.1:${port}`,
      '--handler=sqlite',
      `--sqlite-url=file:${folder}/`,
      '--telemetry=disable',
    ],
    url: (port) => `mongodb://127.0.0.1:${port}/?directConnection=true`,
    version: ['--version'],
    probe: (_url, port) => expectReply(port, hello, /ismaster|isWritablePrimary|maxWireVersion/i),
  }
}

export function nats(extra: readonly string[] = []): ServerRecipe {
  return {
    name: 'NATS',
    program: onPath('nats-server'),
    args: (folder, port) => ['-a', '127.0.0.1', '-p', String(port), '-js', '-sd', folder, ...extra],
    url: (port) => `nats://127.0.0.1:${port}`,
    version: ['--version'],
    probe: (_url, port) => expectReply(port, '', /^INFO/),
  }
}

/** In transaction mode, in front of a PostgreSQL server. */
export function pgbouncer(upstreamPort: number): ServerRecipe {
  const user = process.getuid?.() === 0 ? { user: 'postgres' } : {}
  const config = (folder: string) => join(folder, 'pgbouncer.ini')
  return {
    name: 'PgBouncer',
    program: onPath('pgbouncer'),
    ...user,
    args: (folder) => [config(folder)],
    url: (port) => `postgres://postgres@127.0.0.1:${port}/postgres`,
    version: ['--version'],
    prepare(folder, port) {
      const lines = [
        '[databases]',
        `* = host=127.0.0.1 port=${upstreamPort}`,
        '[pgbouncer]',
        `listen_addr = 127.0.0.1\nlisten_port = ${port}\nunix_socket_dir =`,
        'auth_type = any\npool_mode = transaction\ndefault_pool_size = 20\nmax_client_conn = 500',
        'ignore_startup_parameters = extra_float_digits,options',
      ]
      // auth_type any logs everybody in as the user that the database entry names.
      lines[1] += ' user=postgres'
      writeFileSync(config(folder), `${lines.join('\n')}\n`, { mode: 0o644 })
    },
    probe: (_url, port) => expectReply(port, startupPacket(), /^R/),
  }
}

export function onPath(program: string): string {
  const found = findOnPath(program)
  if (!found)
    throw new Unavailable(`${program} is not on this machine; run node scripts/install-servers.ts, or set a URL`)
  return found
}

function findOnPath(program: string): string | undefined {
  const folders = [...(process.env.PATH ?? '').split(':'), '/usr/sbin', '/usr/local/sbin']
  return folders.map((folder) => join(folder, program)).find(existsSync)
}
