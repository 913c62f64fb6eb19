import { describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../clock.ts'
import { manualClock } from '../../testing/manual-clock.ts'
import { FORMAT, type Script } from './scripts.ts'
import { type Call, type ClientTraits, Turns } from './turns.ts'

const JOINT: Script = { text: 'joint', sha: 'joint' }
const LONE: Script = { text: 'lone', sha: 'lone' }

const joint = (key: string, own = key, body: Buffer | null = null): Call => {
  return { script: JOINT, key, shared: ['1', '2', '3'], own, body }
}
const turn = () => new Promise((resolve) => setImmediate(resolve))

const NOW = 1_000

interface Sent {
  readonly keys: readonly string[]
  readonly args: readonly unknown[]
  readonly signal: AbortSignal
  readonly end: (reply?: unknown) => Promise<void>
}

/** A server whose replies come when the test says so: to every key of a script its own name, and then the time. */
function makeTurns(traits: Partial<ClientTraits> = {}, clock: Clock = systemClock) {
  const scripts: Sent[] = []
  const turns = new Turns(
    (script, keys, args, signal) =>
      new Promise((resolve, reject) => {
        const end = async (reply: unknown = script === JOINT ? [...keys, NOW] : keys[0]) => {
          if (reply instanceof Error) reject(reply)
          else resolve(reply)
          await turn()
        }
        scripts.push({ keys, args, signal, end })
      }),
    { isCluster: false, writesAtTurnEnd: false, ...traits },
    clock,
    60_000,
  )
  const sent = () => scripts.map(({ keys }) => keys.join('+'))
  return { turns, scripts, sent }
}

describe('what one turn of the event loop asks of Redis', () => {
  it('goes as one script, and each call gets its own reply', async () => {
    const { turns, scripts, sent } = makeTurns()
    const replies = ['a', 'b', 'c'].map((key) => turns.submit(joint(key, `${key}!`, Buffer.from(key))))
    await turn()
    expect(sent()).toEqual(['a+b+c'])
    expect(scripts[0]?.args).toEqual(['1', '2', '3', Buffer.from('abc'), 'a!', 'b!', 'c!'])
    await scripts[0]?.end()
    expect(await Promise.all(replies)).toEqual(['a', 'b', 'c'])
  })

  it('a record comes with the time at which it was read', async () => {
    const { turns, scripts } = makeTurns()
    const replies = ['a', 'b'].map((key) => turns.submit(joint(key)))
    await turn()
    const record = Buffer.from(`${FORMAT}r--`)
    await scripts[0]?.end([1, record, NOW])
    expect(await Promise.all(replies)).toEqual([1, [NOW, record]])
  })

  it('shares four arguments, of which the last are the bodies where there can be any', async () => {
    const { turns, scripts } = makeTurns()
    void turns.submit({ script: JOINT, key: 'a', shared: ['1', '2', '3', '4'], own: 'a!', body: null })
    void turns.submit(joint('b', 'b!'))
    await turn()
    expect(scripts.map(({ args }) => args)).toEqual([
      ['1', '2', '3', '4', 'a!'],
      ['1', '2', '3', '', 'b!'],
    ])
  })

  it('is sent at once when nothing is under way, and waits for nobody when something is', async () => {
    const { turns, sent } = makeTurns()
    void turns.submit(joint('a'))
    await Promise.resolve()
    expect(sent()).toEqual(['a'])
    void turns.submit(joint('b'))
    await turn()
    expect(sent()).toEqual(['a', 'b'])
  })

  it('goes together also by a client that writes at the end of the turn: the first ahead, so that it writes in this one', async () => {
    const { turns, scripts, sent } = makeTurns({ writesAtTurnEnd: true })
    void turns.submit(joint('a'))
    await turn()
    const replies = ['b', 'c', 'd'].map((key) => turns.submit(joint(key)))
    expect(sent()).toEqual(['a', 'b'])
    // As such a client does: what was sent by the end of its own callback is written.
    const written = new Promise((resolve) => setImmediate(() => resolve(sent())))
    expect(await written).toEqual(['a', 'b', 'c+d'])
    for (const { end } of scripts) await end()
    expect(await Promise.all(replies)).toEqual(['b', 'c', 'd'])
    await turns.idle()
  })

  it('goes apart where scripts, or what they share, are not the same', async () => {
    const { turns, sent } = makeTurns()
    const other: Call = { script: JOINT, key: 'b', shared: ['1', '2', ''], own: 'b', body: null }
    for (const call of [joint('a'), other, { script: LONE, key: 'c', args: [] }, joint('d')]) void turns.submit(call)
    await turn()
    expect(sent().toSorted()).toEqual(['a+d', 'b', 'c'])
  })

  it('keeps the order of what is about one key', async () => {
    const { turns, sent } = makeTurns()
    const calls: Call[] = [joint('a'), joint('b'), { script: LONE, key: 'a', args: [] }, joint('a'), joint('c')]
    for (const call of calls) void turns.submit(call)
    await turn()
    expect(sent()).toEqual(['a+b', 'a', 'a+c'])
  })

  it('gives a large body a script of its own', async () => {
    const { turns, sent } = makeTurns()
    for (const key of ['a', 'b', 'c']) void turns.submit(joint(key, key, Buffer.alloc(600_000)))
    void turns.submit(joint('d'))
    await turn()
    expect(sent()).toEqual(['a', 'b', 'c+d'])
  })

  it('one record at fault harms no other; a script that failed fails all of its own', async () => {
    const { turns, scripts } = makeTurns()
    const [a, b] = [turns.submit(joint('a')), turns.submit(joint('b'))].map((reply) => reply.catch((error) => error))
    await turn()
    await scripts[0]?.end([1, Buffer.from("OOM command not allowed when used memory > 'maxmemory'."), NOW])
    expect(await a).toBe(1)
    expect(await b).toMatchObject({ code: 'store-full' })

    const failed = [turns.submit(joint('a')), turns.submit(joint('b'))].map((reply) => reply.catch((error) => error))
    await turn()
    await scripts[1]?.end(new Error('LOADING Redis is loading the dataset in memory'))
    for (const error of failed) expect(await error).toMatchObject({ code: 'store-unavailable' })
  })

  it('a reply of another length is believed by nobody', async () => {
    const { turns, scripts } = makeTurns()
    const replies = ['a', 'b'].map((key) => turns.submit(joint(key)).catch((error) => error))
    await turn()
    await scripts[0]?.end([1, NOW])
    for (const error of replies) expect(await error).toMatchObject({ code: 'store-incompatible' })
  })

  it('is given up in time, and then the client is told not to send it any more', async () => {
    const clock = manualClock()
    const { turns, scripts } = makeTurns({}, clock)
    const error = turns.submit(joint('a')).catch((reason) => reason)
    await turn()
    expect(scripts[0]?.signal.aborted).toBe(false)
    await clock.advance(61_000)
    expect(await error).toMatchObject({ code: 'store-unavailable' })
    expect(scripts[0]?.signal.aborted).toBe(true)
  })

  it('goes one by one in a cluster, and behind a proxy that turns out to be before one', async () => {
    expect(await sentTo(makeTurns({ isCluster: true }))).toEqual(['a', 'b'])

    const proxied = makeTurns()
    const replies = ['a', 'b'].map((key) => proxied.turns.submit(joint(key)))
    await turn()
    await proxied.scripts[0]?.end(new Error("CROSSSLOT Keys in request don't hash to the same slot"))
    await turn()
    expect(proxied.sent()).toEqual(['a+b', 'a', 'b'])
    for (const script of proxied.scripts.slice(1)) await script.end()
    expect(await Promise.all(replies)).toEqual(['a', 'b'])
    expect(await sentTo(proxied)).toEqual(['a+b', 'a', 'b', 'a', 'b'])
  })

  it('idle waits for all of it, also for what has not been sent yet', async () => {
    const { turns, scripts } = makeTurns()
    void turns.submit(joint('a'))
    await turn()
    void turns.submit(joint('b'))
    let isIdle = false
    const idle = turns.idle().then(() => {
      isIdle = true
    })
    await scripts[0]?.end()
    expect([scripts.length, isIdle]).toEqual([2, false])
    await scripts[1]?.end()
    await idle
  })
})

async function sentTo({ turns, sent }: ReturnType<typeof makeTurns>): Promise<readonly string[]> {
  for (const key of ['a', 'b']) void turns.submit(joint(key))
  await turn()
  return sent()
}
