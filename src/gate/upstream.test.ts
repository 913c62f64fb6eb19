import type { IncomingMessage, ServerResponse } from 'node:http'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { describe, expect, it } from 'vitest'
import { certificates } from '../../test/gate/certificates.ts'
import { later, scene } from '../../test/gate/scene.ts'

/** A service that speaks TLS, and what it was asked. */
async function secureService() {
  const { ca, serverKey, serverCert } = certificates()
  const asked: string[] = []
  const answer = (request: IncomingMessage, response: ServerResponse): void => {
    asked.push(`${request.method} ${request.url} of ${request.headers.host}`)
    request.resume()
    request.on('end', () => response.writeHead(201, { 'Content-Type': 'text/plain' }).end(`answer ${asked.length}`))
  }
  const server = createServer({ key: serverKey, cert: serverCert }, answer)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  later(() => {
    server.closeAllConnections()
    server.close()
  })
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  return { ca, host, upstream: `https://${host}/v1`, asked }
}

describe('an upstream that speaks TLS', () => {
  it('runs an operation once, and is asked under its own name', async () => {
    const { ca, host, upstream, asked } = await secureService()
    const { open } = await scene({ upstream, upstreamTls: { ca } })
    for (const replayed of [undefined, 'true']) {
      const got = await open().post('k').message()
      expect([got.status, got.body]).toEqual([201, 'answer 1'])
      expect(got.headers.find(([name]) => name.toLowerCase() === 'idempotent-replayed')?.[1]).toBe(replayed)
    }
    expect(asked).toEqual([`POST /v1/payments of ${host}`])
  })

  it('gets what is passed on, too', async () => {
    const { ca, host, upstream, asked } = await secureService()
    const { open } = await scene({ upstream, upstreamTls: { ca } })
    const got = await open().send('GET /payments HTTP/1.1', 'Host: shop.example', '', '').message()
    expect([got.status, got.body]).toEqual([201, 'answer 1'])
    expect(asked).toEqual([`GET /v1/payments of ${host}`])
  })

  it('is not asked when nobody vouches for its certificate, and the key is free again', async () => {
    const { upstream, asked } = await secureService()
    const { open, store } = await scene({ upstream })
    const got = await open().post('k').message()
    expect([got.status, JSON.parse(got.body).code]).toEqual([503, 'upstream-refused'])
    expect(asked).toEqual([])
    await expect.poll(() => store.list()).toEqual([])
  })
})
