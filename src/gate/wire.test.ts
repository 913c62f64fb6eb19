import { describe, expect, it } from 'vitest'
import { later, scene } from '../../test/gate/scene.ts'
import { answer, earlyHints, headerValues, raw } from '../../test/gate/upstream.ts'
import { values } from '../../test/gate/wire.ts'

const GET = ['GET /things HTTP/1.1', 'Host: shop.example']

describe('what the gate passes on', () => {
  it('X8: hop-by-hop headers stay on their own connection, in both directions', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('200 OK', '{}', [
      'Connection: X-Secret',
      'X-Secret: 1',
      'Keep-Alive: timeout=9',
      'X-Kept: 2',
    ])
    const wire = open().send(
      ...GET,
      'Connection: keep-alive, X-Hop',
      'X-Hop: 1',
      'X-End: 2',
      'Keep-Alive: 5',
      'Proxy-Authorization: Basic x',
      'TE: trailers',
      '',
      '',
    )
    const got = await wire.message()
    const seen = await upstream.arrived(1)
    for (const name of ['x-hop', 'keep-alive', 'proxy-authorization', 'te'])
      expect(headerValues(seen, name)).toEqual([])
    expect(headerValues(seen, 'x-end')).toEqual(['2'])
    expect(values(got, 'x-secret')).toEqual([])
    expect(values(got, 'x-kept')).toEqual(['2'])
    expect(values(got, 'keep-alive')).not.toContain('timeout=9')
  })

  it('a client cannot have the key, the principal or the framing taken out by naming them in Connection', async () => {
    const { open, upstream } = await scene({ principal: { kind: 'header', name: 'X-User' } })
    open().post('k', '{"a":1}', ['X-User: ann', 'Connection: Idempotency-Key, X-User, Content-Length, X-Forwarded-For'])
    const seen = await upstream.arrived(1)
    expect(headerValues(seen, 'idempotency-key')).toEqual(['k'])
    expect(headerValues(seen, 'x-user')).toEqual(['ann'])
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['127.0.0.1'])
    expect(seen.body).toBe('{"a":1}')
  })

  it('tells the upstream who the client is, and believes no client about it', async () => {
    const { open, upstream } = await scene()
    open().send(
      ...GET,
      'X-Forwarded-For: 1.2.3.4',
      'Forwarded: for=1.2.3.4',
      'X-Forwarded-Proto: https',
      'Via: 1.0 a',
      '',
      '',
    )
    const seen = await upstream.arrived(1)
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['127.0.0.1'])
    expect(headerValues(seen, 'x-forwarded-proto')).toEqual(['http'])
    expect(headerValues(seen, 'x-forwarded-host')).toEqual(['shop.example'])
    expect(headerValues(seen, 'forwarded')).toEqual(['for=127.0.0.1;host="shop.example";proto=http'])
    expect(headerValues(seen, 'via')).toEqual(['1.0 a, 1.1 oncekey'])
    expect(headerValues(seen, 'host')).toEqual(['shop.example'])
  })

  it('continues the chain of a proxy that it is told to trust, and replaces Host when told to', async () => {
    const { open, upstream } = await scene({ trustForwarded: true, upstreamHost: 'replace' })
    open().send(...GET, 'X-Forwarded-For: 1.2.3.4', 'X-Forwarded-Proto: https', '', '')
    const seen = await upstream.arrived(1)
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['1.2.3.4, 127.0.0.1'])
    expect(headerValues(seen, 'x-forwarded-proto')).toEqual(['https'])
    expect(headerValues(seen, 'host')).toEqual([`127.0.0.1:${upstream.port}`])
  })

  it('keeps repeated headers, their order and every byte of them', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('200 OK', '{}', ['Set-Cookie: a=1', 'Set-Cookie: b=2', 'X-Odd: caf\u00e9'])
    const got = await open()
      .send(...GET, 'X-Many: 1', 'X-Many: 2', 'X-Odd: na\u00efve', '', '')
      .message()
    expect(values(got, 'set-cookie')).toEqual(['a=1', 'b=2'])
    expect(values(got, 'x-odd')).toEqual(['caf\u00e9'])
    const seen = await upstream.arrived(1)
    expect(headerValues(seen, 'x-many')).toEqual(['1', '2'])
    expect(headerValues(seen, 'x-odd')).toEqual(['na\u00efve'])
  })

  it('uses connections again, on both sides', async () => {
    const { open, upstream } = await scene()
    const wire = open()
    for (let count = 1; count <= 3; count++) {
      wire.post(`k${count}`)
      expect((await wire.message()).status).toBe(201)
      expect((await upstream.arrived(count)).connection).toBe(1)
    }
  })

  it('answers HEAD with a head, its length included, and keeps the connection', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('200 OK', '{"long":true}')
    const wire = open().send('HEAD /things HTTP/1.1', 'Host: shop.example', '', '')
    const got = await wire.message(true)
    expect(values(got, 'content-length')).toEqual(['13'])
    expect((await wire.send(...GET, '', '').message()).body).toBe('{"long":true}')
  })

  it('passes early hints, and then the answer', async () => {
    const { open, upstream } = await scene()
    upstream.behave = earlyHints
    for (const wire of [open().send(...GET, '', ''), open().post('hints')]) {
      const hint = await wire.message()
      expect([hint.status, values(hint, 'link')]).toEqual([103, ['</style.css>; rel=preload']])
      expect((await wire.message()).body).toBe('{"hinted":true}')
    }
  })

  it('passes trailers, in both directions', async () => {
    const { open, upstream } = await scene()
    upstream.behave = raw(
      'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n',
    )
    const head = ['Host: shop.example', 'Transfer-Encoding: chunked', 'Trailer: X-Up', '']
    const got = await open()
      .send('PUT /t HTTP/1.1', ...head, '3', 'abc', '0', 'X-Up: 9', '', '')
      .message()
    expect(got.body).toContain('X-Sum: 7')
    expect((await upstream.arrived(1)).body).toContain('X-Up: 9')
    expect(
      (
        await open()
          .send(...GET, '', '')
          .message()
      ).body,
    ).toContain('X-Sum: 7')
  })
})

describe('Expect: 100-continue', () => {
  const HEAD = ['Host: shop.example', 'Content-Length: 2', 'Expect: 100-continue', '', '']

  it("is the gate's to answer for an operation, because the gate reads its body", async () => {
    const { open, upstream } = await scene()
    const wire = open().send('POST /p HTTP/1.1', 'Idempotency-Key: k', ...HEAD)
    expect((await wire.message()).status).toBe(100)
    expect(upstream.seen).toEqual([])
    expect((await wire.send('{}').message()).status).toBe(201)
    expect(headerValues(await upstream.arrived(1), 'expect')).toEqual([])
  })

  it('is not answered with 100 when the body is not wanted', async () => {
    const { open } = await scene()
    const wire = open().send(
      'POST /p HTTP/1.1',
      'Host: a',
      'Idempotency-Key: k',
      'Expect: 100-continue',
      'Content-Length: 999999999',
      '',
      '',
    )
    expect((await wire.message()).status).toBe(413)
  })

  it("is the upstream's to answer for what passes through", async () => {
    const { open, upstream } = await scene()
    let asked = 0
    upstream.onHead = (head, socket) => {
      if (!/^expect: 100-continue/im.test(head)) return
      asked++
      socket.write('HTTP/1.1 100 Continue\r\n\r\n')
    }
    const wire = open().send('PUT /p HTTP/1.1', ...HEAD)
    expect((await wire.message()).status).toBe(100)
    expect(asked).toBe(1)
    expect((await wire.send('ok').message()).status).toBe(201)
    expect((await upstream.arrived(1)).body).toBe('ok')
  })

  it('a final answer instead of 100 is passed on, and the body is not sent', async () => {
    const { open, upstream } = await scene()
    upstream.onHead = (_head, socket) =>
      void socket.end('HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
    const wire = open().send('PUT /p HTTP/1.1', ...HEAD)
    expect((await wire.message()).status).toBe(417)
    expect(upstream.seen).toEqual([])
  })
})

describe('what is not covered streams', () => {
  it('a body reaches the upstream before its end, and an answer the client', async () => {
    const { open, upstream, gate } = await scene()
    const begun = new Promise<void>((resolve) => {
      upstream.onHead = () => resolve()
    })
    upstream.behave = (_request, socket) => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst')
      later(() => socket.write('later'))
    }
    const wire = open().send('PUT /big HTTP/1.1', 'Host: a', 'Content-Length: 10', '', 'hello')
    await begun
    expect(gate.load.bufferedBytes).toBe(0)
    wire.send('world')
    expect(await wire.until('first')).toContain('200 OK')
    expect((await upstream.arrived(1)).body).toBe('helloworld')
  })

  it('keeps the pace of a reader that stops, and does not hold what it has not read', async () => {
    const { open, upstream, gate } = await scene()
    const chunk = 'x'.repeat(64 * 1024)
    const total = 64 * 1024 * 1024
    let sent = 0
    let filled: () => void = () => {}
    const isFull = new Promise<void>((resolve) => {
      filled = resolve
    })
    upstream.behave = (_request, socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${total}\r\n\r\n`)
      const more = (): void => {
        while (sent < total) {
          sent += chunk.length
          if (socket.write(chunk)) continue
          filled()
          return void socket.once('drain', more)
        }
      }
      more()
    }
    const wire = open()
    wire.socket.pause()
    wire.send(...GET, '', '')
    await isFull
    expect(gate.load.bufferedBytes).toBe(0)
    expect(sent).toBeLessThan(total)
    let read = 0
    wire.socket.removeAllListeners('data')
    wire.socket.on('data', (text: string) => {
      read += text.length
    })
    wire.socket.resume()
    while (read < total) await new Promise((resolve) => wire.socket.once('data', resolve))
    expect(sent).toBe(total)
  })

  it('a key without protection passes: other methods, switched-off routes, no key where that is allowed', async () => {
    const { open, upstream, store } = await scene({ routes: [{ template: '/off', enabled: false }] })
    const wire = open()
    wire.post('same', '1', [], '/off')
    await wire.message()
    wire.post('same', '2', [], '/off')
    expect((await wire.message()).status).toBe(201)
    expect(upstream.seen.map(({ body }) => body)).toEqual(['1', '2'])
    expect(await store.list()).toEqual([])
  })

  it('hands a changed protocol through, whatever it is, in both directions', async () => {
    const { open, upstream } = await scene()
    upstream.behave = (_request, socket) => {
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello')
      socket.on('data', (text) => socket.write(`<${text}>`))
    }
    const wire = open().send(...GET, 'Connection: Upgrade', 'Upgrade: echo', '', '')
    const switched = await wire.message()
    expect([switched.status, values(switched, 'upgrade')]).toEqual([101, ['echo']])
    await wire.until('hello')
    await wire.send('ping').until('<ping>')
    expect(headerValues(await upstream.arrived(1), 'connection')).toEqual(['Upgrade'])
  })

  it('an upgrade that the upstream does not take is answered with its answer', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('426 Upgrade Required', '{"no":1}')
    const got = await open()
      .send(...GET, 'Connection: Upgrade', 'Upgrade: echo', '', '')
      .message()
    expect([got.status, got.body]).toEqual([426, '{"no":1}'])
  })

  it('an offer of HTTP/2 with an operation is left aside, and the operation is protected', async () => {
    const { open, upstream } = await scene()
    for (const wire of [open(), open()]) {
      wire.post('k', '{}', ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAAQ'])
      expect((await wire.message()).status).toBe(201)
    }
    expect(upstream.seen).toHaveLength(1)
    expect(headerValues(await upstream.arrived(1), 'http2-settings')).toEqual([])
  })
})

describe('requests that could be read in two ways are refused', () => {
  const BODY = ['5', 'abcde', '0', '', '']
  it.each([
    ['a length beside a transfer coding', ['Content-Length: 3', 'Transfer-Encoding: chunked', '', ...BODY]],
    ['two lengths', ['Content-Length: 3', 'Content-Length: 5', '', 'abcde']],
    ['two equal lengths', ['Content-Length: 5', 'Content-Length: 5', '', 'abcde']],
    ['a length that is none', ['Content-Length: +5', '', 'abcde']],
    ['a folded line', ['X-Fold: a', ' b', 'Content-Length: 0', '', '']],
    ['a space before the colon', ['Content-Length : 5', '', 'abcde']],
    ['a chunk size that is none', ['Transfer-Encoding: chunked', '', 'zz', 'abcde', '0', '', '']],
    ['a chunk that is longer than it says', ['Transfer-Encoding: chunked', '', '3', 'abcde', '0', '', '']],
    ['two hosts', ['Host: other.example', 'Content-Length: 0', '', '']],
    ['a null byte in a value', ['X-Null: a\u0000b', 'Content-Length: 0', '', '']],
  ])('%s', async (_name, lines) => {
    const { open, upstream, store } = await scene()
    const wire = open().send('POST /p HTTP/1.1', 'Host: shop.example', 'Idempotency-Key: k', ...lines)
    const got = await wire.message()
    expect(got.status).toBe(400)
    expect(values(got, 'content-type')).toEqual(['application/problem+json'])
    await wire.closed
    expect(upstream.seen).toEqual([])
    expect(await store.list()).toEqual([])
  })

  it.each([
    ['an absolute target', 'POST http://other.example/p HTTP/1.1', 400],
    ['a tunnel', 'CONNECT other.example:443 HTTP/1.1', 405],
    ['a coding that looks like chunked', 'POST /p HTTP/1.1\r\nTransfer-Encoding: xchunked', 501],
    ['a coding that nobody here knows', 'POST /p HTTP/1.1\r\nTransfer-Encoding: gzip, chunked', 501],
  ])('%s', async (_name, first, status) => {
    const { open, upstream } = await scene()
    const got = await open().send(first, 'Host: shop.example', 'Idempotency-Key: k', '', '').message()
    expect(got.status).toBe(status)
    expect(upstream.seen).toEqual([])
  })
})
