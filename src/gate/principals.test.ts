import { createHmac, createSign, generateKeyPairSync } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { request } from 'node:https'
import { describe, expect, it } from 'vitest'
import { certificates } from '../../test/gate/certificates.ts'
import { later, scene } from '../../test/gate/scene.ts'
import { startGate } from './gate.ts'
import { principalResolver } from './principals.ts'

function asked(
  headers: Record<string, string>,
  rawHeaders: string[] = Object.entries(headers).flat(),
): IncomingMessage {
  return { headers, rawHeaders } as unknown as IncomingMessage
}

const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')
const unsigned = (claims: object, alg = 'none'): string => `${part({ alg })}.${part(claims)}.`
const bearer = (token: string): IncomingMessage => asked({ authorization: `Bearer ${token}` })

describe('whose a key is', () => {
  it('X6: a header that is missing is 401, in words, and nothing runs', async () => {
    const { open, upstream } = await scene({ principal: { kind: 'header', name: 'X-User' } })
    const got = await open().post('k').message()
    expect([got.status, JSON.parse(got.body).code]).toEqual([401, 'no-principal'])
    expect(JSON.parse(got.body).detail).toContain('It carries no X-User header.')
    expect(upstream.seen).toEqual([])
  })

  it('X6: equal keys of two principals never meet', async () => {
    const { open, upstream } = await scene({ principal: { kind: 'header', name: 'X-User' } })
    for (const user of ['ann', 'bob', 'ann'])
      await open()
        .post('k', '{}', [`X-User: ${user}`])
        .message()
    expect(upstream.seen).toHaveLength(2)
  })

  it.each(['Authorization', 'cookie', 'X-Api-Key'])('what stands in %s is a secret, and is not kept', (name) => {
    const resolve = principalResolver({ kind: 'header', name })
    const [anna, berta] = ['Bearer anna', 'Bearer berta'].map((value) =>
      resolve?.(asked({ [name.toLowerCase()]: value })),
    )
    expect(anna).toEqual({ name: expect.stringMatching(/^sha256:[0-9a-f]{64}$/) })
    expect(berta).not.toEqual(anna)
  })

  it('a header that came twice names nobody', () => {
    const resolve = principalResolver({ kind: 'header', name: 'X-User' })
    expect(resolve?.(asked({ 'x-user': 'ann, bob' }, ['X-User', 'ann', 'x-user', 'bob']))).toHaveProperty('missing')
    expect(resolve?.(asked({ 'x-user': 'ann, bob' }))).toEqual({ name: 'ann, bob' })
  })

  it('no principal, no start', async () => {
    await expect(scene({ principal: undefined as never })).rejects.toThrow('principal is missing')
    await expect(scene({ principal: { kind: 'mtls' } })).rejects.toThrow('tls.ca is missing')
  })
})

describe('a claim of a token', () => {
  it('is read without a look at the signature when no key is given', () => {
    const resolve = principalResolver({ kind: 'jwt-claim', name: 'sub' })
    expect(resolve?.(bearer(unsigned({ sub: 'ann' })))).toEqual({ name: 'ann' })
    expect(resolve?.(bearer(unsigned({ sub: 42 })))).toEqual({ name: '42' })
  })

  it.each([
    ['no token', asked({})],
    ['another scheme', asked({ authorization: 'Basic YTpi' })],
    ['no JSON', bearer('a.b.c')],
    ['no such claim', bearer(unsigned({ name: 'ann' }))],
    ['an object for a name', bearer(unsigned({ sub: { a: 1 } }))],
    ['an empty name', bearer(unsigned({ sub: '' }))],
    ['a control character in it', bearer(unsigned({ sub: '\u0000shadow\u0000ann' }))],
    ['a claim of its prototype', bearer(unsigned({ a: 1 }))],
  ])('%s is nobody', (name, incoming) => {
    const claim = name === 'a claim of its prototype' ? 'toString' : 'sub'
    expect(principalResolver({ kind: 'jwt-claim', name: claim })?.(incoming)).toHaveProperty('missing')
  })

  it('with a key, only a valid signature of the right kind counts, and only in its time', () => {
    const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
    const pem = publicKey.export({ type: 'spki', format: 'pem' }) as string
    const rs = (claims: object): string => {
      const text = `${part({ alg: 'RS256' })}.${part(claims)}`
      return `${text}.${createSign('sha256').update(text).sign(privateKey).toString('base64url')}`
    }
    const hs = (claims: object, secret: string): string => {
      const text = `${part({ alg: 'HS256' })}.${part(claims)}`
      return `${text}.${createHmac('sha256', secret).update(text).digest('base64url')}`
    }
    const byKey = principalResolver({ kind: 'jwt-claim', name: 'sub', key: pem })
    const bySecret = principalResolver({ kind: 'jwt-claim', name: 'sub', key: 'sesame' })
    expect(byKey?.(bearer(rs({ sub: 'ann' })))).toEqual({ name: 'ann' })
    expect(bySecret?.(bearer(hs({ sub: 'ann' }, 'sesame')))).toEqual({ name: 'ann' })
    expect(byKey?.(bearer(unsigned({ sub: 'ann' })))).toHaveProperty('missing')
    // The public key is known to all: it must never count as a secret.
    expect(byKey?.(bearer(hs({ sub: 'ann' }, pem)))).toHaveProperty('missing')
    expect(bySecret?.(bearer(hs({ sub: 'ann' }, 'other')))).toHaveProperty('missing')
    expect(byKey?.(bearer(rs({ sub: 'ann' }).replace(part({ sub: 'ann' }), part({ sub: 'bob' }))))).toHaveProperty(
      'missing',
    )
    expect(byKey?.(bearer(rs({ sub: 'ann', exp: 1 })))).toHaveProperty('missing')
    expect(byKey?.(bearer(rs({ sub: 'ann', nbf: 99_999_999_999 })))).toHaveProperty('missing')
  })
})

describe('a client certificate', () => {
  it('X6: its subject is the principal, and without one there is no connection', async () => {
    const { upstream, store } = await scene()
    const pki = certificates()
    const tls = { key: pki.serverKey, cert: pki.serverCert, ca: pki.ca }
    const gate = await startGate({ upstream: upstream.url, store, port: 0, principal: { kind: 'mtls' }, tls })
    later(() => gate.stop())
    const post = (options: object): Promise<number> =>
      new Promise((resolve, reject) => {
        const headers = { 'Idempotency-Key': 'k', 'Content-Length': 2 }
        const sent = request(
          `${gate.url}/x`,
          { method: 'POST', ca: pki.ca, headers, agent: false, ...options },
          (got) => {
            got.resume()
            got.on('end', () => resolve(got.statusCode ?? 0))
          },
        )
        sent.on('error', reject)
        sent.end('{}')
      })
    expect(await post({ key: pki.clientKey, cert: pki.clientCert })).toBe(201)
    const [record] = await store.list()
    expect(record?.labels.principal).toBe('CN=ann')
    await expect(post({})).rejects.toThrow()
    expect(upstream.seen).toHaveLength(1)
  })
})
