import { describe, expect, it } from 'vitest'
import { recordIn, type Scene, scene } from '../../test/gate/scene.ts'
import { type Behaviour, raw } from '../../test/gate/upstream.ts'
import { values, type Wire } from '../../test/gate/wire.ts'
import { defineContract } from '../contract-check.ts'
import { ietf } from '../contracts/ietf.ts'

/** The three ways through the gate: by undici, by node:http, and as a protected operation. */
const WAYS: ReadonlyArray<readonly [string, (wire: Wire) => Wire]> = [
  ['a GET', (wire) => wire.send('GET /x HTTP/1.1', 'Host: a', '', '')],
  ['a PUT', (wire) => wire.send('PUT /x HTTP/1.1', 'Host: a', 'Content-Length: 2', '', 'ok')],
  ['an operation', (wire) => wire.post('k')],
]

const utf8 = (text: string): string => Buffer.from(text).toString('latin1')

/** Head and body apart, so that the answer begins to flow before it is whole. */
function slowly(head: string, body: string): Behaviour {
  return (_request, socket) => {
    socket.write(head, 'latin1', () => setImmediate(() => setImmediate(() => socket.write(body, 'latin1'))))
  }
}

async function isEmpty({ gate }: Scene): Promise<void> {
  while (gate.load.inFlight > 0) await new Promise((resolve) => setImmediate(resolve))
  expect(gate.load.bufferedBytes).toBe(0)
}

describe.each(WAYS)('an odd answer to %s', (way, ask) => {
  it.each([
    ['a reason phrase beyond Latin 1', utf8('402 \u53c2\u6570'), '402'],
    ['a reason phrase with control characters', '402 N\u0001o', '402'],
    ['a status that nobody has defined', '799 Odd', '799'],
  ])('%s is passed on, and the gate lives', async (_name, line, status) => {
    for (const [length, behaviour] of [
      ['known', raw(`HTTP/1.1 ${line}\r\nContent-Length: 2\r\n\r\nhi`)],
      ['unknown', slowly(`HTTP/1.1 ${line}\r\nTransfer-Encoding: chunked\r\n\r\n`, '2\r\nhi\r\n0\r\n\r\n')],
    ] as const) {
      const all = await scene()
      all.upstream.behave = behaviour
      const got = await ask(all.open()).message()
      expect([length, got.head.slice(9, 12)]).toEqual([length, status])
      expect(got.body).toContain('hi')
      expect(got.head.split('\r\n')[0]).not.toContain('\u0001')
      await isEmpty(all)
    }
  })

  it('X2: a status that is none is a broken answer', async () => {
    const all = await scene()
    all.upstream.behave = raw('HTTP/1.1 099 Odd\r\nContent-Length: 2\r\n\r\nhi')
    const got = await ask(all.open()).message()
    expect([got.status, JSON.parse(got.body).code]).toEqual([502, 'upstream-broken'])
    await all.heard('upstream-broken')
    if (way === 'an operation') await recordIn(all.store, 'unknown')
    await isEmpty(all)
  })

  it('early hints in one line are passed on, those that are none are left out, and the answer comes', async () => {
    const all = await scene()
    const links = '</a.css>; rel=preload; as=style, </b.js>; rel=preload; as=script'
    const rest = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi'
    all.upstream.behave = raw(
      `HTTP/1.1 103 Early Hints\r\nLink: none at all\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: ${links}\r\n\r\n${rest}`,
    )
    const wire = ask(all.open())
    const hint = await wire.message()
    expect([hint.status, values(hint, 'link')]).toEqual([103, [links]])
    const got = await wire.message()
    expect([got.status, got.body]).toEqual([200, 'hi'])
    await isEmpty(all)
  })
})

describe('the budget of bytes', () => {
  const contract = defineContract(ietf, { limits: { answerBytesMax: 100_000 } })

  it('is free of an answer again as soon as it is larger than what is kept', async () => {
    const all = await scene({ contract, limits: { bufferedBytesMax: 150_000 } })
    const { open, upstream, gate, store } = all
    let finish = (): void => {}
    upstream.behave = (_request, socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n${'x'.repeat(399_000)}`)
      finish = () => socket.write('y'.repeat(1_000))
    }
    const wire = open().post('large')
    while (wire.received.length < 399_000) await new Promise((resolve) => wire.socket.once('data', resolve))
    expect(gate.load.bufferedBytes).toBe(Buffer.byteLength('{"amount":1}'))
    finish()
    expect((await wire.message()).body).toHaveLength(400_000)
    await recordIn(store, 'settled')
    const retry = await open().post('large').message()
    expect([retry.status, JSON.parse(retry.body).code]).toEqual([409, 'answer-not-kept'])
    await isEmpty(all)
  })

  it('an answer that is small, but larger than what is kept, still goes out in one piece', async () => {
    const small = defineContract(ietf, { limits: { answerBytesMax: 10 } })
    const all = await scene({ contract: small })
    const chunk = `3e8\r\n${'x'.repeat(1_000)}\r\n`
    all.upstream.behave = raw(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${chunk}0\r\n\r\n`)
    const got = await all.open().post('k').message()
    expect([got.status, values(got, 'content-length'), got.body.length]).toEqual([200, ['1000'], 1_000])
    await isEmpty(all)
  })
})
