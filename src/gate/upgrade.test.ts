import { describe, expect, it } from 'vitest'
import { recordIn, scene } from '../../test/gate/scene.ts'
import { answer, type Behaviour, headerValues } from '../../test/gate/upstream.ts'
import { values } from '../../test/gate/wire.ts'

const UPGRADE = ['GET /socket HTTP/1.1', 'Host: shop.example', 'Connection: Upgrade', 'Upgrade: echo']

const echo: Behaviour = (_request, socket) => {
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n')
  socket.on('data', (text) => socket.write(`<${text}>`))
}

describe('a change of protocol', () => {
  it.each([
    ['a length', ['Content-Length: 40', '', '']],
    ['a length and a body', ['Content-Length: 5', '', 'abcde']],
    ['another way to write a length', ['Content-Length: 00', '', '']],
    ['a transfer coding', ['Transfer-Encoding: chunked', '', '0', '', '']],
  ])('X8: with %s is refused: no other request can become its body', async (_name, lines) => {
    const { open, upstream, events } = await scene()
    const wire = open().send(...UPGRADE, ...lines)
    const got = await wire.message()
    expect([got.status, JSON.parse(got.body).code]).toEqual([400, 'bad-request'])
    wire.socket.end()
    await wire.closed
    expect(upstream.seen).toEqual([])
    expect(events).toContainEqual(expect.objectContaining({ type: 'refused-request', status: 400 }))
  })

  it('without a body, even where that is said, is passed on', async () => {
    const { open, upstream } = await scene()
    upstream.behave = echo
    const wire = open().send(...UPGRADE, 'Content-Length: 0', '', '')
    expect((await wire.message()).status).toBe(101)
    await wire.send('ping').until('<ping>')
  })

  it('that the upstream does not take leaves no connection behind for the next request', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('426 Upgrade Required', '{}')
    expect(
      (
        await open()
          .send(...UPGRADE, '', '')
          .message()
      ).status,
    ).toBe(426)
    upstream.behave = answer('200 OK', '{}')
    // By the client that streams, as an upgrade is.
    const put = open().send('PUT /things HTTP/1.1', 'Host: shop.example', 'Content-Length: 2', '', 'ok')
    expect((await put.message()).status).toBe(200)
    const [first, second] = [await upstream.arrived(1), await upstream.arrived(2)]
    expect([headerValues(first, 'upgrade'), second.connection]).toEqual([['echo'], first.connection + 1])
  })

  it('has a reason phrase that can be sent, whatever the upstream says', async () => {
    const { open, upstream } = await scene()
    upstream.behave = answer('403 N\u0001o', '{}')
    const got = await open()
      .send(...UPGRADE, '', '')
      .message()
    expect(got.head.split('\r\n')[0]).toBe('HTTP/1.1 403 Forbidden')
  })
})

describe('behind a request that is not answered yet', () => {
  it.each([
    ['a change of protocol', UPGRADE],
    ['a change of protocol with a body', [...UPGRADE, 'Content-Length: 5']],
    ['a tunnel', ['CONNECT other.example:443 HTTP/1.1', 'Host: shop.example']],
  ])('X7: %s ends the connection: its answer would be taken for the other', async (_name, lines) => {
    const { open, upstream, store } = await scene()
    const finish = upstream.holdBack(answer('201 Created', '{"id":7}'))
    const wire = open().post('k')
    await upstream.arrived(1)
    wire.send(...lines, '', '')
    await wire.closed
    expect(wire.received).toBe('')
    finish()
    await recordIn(store, 'settled')
    const retry = await open().post('k').message()
    expect([retry.body, values(retry, 'idempotent-replayed')]).toEqual(['{"id":7}', ['true']])
    expect(upstream.seen).toHaveLength(1)
  })
})

describe('stopping', () => {
  it('is not kept waiting by a connection whose protocol was changed', async () => {
    const { open, upstream, gate } = await scene({ limits: { stopMsMax: 100 } })
    upstream.behave = echo
    const wire = open().send(...UPGRADE, '', '')
    expect((await wire.message()).status).toBe(101)
    await gate.stop()
    await wire.closed
    while (upstream.openConnections + gate.load.connections > 0) await new Promise((resolve) => setImmediate(resolve))
    expect(gate.load.inFlight).toBe(0)
  })
})
