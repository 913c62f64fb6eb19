import assert from 'node:assert/strict'
import type { Answer } from '../../store.ts'
import type { Bench, StoreCase } from './kit.ts'
import { answerIn, answerOf, chapter, ID, idOf, plain, tryTo } from './kit.ts'

export const answerCases: readonly StoreCase[] = chapter('answers', {
  'J8: the outcome is kept, committed or rejected': async (bench) => {
    for (const outcome of ['committed', 'rejected'] as const) {
      await bench.claimed()
      await bench.settled({ outcome })
      assert.equal((await bench.isIn('settled')).outcome, outcome)
      const claim = await bench.claim({ token: 'second' })
      assert.equal(claim.state === 'settled' && claim.outcome, outcome)
      await bench.store.forget(ID)
    }
  },

  'X4: claim, read, list and another handle all give the answer that was settled': async (bench) => {
    const other = await bench.another()
    await bench.given('settled')
    const given = plain(answerOf('first'))
    assert.deepEqual(plain(answerIn(await bench.claim({ token: 'second' }))), given)
    assert.deepEqual(plain(answerIn(await bench.claim({ token: 'second' }, other))), given)
    assert.deepEqual(plain(answerIn(await bench.store.read(ID))), given)
    assert.deepEqual(plain(answerIn((await other.list())[0])), given)
  },

  'X4: an empty body is not a missing one': async (bench) => {
    await comesBack(bench, { status: 204, headers: [], body: new Uint8Array(0) })
  },

  'X4: a missing body is not an empty one': async (bench) => {
    await comesBack(bench, { status: 200, headers: [['content-length', '9000000']], body: null })
  },

  'X4: a body of one zero byte': async (bench) => {
    await comesBack(bench, { status: 200, headers: [], body: new Uint8Array(1) })
  },

  'X4: every byte value, and bytes that are not UTF-8': async (bench) => {
    await comesBack(bench, { status: 200, headers: [], body: Uint8Array.from({ length: 256 }, (_, i) => i) })
    await comesBack(bench, { status: 200, headers: [], body: Uint8Array.of(0xff, 0xfe, 0xc3, 0x28, 0xed, 0xa0, 0x80) })
  },

  'X4: text that looks like something else: a byte order mark, JSON, base64': async (bench) => {
    for (const text of ['\ufefftext', '{"type":"Buffer","data":[1]}', 'null', '""', 'AAEC', '\\x00', '\r\n']) {
      await comesBack(bench, answerOf(text))
    }
  },

  'X4: a body of 5 MB': async (bench) => {
    const body = new Uint8Array(5 * 1_024 * 1_024)
    for (let i = 0; i < body.length; i++) body[i] = i * 31 + (i >> 8)
    await comesBack(bench, { status: 200, headers: [], body })
  },

  'X4: a body that is a part of a larger buffer, or a Buffer': async (bench) => {
    const large = Uint8Array.from({ length: 64 }, (_, i) => i)
    await comesBack(bench, { status: 200, headers: [], body: large.subarray(16, 24) })
    await comesBack(bench, { status: 200, headers: [], body: Buffer.from('buffered') })
  },

  'X4: headers in their order, with repeated names, empty and unicode values': async (bench) => {
    const headers: Answer['headers'] = [
      ['x-b', '1'],
      ['link', '</a>; rel="next"'],
      ['x-a', ''],
      ['Link', '</b>; rel="prev"'],
      ['link', '</a>; rel="next"'],
      ['x-b', '2, 3'],
      ['__proto__', 'own'],
      ['10', 'ten'],
      ['9', 'nine'],
      ['x-unicode', 'žluťoučký ☃ 🔑 "quoted" \\'],
    ]
    await comesBack(bench, { ...answerOf('body'), headers })
  },

  'X4: no headers, and very many': async (bench) => {
    await comesBack(bench, { ...answerOf('body'), headers: [] })
    await comesBack(bench, {
      ...answerOf('body'),
      headers: Array.from({ length: 500 }, (_, i) => [`x-${i % 7}`, `${i}`]),
    })
  },

  'X4: the lowest and highest statuses': async (bench) => {
    for (const status of [100, 200, 204, 303, 599, 999]) await comesBack(bench, answerOf('body', status))
  },

  'X4: a caller that reuses its buffer and its headers after settle does not change the answer': async (bench) => {
    for (const text of TEXTS) {
      const body = new TextEncoder().encode(text)
      const headers: [string, string][] = [['content-type', 'text/plain']]
      await bench.claimed()
      await bench.settled({ answer: { status: 201, headers, body } })
      body.fill(0)
      headers[0] = ['changed', 'changed']
      headers.push(['added', 'added'])
      assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answerOf(text)))
      await bench.store.forget(ID)
    }
  },

  'X4: a reader that changes the answer it was given does not change it for others': async (bench) => {
    for (const text of TEXTS) {
      await bench.claimed()
      await bench.settled({ answer: answerOf(text) })
      vandalise(answerIn(await bench.claim({ token: 'second' })))
      vandalise(answerIn(await bench.store.read(ID)))
      vandalise(answerIn((await bench.store.list())[0]))
      assert.deepEqual(plain(answerIn(await bench.claim({ token: 'third' }))), plain(answerOf(text)))
      await bench.store.forget(ID)
    }
  },

  'X4: answers of different records do not mix': async (bench) => {
    const ids = Array.from({ length: 20 }, (_, i) => idOf(i))
    await Promise.all(ids.map((id) => bench.claim({ id })))
    await Promise.all(
      ids.map(async (id) => bench.store.settle(id, 'owner', bench.settlement({ answer: answerOf(`answer of ${id}`) }))),
    )
    for (const id of ids) {
      assert.deepEqual(plain((await bench.isIn('settled', id)).answer), plain(answerOf(`answer of ${id}`)))
    }
  },
})

/** A store may keep small and large bodies in different ways. */
const TEXTS: readonly string[] = ['small', 'large'.repeat(20_000)]

async function comesBack(bench: Bench, answer: Answer): Promise<void> {
  const other = await bench.another()
  await bench.claimed({ leaseMs: 1_000 * bench.tickMs })
  await bench.settled({ answer, ttlMs: 1_000 * bench.tickMs })
  const replayed = answerIn(await bench.claim({ token: 'second' }, other))
  assert.deepEqual(plain(replayed), plain(answer))
  assert.deepEqual(plain((await bench.isIn('settled')).answer), plain(answer))
  await bench.store.forget(ID)
  // A store with a cache in each process promises to forget only where it is told.
  await other.forget(ID)
}

function vandalise(answer: Answer): void {
  const open = answer as { status: number; headers: [string, string][]; body: Uint8Array }
  const attempts = [
    () => open.body.fill(0),
    () => {
      open.status = 500
    },
    () => {
      const first = open.headers[0]
      if (first) first[1] = 'changed'
    },
    () => open.headers.push(['added', 'added']),
    () => {
      open.body = new Uint8Array(0)
    },
  ]
  for (const attempt of attempts) tryTo(attempt)
}
