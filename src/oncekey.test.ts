import { describe, expect, it } from 'vitest'
import { OncekeyError, oncekey } from './index.ts'
import { memoryStore } from './stores/memory.ts'
import { manualClock } from './testing/manual-clock.ts'

const start = () => {
  const clock = manualClock()
  return oncekey({ store: memoryStore({ clock }), clock })
}
const pay = { key: 'order-1', scope: 'tenant-1', payload: { amount: 5 } }
const code = (expected: string) => expect.objectContaining({ name: 'OncekeyError', code: expected })

describe('once.run, for plain code', () => {
  it('runs the handler once and gives every caller its value', async () => {
    const once = start()
    let runs = 0
    const charge = () => ({ receipt: ++runs })
    expect(await once.run(pay, charge)).toEqual({ receipt: 1 })
    expect(await once.run(pay, charge)).toEqual({ receipt: 1 })
  })

  it('gives the first caller what a later one gets: the value as JSON carries it', async () => {
    const once = start()
    const at = new Date(0)
    const first = await once.run<unknown>(pay, () => ({ at, nothing: undefined }))
    expect(first).toEqual({ at: '1970-01-01T00:00:00.000Z' })
    expect(await once.run(pay, () => 'never')).toEqual(first)
  })

  it.each([undefined, null, '', 0, false, [], 'é\u{1F600}'])('keeps %j', async (value) => {
    const once = start()
    expect(await once.run<unknown>(pay, () => value)).toEqual(value)
    expect(await once.run<unknown>(pay, () => 'never')).toEqual(value)
  })

  it('throws what the handler threw, and does not run it again', async () => {
    const once = start()
    const declined = new TypeError('card declined')
    await expect(once.run(pay, () => Promise.reject(declined))).rejects.toBe(declined)
    const again = once.run(pay, () => 'never')
    await expect(again).rejects.toEqual(code('handler-failed'))
    await expect(again).rejects.toThrow(/TypeError: card declined/)
  })

  it('forgets a run that says that it did nothing', async () => {
    const once = start()
    const nothing = () => Promise.reject(new OncekeyError('nothing-done', 'the queue is closed'))
    await expect(once.run(pay, nothing)).rejects.toEqual(code('nothing-done'))
    expect(await once.run(pay, () => 'paid')).toBe('paid')
  })

  it('says so when the value cannot be kept', async () => {
    const once = start()
    await expect(once.run(pay, () => 1n)).rejects.toThrow(/The handler ran, but its value cannot be kept as JSON/)
    await expect(once.run(pay, () => 'never')).rejects.toEqual(code('handler-failed'))
  })

  it('refuses another payload under the same key', async () => {
    const once = start()
    await once.run(pay, () => 'paid')
    await expect(once.run({ ...pay, payload: { amount: 6 } }, () => 'x')).rejects.toEqual(code('key-conflict'))
  })

  it('D8: equal keys of different scopes never meet', async () => {
    const once = start()
    await once.run(pay, () => 'one')
    expect(await once.run({ ...pay, scope: 'tenant-2' }, () => 'two')).toBe('two')
    expect(await once.run({ ...pay, scope: ['tenant-1', 'refunds'] }, () => 'three')).toBe('three')
  })

  it('tells a duplicate in flight when to come again', async () => {
    const once = start()
    const end = Promise.withResolvers<string>()
    const first = once.run(pay, () => end.promise)
    await expect(once.run(pay, () => 'x')).rejects.toMatchObject({ code: 'in-flight', retryAfterMs: 30_000 })
    end.resolve('paid')
    expect(await first).toBe('paid')
  })

  it.each(['', [], ['tenant', '']])('X6: scope %j is refused: a key must belong to somebody', async (scope) => {
    await expect(start().run({ ...pay, scope }, () => 'x')).rejects.toThrow(/scope is missing/)
  })

  it.each([
    ['', 'key-missing'],
    ['a b', 'key-invalid'],
    ['x'.repeat(256), 'key-invalid'],
  ])('key %j is refused as %s', async (key, expected) => {
    await expect(start().run({ ...pay, key }, () => 'x')).rejects.toEqual(code(expected))
  })

  it('is refused at start without a store', () => {
    expect(() => oncekey({} as never)).toThrow(/store is missing; pass one/)
  })
})
