import { createHmac, generateKeyPairSync, sign } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { folder, Going, oncekey } from './run.ts'

const CLAIM = ['--principal', 'jwt-claim:sub', '--store', 'memory:', '--port', '0', '--admin-port', '0']
const NOWHERE = ['--upstream', 'http://127.0.0.1:9', ...CLAIM]
const SECRET = 'a secret that two sides share'

const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 })
const publicPem = rsa.publicKey.export({ type: 'spki', format: 'pem' }).toString()

const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')

function token(sub: string, alg: 'HS256' | 'RS256' | 'none', secret = SECRET): string {
  const text = `${part({ alg })}.${part({ sub })}`
  if (alg === 'none') return `${text}.`
  const signature =
    alg === 'HS256'
      ? createHmac('sha256', secret).update(text).digest('base64url')
      : sign('sha256', Buffer.from(text), rsa.privateKey).toString('base64url')
  return `${text}.${signature}`
}

async function gateWith(key: string): Promise<{ going: Going; post: (token: string) => Promise<number> }> {
  const service = createServer((_, response) => response.writeHead(201).end('{}')).listen(0, '127.0.0.1')
  await once(service, 'listening')
  onTestFinished(() => {
    service.closeAllConnections()
    service.close()
  })
  const upstream = `http://127.0.0.1:${(service.address() as AddressInfo).port}`
  const cwd = folder({ key })
  const going = new Going(['gate', '--upstream', upstream, ...CLAIM, '--json', '--jwt-key', join(cwd, 'key')], { cwd })
  const { gate } = await going.event('ready')
  const post = async (bearer: string) => {
    const headers = { Authorization: `Bearer ${bearer}`, 'Idempotency-Key': 'k', Connection: 'close' }
    const response = await fetch(`${gate}/orders`, { method: 'POST', headers, body: '{}' })
    await response.body?.cancel()
    return response.status
  }
  return { going, post }
}

describe('oncekey gate --jwt-key', () => {
  it('a secret: only tokens that were signed with it are believed', async () => {
    const { going, post } = await gateWith(`${SECRET}\n`)
    expect(await post(token('ann', 'HS256'))).toBe(201)
    expect(await post(token('ann', 'HS256', 'another secret'))).toBe(401)
    expect(await post(token('ann', 'none'))).toBe(401)
    expect(await going.stop()).toBe(0)
    expect(going.err.all).toEqual([])
  })

  it('a public key: never taken for a secret', async () => {
    const { going, post } = await gateWith(publicPem)
    expect(await post(token('ann', 'RS256'))).toBe(201)
    expect(await post(token('ann', 'HS256', publicPem))).toBe(401)
    expect(await post(token('ann', 'none'))).toBe(401)
    expect(await going.stop()).toBe(0)
  })

  it('without one it says at start, in one line, that anybody can make up a name', async () => {
    for (const [more, words] of [
      [[], /^jwt-claim:sub is believed without a look at the token’s signature: .*; say --jwt-key FILE, or let only/],
      [['--json'], /^\{"event":"unverified","warning":"jwt-claim:sub is believed.*"next":"say --jwt-key FILE/],
    ] as const) {
      const going = new Going(['gate', ...NOWHERE, ...more])
      await going.out.find(/oncekey gate on|"event":"ready"/)
      expect(await going.stop()).toBe(0)
      expect(going.err.all).toEqual([expect.stringMatching(words)])
    }
  })

  it('workers do not say it again', async () => {
    const store = ['--store', `sqlite:${join(folder(), 'keys.db')}`]
    const going = new Going(['gate', ...NOWHERE, ...store, '--workers', '2', '--json'])
    const { admin } = await going.event('ready')
    expect((await fetch(`${admin}/readyz`)).status).toBe(200)
    expect(await going.stop()).toBe(0)
    expect(going.err.all).toHaveLength(1)
  })

  const ed25519 = generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'pem' }).toString()
  const p384 = generateKeyPairSync('ec', { namedCurve: 'P-384' }).publicKey.export({ type: 'spki', format: 'pem' })
  it.each<[name: string, content: string, more: readonly string[], words: RegExp]>([
    ['empty', '\n', [], /--jwt-key is "key", but the file is empty/],
    ['broken', '-----BEGIN PUBLIC KEY-----\nx', [], /--jwt-key is "key", but the PEM in it is no RSA or P-256 key/],
    ['Ed25519', ed25519, [], /the PEM in it is no RSA or P-256 key; tokens are verified with RS256/],
    ['P-384', p384.toString(), [], /the PEM in it is no RSA or P-256 key/],
    ['of no use', SECRET, ['--principal', 'public'], /--jwt-key verifies tokens, but --principal is public/],
    ['of no use to a header', SECRET, ['--principal', 'header:X-User'], /but --principal is header:X-User/],
  ])('a key that is %s is refused in words', async (_, content, more, words) => {
    const cwd = folder({ key: content })
    const { status, stdout, stderr } = await oncekey(['gate', ...NOWHERE, '--jwt-key', 'key', ...more], { cwd })
    expect(stderr).toMatch(words)
    expect([status, stdout]).toEqual([2, ''])
  })

  it('a key in place of its file is refused, and repeated nowhere', async () => {
    const env = { ONCEKEY_JWT_KEY: SECRET }
    const refused = await oncekey(['gate', ...NOWHERE], { env })
    expect(refused.stderr).toMatch(/--jwt-key names no file that is there; give a file/)
    expect(refused.status).toBe(2)
    const shown = await oncekey(['config'], { env, cwd: folder() })
    expect(shown.stdout).toMatch(/^jwtKey +… +environment ONCEKEY_JWT_KEY$/m)
    expect(refused.stderr + shown.stdout).not.toContain(SECRET)
  })
})

describe('oncekey doctor', () => {
  const look = async (...more: string[]) => {
    const cwd = folder({ key: SECRET })
    const { stdout } = await oncekey(['doctor', '--store', 'memory:', '--json', ...more], { cwd })
    const { findings } = JSON.parse(stdout) as { findings: Array<{ id: string; level: string; next: string }> }
    return findings.filter(({ id }) => id === 'principal')
  }

  it('warns of tokens that nothing verifies', async () => {
    const claim = ['--principal', 'jwt-claim:sub']
    expect(await look(...claim)).toMatchObject([{ level: 'warn', next: expect.stringContaining('--jwt-key FILE') }])
    expect(await look(...claim, '--jwt-key', 'key')).toMatchObject([{ level: 'ok' }])
    // What is missing is told, and not what the key would be for.
    expect(await look('--jwt-key', 'key')).toMatchObject([{ level: 'fail' }])
  })
})
