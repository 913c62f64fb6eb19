import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { createServer } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { findOwn, freePort } from '../services/index.ts'
import { folder, Going, oncekey } from './run.ts'

const FREE = ['--port', '0', '--admin-port', '0']
const MEMORY = ['--store', 'memory:']
const WHOLE = ['--upstream', 'http://127.0.0.1:9', '--principal', 'public', ...MEMORY, ...FREE]

/** One line with the field in it, one that points to the help at most, and code 2. */
async function refused(args: readonly string[], words: RegExp, files: Readonly<Record<string, string>> = {}) {
  const { status, stdout, stderr } = await oncekey(['gate', ...args], { cwd: folder(files) })
  const [line, ...rest] = stderr.trimEnd().split('\n')
  expect(line).toMatch(words)
  expect(line).toMatch(/^oncekey gate: /)
  expect(['', 'See oncekey gate --help.']).toContain(rest.join('\n'))
  expect(stdout).toBe('')
  expect(status).toBe(2)
}

describe('oncekey gate: every flag wrong', () => {
  it.each<[string[], RegExp]>([
    [[], /--upstream is missing: .*http:\/\/host:port/],
    [['--upstream', 'localhost'], /--upstream is "localhost", but must be an address such as http:/],
    [['--upstream', 'ftp://x'], /--upstream is "ftp:\/\/x"/],
    [['--upstream', ''], /--upstream is empty/],
    [['--upstream', 'http://127.0.0.1:9'], /--principal is missing: say whose a key is.*header:NAME.*public/],
    [[...WHOLE, '--principal', 'me'], /--principal is "me"; give public, header:NAME, jwt-claim:NAME or mtls/],
    [[...WHOLE, '--principal', 'header:'], /--principal is "header:"; give/],
    [[...WHOLE, '--principal', 'header:X Y'], /--principal is "header:X Y", but "X Y" is not a header name/],
    [[...WHOLE, '--principal', 'mtls'], /--principal is mtls, so say --tls-cert, --tls-key and --tls-ca/],
    [[...WHOLE, '--tls-key', 'key.pem'], /--tls-cert is missing/],
    [[...WHOLE, '--tls-cert', 'cert.pem'], /--tls-key is missing/],
    [[...WHOLE, '--tls-cert', 'cert.pem', '--tls-key', 'k'], /--tls-cert is "cert.pem", but there is no such file/],
    [[...WHOLE, '--host', 'nowhere.invalid'], /--host is "nowhere.invalid", which is not an address of this machine/],
    [[...WHOLE, '--host', '203.0.113.1'], /--host is "203.0.113.1", which is not an address of this machine/],
    [[...WHOLE, '--port', 'many'], /--port is "many", but must be a whole number from 0 to 65535/],
    [[...WHOLE, '--port', '65536'], /--port is "65536"/],
    [[...WHOLE, '--port=-1'], /--port is "-1"/],
    [[...WHOLE, '--port'], /--port/],
    [[...WHOLE, '--admin-port', '1e3'], /--admin-port is "1e3", but must be a whole number/],
    [[...WHOLE, '--admin-host', '0.0.0.0'], /0\.0\.0\.0.*set --admin-token/],
    [[...WHOLE, '--admin-host', '203.0.113.1', '--admin-token', 'x'.repeat(16)], /--admin-host is "203.0.113.1"/],
    [[...WHOLE, '--admin-token', ''], /--admin-token is empty/],
    [[...WHOLE, '--admin-token', 'short', '--admin-host', '0.0.0.0'], /token has fewer than 16 characters/],
    [[...WHOLE, '--read-only=maybe'], /--read-only/],
    [[...WHOLE, '--reveal=1'], /--reveal/],
    [[...WHOLE, '--shadow=yes'], /--shadow/],
    [[...WHOLE, '--retry=2'], /--retry/],
    [[...WHOLE, '--json=pretty'], /--json/],
    [[...WHOLE, '--store', 'oracle:x'], /--store is "oracle:x"; give memory:, sqlite:PATH, redis:/],
    [[...WHOLE, '--store', 'keys.db'], /--store is "keys.db"; give memory:, sqlite:PATH/],
    [[...WHOLE, '--store', 'redis:localhost'], /--store is "redis:localhost"; write it as redis:\/\/host:port/],
    [[...WHOLE, '--store', 'postgres://u:secret@h:port/x'], /^(?!.*secret).*write it as postgres:\/\/host:port/],
    [[...WHOLE, '--store', 'sqlite:100%.db'], /--store is "sqlite:100%.db"; a percent sign/],
    [[...WHOLE, '--contract', 'loose'], /--contract is "loose"; give ietf, stripe, .*or a \.json file/],
    [[...WHOLE, '--contract', 'loose.json'], /--contract is "loose.json", but there is no such file/],
    [[...WHOLE, '--routes', 'routes.json'], /--routes is "routes.json", but there is no such file/],
    [[...WHOLE, '--workers', '0'], /--workers is "0", but must be a whole number from 1 to 256/],
    [[...WHOLE, '--workers', 'all'], /--workers is "all"/],
    [[...WHOLE, '--workers', '2'], /--store is memory:, which each worker would have for itself/],
    [[...WHOLE, '--config', 'mine.json'], /--config is "mine.json", but there is no such file/],
    [[...WHOLE, 'http://127.0.0.1:9'], /"http:\/\/127.0.0.1:9" is too much; everything has a flag/],
    [[...WHOLE, '--upstraem', 'x'], /--upstraem/],
  ])('%j', (args, words) => refused(args, words))

  it.each<[name: string, content: string, args: string[], RegExp]>([
    ['c.json', '{"x', ['--contract', 'c.json'], /c\.json does not parse as JSON/],
    ['c.json', '[]', ['--contract', 'c.json'], /c\.json must hold an object with fields of a contract/],
    [
      'c.json',
      '{"lease":{"seconds":1}}',
      ['--contract', 'c.json'],
      /"c.json": lease.seconds is not a field .*ms, handlerMsMax/,
    ],
    ['c.json', '{"ttl":{"committedMs":-1}}', ['--contract', 'c.json'], /"c.json": ttl.committedMs is -1, but must be/],
    ['r.json', '[{"template"', ['--routes', 'r.json'], /r\.json does not parse as JSON/],
    ['r.json', '"/orders"', ['--routes', 'r.json'], /routes must be a list of rules/],
    [
      'r.json',
      '[{"template":"/a","metods":["POST"]}]',
      ['--routes', 'r.json'],
      /routes\[0\]\.metods is not a field here; the fields are template/,
    ],
    [
      'r.json',
      '[{"template":"orders"}]',
      ['--routes', 'r.json'],
      /routes\[0\]\.template is "orders", but must be a path/,
    ],
    [
      'r.json',
      '[{"template":"/a","contract":"loose"}]',
      ['--routes', 'r.json'],
      /routes\[0\]\.contract is "loose"; the contracts are ietf/,
    ],
    [
      'r.json',
      '[{"template":"/a/*"},{"template":"/a/b"}]',
      ['--routes', 'r.json'],
      /routes\[1\] \(\/a\/b\) can never be reached, because routes\[0\]/,
    ],
    [
      'k.pem',
      'no key',
      ['--tls-cert', 'k.pem', '--tls-key', 'k.pem'],
      /--tls-cert is "k.pem", but there is no PEM in it/,
    ],
    [
      'oncekey.config.json',
      '{"upstrem":"x"}',
      [],
      /oncekey\.config\.json has "upstrem", which is no setting; there are upstream,/,
    ],
    ['oncekey.config.json', '{"workers":"all"}', [], /workers in oncekey\.config\.json is "all", but must be/],
    ['oncekey.config.json', '[1]', [], /oncekey\.config\.json must hold an object with settings/],
    ['oncekey.config.json', '{', [], /oncekey\.config\.json cannot be read: /],
    [
      'oncekey.config.ts',
      'export default { shadow: "perhaps" }',
      [],
      /shadow in oncekey\.config\.ts is "perhaps", but must be true or false/,
    ],
    ['oncekey.config.ts', 'export const port = 1', [], /oncekey\.config\.ts must hold an object/],
    ['oncekey.config.ts', 'throw new Error("not today")', [], /oncekey\.config\.ts cannot be read: not today/],
  ])('%s with %j', (name, content, args, words) => refused([...WHOLE, ...args], words, { [name]: content }))

  it('a variable', async () => {
    const env = { ONCEKEY_ADMIN_PORT: 'many' }
    const args = ['gate', '--upstream', 'http://127.0.0.1:9', '--principal', 'public']
    const { status, stderr } = await oncekey(args, { env, cwd: folder() })
    expect(stderr).toMatch(/^oncekey gate: ONCEKEY_ADMIN_PORT is "many", but must be a whole number/)
    expect(status).toBe(2)
  })

  it.each([
    [['fly'], /^There is no command "fly"; there are audit, check, .*\. See oncekey --help\.$/m],
    [[], /^Name a command\.\n\noncekey COMMAND/],
    [['toString'], /^There is no command "toString"/],
  ])('no such command: %j', async (args, words) => {
    const { status, stdout, stderr } = await oncekey(args)
    expect(stderr).toMatch(words)
    expect(stdout).toBe('')
    expect(status).toBe(2)
  })
})

describe('oncekey gate: a port that is taken', () => {
  async function taken(): Promise<string> {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    onTestFinished(() => void server.close())
    return String((server.address() as AddressInfo).port)
  }

  it.each([
    ['--port', []],
    ['--admin-port', []],
    ['--port', ['--workers', '2', '--store', 'sqlite:keys.db']],
    ['--admin-port', ['--workers', '2', '--store', 'sqlite:keys.db']],
  ])('%s %j', async (flag, more) => {
    const [port, free] = [await taken(), String(await freePort())]
    await refused(
      [...WHOLE, '--port', free, ...more, flag, port],
      new RegExp(`${flag} ${port} is taken by another process`),
    )
  })
})

describe('oncekey gate: a store that cannot be reached at the start', () => {
  it('says so and ends with 1 when it was told not to wait', async () => {
    for (const store of [
      'redis://:secret@127.0.0.1:1',
      'postgres://u:secret@127.0.0.1:1/x',
      'sqlite:/no/such/folder/keys.db',
    ]) {
      const { status, stdout, stderr } = await oncekey(['gate', ...WHOLE, '--store', store, '--no-retry'])
      expect(stderr).toMatch(/^The store \S+ does not answer: .*--no-retry\)\n$/)
      expect(stderr).not.toContain('secret')
      expect([status, stdout]).toEqual([1, ''])
    }
    const { stderr } = await oncekey(['gate', ...WHOLE, '--store', 'redis://127.0.0.1:1', '--no-retry', '--json'])
    expect(JSON.parse(stderr)).toMatchObject({
      event: 'store-unreachable',
      error: expect.stringContaining('ECONNREFUSED'),
    })
  })

  it('says so, tries again, and is ready as soon as the store is', async ({ skip }) => {
    const server = await findOwn('redis')
    if (typeof server === 'string') return skip(server)
    onTestFinished(() => server.stop())
    await server.kill()
    const going = new Going(['gate', ...WHOLE, '--store', server.url])
    await going.err.find(/^The store redis:\S+ does not answer: .*ECONNREFUSED.*; trying again in 0.5 s$/)
    await going.err.find(/trying again in 1 s$/)
    await server.start()
    await going.out.find(/^oncekey gate on http:/)
    expect(await going.stop()).toBe(0)
  })
})

describe('oncekey config', () => {
  const where = async (args: readonly string[], env: Record<string, string>, files: Record<string, string>) => {
    const { stdout } = await oncekey(['config', ...args, '--json'], { env, cwd: folder(files) })
    const origins = JSON.parse(stdout) as Array<{ name: string; value: string; origin: string }>
    return Object.fromEntries(origins.map(({ name, value, origin }) => [name, `${value} · ${origin}`]))
  }

  it('a flag wins over the environment, that over the file, and that over the default', async () => {
    const files = { 'oncekey.config.json': '{"port":1,"adminPort":1,"workers":4,"adminToken":"hush","readOnly":true}' }
    const env = { ONCEKEY_PORT: '2', ONCEKEY_ADMIN_PORT: '2', ONCEKEY_STORE: 'redis://u:secret@h' }
    expect(await where(['--port', '3'], env, files)).toMatchObject({
      port: '3 · flag --port',
      adminPort: '2 · environment ONCEKEY_ADMIN_PORT',
      workers: '4 · file oncekey.config.json',
      readOnly: 'true · file oncekey.config.json',
      adminToken: '… · file oncekey.config.json',
      host: '127.0.0.1 · default',
      store: 'redis://u:…@h · environment ONCEKEY_STORE',
      upstream: ' · not set',
    })
  })

  it('reads oncekey.config.ts, or the file that --config names; a negated flag wins, too', async () => {
    const files = {
      'oncekey.config.ts': 'const port: number = 7001\nexport default { port, shadow: true }',
      'other.json': '{"port":7002}',
    }
    expect(await where(['--no-shadow'], {}, files)).toMatchObject({
      port: '7001 · file oncekey.config.ts',
      shadow: 'false · flag --shadow',
    })
    expect(await where(['--config', 'other.json'], {}, files)).toMatchObject({ port: '7002 · file other.json' })
  })

  it('a variable that nobody reads is named, and a password in an address is not', async () => {
    const env = { ONCEKEY_UPSTREEM: 'http://a', ONCEKEY_UPSTREAM: 'http://u:secret@h', ONCEKEY_ADMIN_URL: 'http://b' }
    const { status, stdout, stderr } = await oncekey(['config'], { cwd: folder(), env })
    expect(stderr).toMatch(/^ONCEKEY_UPSTREEM is no setting of oncekey, and was not read\..*\n$/)
    expect(stdout).toMatch(/^upstream +http:\/\/u:…@h /m)
    expect(status).toBe(0)
  })

  it('what Kubernetes says of a service called oncekey is no setting', async () => {
    const env = {
      ONCEKEY_PORT: 'tcp://10.0.0.1:8080',
      ONCEKEY_PORT_8080_TCP_ADDR: '10.0.0.1',
      ONCEKEY_SERVICE_HOST: '10.0.0.1',
    }
    const { stdout, stderr } = await oncekey(['config'], { cwd: folder(), env })
    expect(stderr).toBe('')
    expect(stdout).toMatch(/^port +8080 +default$/m)
  })

  it('for people, too', async () => {
    const { status, stdout } = await oncekey(['config', '--port', '3'], { cwd: folder() })
    expect(stdout).toMatch(/^port +3 +flag --port$/m)
    expect(stdout).toMatch(/^store +sqlite:oncekey\.db +default$/m)
    expect(status).toBe(0)
  })
})

describe('oncekey COMMAND --help', () => {
  const names = [
    'audit',
    'check',
    'config',
    'demo',
    'doctor',
    'gate',
    'list',
    'show',
    'release',
    'forget',
    'sweep',
    'stats',
    'tail',
    'migrate',
  ]

  it('lists every command, and each has help with its usage', async () => {
    const { status, stdout } = await oncekey(['--help'])
    expect(status).toBe(0)
    for (const name of names) expect(stdout).toMatch(new RegExp(`^ {2}${name} +\\S`, 'm'))
    for (const name of names) {
      const help = await oncekey([name, '--help'])
      expect(help.stdout).toMatch(new RegExp(`^oncekey ${name}`))
      expect(help.status).toBe(0)
    }
  })

  const isThere = spawnSync('script', ['--version']).status === 0
  it.skipIf(!isThere)('NO_COLOR: colours on a terminal, and none when they are not wanted', () => {
    // `script` gives it a terminal.
    const main = new URL('../../src/cli/main.ts', import.meta.url).pathname
    const look = (env: Record<string, string>) =>
      spawnSync('script', ['-qec', `'${process.execPath}' '${main}' doctor --store memory:`, '/dev/null'], {
        encoding: 'utf8',
        env: { PATH: process.env.PATH, ...env },
      }).stdout
    expect(look({})).toContain('\u001b[31mfail')
    expect(look({ NO_COLOR: '1' })).toContain('fail  principal')
    expect(look({ NO_COLOR: '1' })).not.toContain('\u001b[3')
  })
})
