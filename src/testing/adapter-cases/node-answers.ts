import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { assertRefused, assertReplay } from './expect.ts'
import { REQUEST_SCENES, SCENES, type Scene } from './node-scenes.ts'
import { type Bench, type Case, Gate } from './site.ts'
import { Connection, value, values, type Wire } from './wire.ts'

interface Played {
  readonly notes: readonly string[]
  readonly wire: Wire
}

async function play(
  scene: Scene,
  serve: (listener: (request: IncomingMessage, response: ServerResponse) => void) => Promise<() => Promise<Wire>>,
): Promise<Played> {
  const notes: string[] = []
  const over = new Gate()
  const send = await serve((request, response) => {
    response.on('finish', () => notes.push('finish'))
    response.on('close', () => {
      notes.push('close')
      over.open()
    })
    Promise.resolve(scene(response, (text) => notes.push(text), request)).catch((error) => notes.push(String(error)))
  })
  const wire = await send()
  await over.opened
  return { notes, wire }
}

async function playBare(scene: Scene): Promise<Played> {
  let stop = (): void => {}
  const played = await play(scene, async (listener) => {
    const server = createServer(listener)
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const connection = await Connection.open((server.address() as AddressInfo).port)
    stop = () => {
      connection.close()
      server.closeAllConnections()
      server.close()
    }
    return () => connection.request({ key: 'k', body: '{}' })
  })
  stop()
  return played
}

const sceneCases: Case[] = [
  ...Object.entries(SCENES).map(([name, scene]) => sceneCase(`X4: as on bare node:http, and replayed: ${name}`, scene)),
  ...Object.entries(REQUEST_SCENES).map(([name, scene]) =>
    sceneCase(`the request is read as on bare node:http: ${name}`, scene),
  ),
]

function sceneCase(name: string, scene: Scene): Case {
  return {
    name,
    flavour: 'node',
    async run(bench) {
      const bare = await playBare(scene)
      let again: (() => Promise<Wire>) | undefined
      const played = await play(scene, async (listener) => {
        const site = await bench.serve({ node: listener })
        again = () => site.send({ key: 'k', body: '{}' })
        return again
      })
      assert.deepEqual(played.notes.toSorted(), bare.notes.toSorted())
      const shown = ({ wire }: Played): unknown => [
        wire.status,
        wire.statusText,
        wire.body.toString('latin1'),
        wire.chunked,
      ]
      assert.deepEqual(shown(played), shown(bare))
      for (const [header] of bare.wire.headers) {
        if (header !== 'Date' && header !== 'Keep-Alive')
          assert.deepEqual(values(played.wire, header), values(bare.wire, header), header)
      }
      assert.ok(again)
      const replay = await again()
      assertReplay(played.wire, replay)
      assert.equal(replay.chunked, false, 'a replay is whole when it begins')
    },
  }
}

/** The handler ends the connection in a way that is no answer. */
async function broken(
  bench: Bench,
  answer: (response: ServerResponse, request: IncomingMessage) => void,
): Promise<void> {
  const site = await bench.serve({ node: (request, response) => answer(response, request) })
  const connection = await site.connect()
  connection.send({ key: 'k', body: '{}' })
  await connection.closed()
  await site.store.concluded()
  assertRefused(await site.send({ key: 'k', body: '{}' }), 'outcome-unknown')
  assert.equal(site.effects, 1)
}

const brokenCases: Case[] = [
  {
    name: 'X2: a handler that destroys the socket leaves the outcome unknown',
    flavour: 'node',
    run: (bench) => broken(bench, (_response, request) => void request.socket.destroy()),
  },
  {
    name: 'X2: a handler that destroys the socket with an error leaves the outcome unknown',
    flavour: 'node',
    run: (bench) =>
      broken(bench, (_response, request) => void request.socket.destroy(new Error('planned by the suite'))),
  },
  {
    name: 'X2: a handler that resets the connection leaves the outcome unknown',
    flavour: 'node',
    run: (bench) => broken(bench, (_response, request) => void request.socket.resetAndDestroy()),
  },
  {
    name: 'X2: a handler that destroys its response leaves the outcome unknown',
    flavour: 'node',
    run: (bench) => broken(bench, (response) => void response.destroy(new Error('planned by the suite'))),
  },
  {
    name: 'X2: a handler that destroys its response after the head leaves the outcome unknown',
    flavour: 'node',
    run: (bench) =>
      broken(bench, (response) => {
        response.writeHead(201, { 'Content-Type': 'text/plain' })
        response.destroy()
      }),
  },
  {
    name: 'X2: a handler that writes to the socket by hand leaves the outcome unknown',
    flavour: 'node',
    async run(bench) {
      const site = await bench.serve({
        node: (_request, response) => {
          response.socket?.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi')
          response.socket?.end()
        },
      })
      const connection = await site.connect()
      assert.equal((await connection.request({ key: 'k', body: '{}' })).body.toString(), 'hi')
      connection.close()
      await site.store.concluded()
      assertRefused(await site.send({ key: 'k', body: '{}' }), 'outcome-unknown')
      assert.equal(site.effects, 1)
    },
  },
  {
    name: 'a streamed answer that is destroyed midway leaves the outcome unknown',
    flavour: 'node',
    async run(bench) {
      const site = await bench.serve({
        node: (_request, response) => {
          response.write('a part', () => response.destroy())
        },
      })
      const connection = await site.connect()
      await assert.rejects(connection.request({ key: 'k' }))
      await site.store.concluded()
      assertRefused(await site.send({ key: 'k' }), 'outcome-unknown')
      assert.equal(site.effects, 1)
    },
  },
]

const heldCases: Case[] = [
  {
    name: 'an answer that is held looks sent to the handler, and finishes once, after it was recorded',
    flavour: 'node',
    async run(bench) {
      const gate = new Gate()
      const notes: string[] = []
      const site = await bench.serve({
        node: (_request, response) => {
          response.on('finish', () => notes.push('finish'))
          response.end('held', () => notes.push('called back'))
          notes.push(`sent ${response.headersSent}`, `ended ${response.writableEnded}`)
        },
      })
      site.store.interference = {
        settle: () => {
          notes.push('recording')
          return gate.opened
        },
      }
      const connection = await site.connect()
      connection.send({ key: 'k' })
      assertRefused(await retryUntilInFlight(site), 'in-flight')
      notes.push('recorded')
      gate.open()
      assert.equal((await connection.answer()).body.toString(), 'held')
      assert.deepEqual(notes.toSorted(), ['called back', 'ended true', 'finish', 'recorded', 'recording', 'sent true'])
      assert.ok(notes.indexOf('finish') > notes.indexOf('recorded'), notes.join(', '))
    },
  },
  {
    name: 'an answer whose head was written by hand is marked, too, when it could not be recorded',
    flavour: 'node',
    async run(bench) {
      const site = await bench.serve({
        node: (_request, response) => {
          response.writeHead(201, ['Link', '</1>', 'Link', '</2>', 'Content-Type', 'text/plain'])
          response.end('made')
        },
      })
      site.store.interference = { settle: () => Promise.reject(new Error('planned by the suite')) }
      const wire = await site.send({ key: 'k' })
      assert.equal(wire.status, 201)
      assert.equal(value(wire, 'Idempotent-Recorded'), 'false')
      assert.deepEqual(values(wire, 'Link'), ['</1>', '</2>'])
      assert.equal(wire.body.toString(), 'made')
    },
  },
  {
    name: 'a header line for each value, in their order, in whatever way they were set',
    flavour: 'node',
    async run(bench) {
      const site = await bench.serve({
        node: (_request, response) => {
          response.setHeader('Vary', ['A', 'B'])
          response.writeHead(200, { Link: ['</1>', '</2>'], 'Set-Cookie': ['a=1', 'b=2'] })
          response.end()
        },
      })
      const [first, again] = await site.twice({ key: 'k' })
      assert.deepEqual(values(first, 'Set-Cookie'), ['a=1', 'b=2'])
      assertReplay(first, again)
      assert.deepEqual(values(again, 'Link'), ['</1>', '</2>'])
      assert.deepEqual(values(again, 'Vary'), ['A', 'B'])
      assert.equal(value(again, 'Set-Cookie'), undefined)
    },
  },
]

/** The handler has been called when a retry is told so. */
async function retryUntilInFlight(site: Awaited<ReturnType<Bench['serve']>>): Promise<Wire> {
  await site.requestsSeen(1)
  return site.send({ key: 'k' })
}

export const nodeAnswerCases: readonly Case[] = [...sceneCases, ...brokenCases, ...heldCases]
