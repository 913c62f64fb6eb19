import { describe, expect, it } from 'vitest'
import { recordIn, scene } from '../../test/gate/scene.ts'
import {
  answer,
  breakBeforeHead,
  breakInBody,
  breakInHead,
  garbage,
  hang,
  raw,
  TestUpstream,
} from '../../test/gate/upstream.ts'
import { values } from '../../test/gate/wire.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from '../contracts/ietf.ts'

describe('an upstream that cannot be reached', () => {
  it('X8: nothing was sent, so the record is released, and the retry runs', async () => {
    const { open, upstream, store, events } = await scene()
    const { port } = upstream
    await upstream.stop()
    const refused = await open().post('k').message()
    expect(refused.status).toBe(503)
    expect(values(refused, 'retry-after')).toEqual(['1'])
    expect(JSON.parse(refused.body)).toMatchObject({
      code: 'upstream-refused',
      detail: expect.stringContaining('nothing was done'),
    })
    expect(await store.list()).toEqual([])
    expect(events.map(({ type }) => type)).toContain('upstream-refused')
    const again = await new TestUpstream().listen(port)
    try {
      expect((await open().post('k').message()).status).toBe(201)
    } finally {
      await again.stop()
    }
  })

  it('the same for what passes through', async () => {
    const { open, upstream } = await scene()
    await upstream.stop()
    for (const method of ['GET', 'PUT']) {
      const got = await open().send(`${method} / HTTP/1.1`, 'Host: a', 'Content-Length: 0', '', '').message()
      expect([got.status, JSON.parse(got.body).code]).toEqual([503, 'upstream-refused'])
    }
  })
})

describe('an upstream that breaks after a byte was sent', () => {
  it.each([
    ['before its head', breakBeforeHead, 502],
    ['in its head', breakInHead, 502],
    ['in its body', breakInBody, 502],
    ['with something that is not HTTP', garbage, 502],
    ['with two lengths', raw('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc'), 502],
    [
      'with a switch of protocol that nobody asked for',
      raw('HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n'),
      502,
    ],
    ['by saying nothing', hang, 504],
    ['by stopping in its body', raw('HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nhalf'), 504],
  ])('X2: %s: the outcome is unknown, and it is not sent again', async (_name, behaviour, status) => {
    const { open, upstream, store } = await scene({ limits: { upstreamMsMax: 300 } })
    upstream.behave = behaviour
    const first = await open().post('k').message()
    expect(first.status).toBe(status)
    expect(JSON.parse(first.body).detail).toContain('may or may not have taken effect')
    await recordIn(store, 'unknown')
    upstream.behave = answer('201 Created')
    const retry = await open().post('k').message()
    expect([retry.status, JSON.parse(retry.body).code]).toEqual([409, 'outcome-unknown'])
    expect(upstream.seen).toHaveLength(1)
  })

  it('a status of the upstream itself still means what the contract says', async () => {
    const { open, upstream, store } = await scene()
    upstream.behave = answer('503 Service Unavailable', '{}')
    expect((await open().post('k').message()).status).toBe(503)
    expect(await store.list()).toEqual([])
    upstream.behave = answer('402 Payment Required', '{"no":1}')
    expect((await open().post('k').message()).status).toBe(402)
    upstream.behave = answer('201 Created')
    const replay = await open().post('k').message()
    expect([replay.status, values(replay, 'idempotent-replayed')]).toEqual([402, ['true']])
  })

  it('X2: what the gate knows about the effect weighs more than what the contract says of a status', async () => {
    const contract = defineContract(ietf, { answers: { keep: ['2xx', '3xx', '4xx', '5xx'], release: [], unknown: [] } })
    const { open, upstream, store } = await scene({ contract })
    upstream.behave = breakInHead
    expect((await open().post('sent').message()).status).toBe(502)
    await recordIn(store, 'unknown')
    await upstream.stop()
    expect((await open().post('unsent').message()).status).toBe(503)
    expect((await store.list()).map(({ state, labels }) => [labels.key, state])).toEqual([['sent', 'unknown']])
  })

  it('an answer that is already flowing is cut, never ended as if it were whole', async () => {
    const { open, upstream, store } = await scene()
    const piece = 'x'.repeat(200_000)
    upstream.behave = raw(`HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n${piece}`, 'end')
    const wire = open().post('k')
    await wire.closed
    expect(wire.received.length).toBeLessThan(400_000)
    await recordIn(store, 'unknown')
  })

  it('what passes through is never sent twice either', async () => {
    const { open, upstream } = await scene()
    upstream.behave = breakBeforeHead
    for (const [at, method] of ['GET', 'PUT', 'DELETE'].entries()) {
      const got = await open().send(`${method} / HTTP/1.1`, 'Host: a', 'Content-Length: 0', '', '').message()
      expect([got.status, upstream.seen.length]).toEqual([502, at + 1])
    }
  })
})

describe('a client that leaves', () => {
  it('while the upstream works: the operation is recorded, and its retry is a replay', async () => {
    const { open, upstream, store } = await scene()
    const finish = upstream.holdBack(answer('201 Created', '{"id":7}'))
    const wire = open().post('k')
    await upstream.arrived(1)
    wire.destroy()
    await wire.closed
    finish()
    await recordIn(store, 'settled')
    const retry = await open().post('k').message()
    expect([retry.body, values(retry, 'idempotent-replayed')]).toEqual(['{"id":7}', ['true']])
    expect(upstream.seen).toHaveLength(1)
  })

  it('in the middle of an answer that flows: all of it is recorded', async () => {
    const { open, upstream, store } = await scene()
    let finish = (): void => {}
    upstream.behave = (_request, socket) => {
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n')
      finish = () => socket.write('6\r\nsecond\r\n0\r\n\r\n')
    }
    const wire = open().post('k')
    await wire.until('first')
    wire.socket.resetAndDestroy()
    await wire.closed
    finish()
    await recordIn(store, 'settled')
    expect((await open().post('k').message()).body).toBe('firstsecond')
  })

  it('before its request is whole: nothing was done, and nothing is recorded', async () => {
    const { open, upstream, store, gate } = await scene()
    const wire = open().send('POST /p HTTP/1.1', 'Host: a', 'Idempotency-Key: k', 'Content-Length: 100', '', 'half')
    while (gate.load.bufferedBytes === 0) await new Promise((resolve) => setImmediate(resolve))
    wire.destroy()
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
    expect(gate.load.bufferedBytes).toBe(0)
    expect([upstream.seen, await store.list()]).toEqual([[], []])
  })
})

describe('limits', () => {
  it('413 for a body that is too large, announced or not, by the limit of its route', async () => {
    const { open, upstream, gate } = await scene({ routes: [{ template: '/small', limits: { requestBytesMax: 5 } }] })
    expect((await open().post('a', '123456', [], '/small').message()).status).toBe(413)
    const chunked = open().send(
      'POST /small HTTP/1.1',
      'Host: a',
      'Idempotency-Key: b',
      'Transfer-Encoding: chunked',
      '',
    )
    expect((await chunked.send('', '6', '123456', '').message()).status).toBe(413)
    expect((await open().post('c', '12345', [], '/small').message()).status).toBe(201)
    expect(upstream.seen).toHaveLength(1)
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
    expect(gate.load.bufferedBytes).toBe(0)
  })

  it('431 for a head that is too large', async () => {
    const { open } = await scene({ limits: { headerBytesMax: 2_048 } })
    const got = await open()
      .send('GET / HTTP/1.1', 'Host: a', `X-Long: ${'x'.repeat(4_000)}`, '', '')
      .message()
    expect(got.status).toBe(431)
  })

  it('408 for a head, and for a body, that does not come', async () => {
    const { open, store, gate } = await scene({ limits: { headerMsMax: 200, bodyMsMax: 200 } })
    expect((await open().send('GET / HTTP/1.1', 'Host:').message()).status).toBe(408)
    const body = open().send('POST / HTTP/1.1', 'Host: a', 'Idempotency-Key: k', 'Content-Length: 9', '', 'slow')
    const got = await body.message()
    expect([got.status, JSON.parse(got.body).code]).toEqual([408, 'request-timeout'])
    await body.closed
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
    expect([gate.load.bufferedBytes, await store.list()]).toEqual([0, []])
  })

  it('a client that reads too slowly is cut off, and its operation stands', async () => {
    const { open, upstream, store, heard, gate } = await scene({ limits: { slowMsMax: 200 } })
    upstream.behave = answer('200 OK', 'x'.repeat(7 * 1024 * 1024))
    const wire = open()
    wire.socket.pause()
    wire.post('k')
    expect(await heard('slow-client')).toMatchObject({ waitingFor: 'reader' })
    await recordIn(store, 'settled')
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
    expect(gate.load.bufferedBytes).toBe(0)
  })

  it('a client that uploads too slowly is cut off', async () => {
    const { open, heard, gate } = await scene({ limits: { slowMsMax: 200 } })
    const wire = open().send('PUT / HTTP/1.1', 'Host: a', 'Content-Length: 9999', '', 'a little')
    expect(await heard('slow-client')).toMatchObject({ waitingFor: 'request' })
    await wire.closed
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
  })

  it('sheds what has no place, before anything is done for it', async () => {
    const { open, upstream, gate, store } = await scene({ limits: { inFlightMax: 2, stopMsMax: 100 } })
    upstream.behave = hang
    const held = [open().post('a'), open().post('b')]
    await upstream.arrived(2)
    const shed = await open().post('c').message()
    expect([shed.status, values(shed, 'retry-after'), JSON.parse(shed.body).code]).toEqual([503, ['1'], 'overloaded'])
    expect([gate.load.inFlight, gate.load.shed, (await store.list()).length]).toEqual([2, 1, 2])
    expect(held).toHaveLength(2)
  })

  it('sheds bodies for which there is no memory, and keeps no answer for which there is none', async () => {
    const { open, upstream, gate, store } = await scene({ limits: { bufferedBytesMax: 10_000 } })
    const shed = await open().post('a', 'x'.repeat(10_001)).message()
    expect([shed.status, JSON.parse(shed.body).code]).toEqual([503, 'overloaded'])
    const half = open().send('POST / HTTP/1.1', 'Host: a', 'Idempotency-Key: b', 'Transfer-Encoding: chunked', '', '')
    expect((await half.send('2711', 'x'.repeat(10_001), '').message()).status).toBe(503)
    upstream.behave = answer('201 Created', 'y'.repeat(20_000))
    const whole = await open().post('c').message()
    expect([whole.status, whole.body.length]).toEqual([201, 20_000])
    await recordIn(store, 'settled')
    const retry = await open().post('c').message()
    expect([retry.status, JSON.parse(retry.body).code]).toEqual([409, 'answer-not-kept'])
    expect(upstream.seen).toHaveLength(1)
    while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
    expect(gate.load.bufferedBytes).toBe(0)
  })

  it('drops connections beyond their number', async () => {
    const { open, heard } = await scene({ limits: { connectionsMax: 1 } })
    const first = open()
    first.post('a')
    await first.message()
    const second = open()
    await second.closed
    expect(await heard('shed')).toMatchObject({ reason: 'connections' })
  })
})

describe('stopping', () => {
  it('finishes what runs, refuses what comes, and ends the connections', async () => {
    const { open, upstream, gate, store } = await scene()
    const finish = upstream.holdBack(answer('201 Created', '{"id":7}'))
    const running = open().post('k')
    await upstream.arrived(1)
    const idle = open()
    const stopped = gate.stop()
    await idle.closed
    finish()
    const got = await running.message()
    expect([got.status, got.body]).toEqual([201, '{"id":7}'])
    await running.closed
    await stopped
    expect((await store.list()).map(({ state }) => state)).toEqual(['settled'])
    expect(gate.load.inFlight).toBe(0)
  })

  it('does not wait for ever: what is cut is unknown, and says so', async () => {
    const { open, upstream, gate, store } = await scene({ limits: { stopMsMax: 100 } })
    upstream.behave = hang
    const wire = open().post('k')
    await upstream.arrived(1)
    await gate.stop()
    expect((await wire.message()).status).toBe(502)
    expect((await store.list()).map(({ state }) => state)).toEqual(['unknown'])
  })
})
