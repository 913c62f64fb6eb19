import { describe, expect, it } from 'vitest'
import { scene } from '../../test/gate/scene.ts'
import { ConflictPaths } from './conflicts.ts'
import { keyedHash } from './keyed-hash.ts'

const JSON_TYPE = 'application/json; charset=utf-8'
const bytes = (value: unknown): Buffer => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))

function changed(before: unknown, now: unknown): string[] | undefined {
  const paths = new ConflictPaths()
  paths.remember('id', bytes(before), JSON_TYPE)
  return paths
    .compare('id', bytes(now), JSON_TYPE)
    ?.map(({ path, was, is }) => `${was ? '-' : ''}${is ? '+' : ''}${path}`)
}

const members = (count: number): Array<[string, number]> =>
  Array.from({ length: count }, (_, at) => [`a${at}`, at] as [string, number])

describe('where a conflicting request differs', () => {
  it.each([
    [{ a: 1, b: { c: [1, 2] } }, { a: 1, b: { c: [1, 3] } }, ['-+/b/c/1']],
    [{ a: 1 }, { a: '1' }, ['-+/a']],
    [{ a: 'x' }, { a: '"x' }, ['-+/a']],
    [{ a: 1, gone: 2 }, { a: 1, came: 2 }, ['-/gone', '+/came']],
    [{ a: {} }, { a: [] }, ['-+/a']],
    [{ a: [] }, { a: [null] }, ['-/a', '+/a/0']],
    [{ 'x/y~z\n': 1 }, { 'x/y~z\n': 2 }, ['-+/x~1y~0z\n']],
    [{ a: 1, b: 2 }, { b: 2, a: 1 }, []],
    [1, 2, ['-+']],
    ['{"__proto__": 1}', '{"__proto__": 2}', ['-+/__proto__']],
  ])('%j and %j', (before, now, expected) => {
    expect(changed(before, now)).toEqual(expected)
  })

  it('shows nothing of a value, and equal values at two places as different', () => {
    const paths = new ConflictPaths()
    paths.remember('id', bytes({ a: 'secret', b: 'secret' }), JSON_TYPE)
    const [a, b] = paths.compare('id', bytes({ a: 'x', b: 'x' }), JSON_TYPE) ?? []
    expect(a?.was).toMatch(/^[0-9a-f]{16}$/)
    expect(a?.was).not.toBe(b?.was)
    expect(a?.is).not.toBe(b?.is)
    expect(paths.changes('id')).toEqual([a, b])
  })

  it('knows nothing of what is not JSON, is broken, too large or long ago', () => {
    const paths = new ConflictPaths()
    paths.remember('text', bytes('a'), 'text/plain')
    paths.remember('broken', bytes('{'), JSON_TYPE)
    paths.remember('large', bytes({ a: 'x'.repeat(70_000) }), JSON_TYPE)
    paths.remember('old', bytes({ a: 1 }), JSON_TYPE)
    const many = bytes(Object.fromEntries(members(500)))
    for (let count = 0; count < 1_100; count++) paths.remember(`id${count}`, many, JSON_TYPE)
    for (const id of ['text', 'broken', 'large', 'old', 'never']) {
      expect(paths.compare(id, bytes({ a: 2 }), JSON_TYPE)).toBeUndefined()
    }
    expect(paths.compare('id1099', many, JSON_TYPE)).toEqual([])
  })

  it('tells many operations apart, and of each what it was last', () => {
    const paths = new ConflictPaths()
    for (let round = 0; round < 2; round++) {
      for (let at = 0; at < 5_000; at++) paths.remember(`id${at}`, bytes({ a: at, b: round }), JSON_TYPE)
    }
    let known = 0
    for (let at = 0; at < 5_000; at++) {
      const changes = paths.compare(`id${at}`, bytes({ a: at, b: 0 }), JSON_TYPE)
      if (changes === undefined) continue
      known++
      expect(changes.map(({ path }) => path)).toEqual(['/b'])
    }
    // Some share their place with a later one.
    expect(known).toBeGreaterThan(4_000)
  })

  it.each([
    ['a long name above many members', { ['n'.repeat(58_000)]: Object.fromEntries(members(500)) }],
    ['many paths that are long together', { ['n'.repeat(150)]: Object.fromEntries(members(200)) }],
    ['a name that grows in its path', { ['~'.repeat(190)]: Object.fromEntries(members(50)) }],
    ['a name that is data', { ['n'.repeat(201)]: 1 }],
    ['what is deeper than a path goes', `${'['.repeat(30_000)}1${']'.repeat(30_000)}`],
  ])('knows nothing of %s, neither as the first request nor as the second', (_name, body) => {
    expect(changed(body, { a: 1 })).toBeUndefined()
    expect(changed({ a: 1 }, body)).toBeUndefined()
  })

  it('keeps the bytes of its memory bounded, whatever names are sent, and still explains the latest', () => {
    const paths = new ConflictPaths()
    const body = (round: number, value: number): Buffer =>
      bytes(Object.fromEntries(members(450).map(([name]) => [`${name}-${round}-${'n'.repeat(20)}`, value])))
    for (let round = 0; round < 300; round++) {
      paths.remember(`id${round}`, body(round, 1), JSON_TYPE)
      if (round % 2 === 0) expect(paths.compare(`id${round}`, body(round, 2), JSON_TYPE)).toHaveLength(450)
    }
    expect(paths.bytes).toBeLessThan(16 * 1024 * 1024)
    expect(paths.compare('id299', body(299, 2), JSON_TYPE)).toHaveLength(450)
    expect(paths.compare('id0', body(0, 3), JSON_TYPE)).toBeUndefined()
  })

  it('is told for a refused request, by event and by id', async () => {
    const { open, heard, gate } = await scene()
    await open().post('k', '{"amount":1,"to":"ann"}').message()
    expect((await open().post('k', '{"amount":2,"to":"ann"}').message()).status).toBe(422)
    const { id, changes } = await heard('conflict-paths')
    expect(changes.map(({ path }) => path)).toEqual(['/amount'])
    expect(gate.changes(id)).toEqual(changes)
  })

  it('hashes texts of every length differently', () => {
    const out = new Uint32Array(2)
    const seen = new Set<string>()
    for (let length = 0; length < 200; length++) {
      for (const letter of ['a', '\u0000', '\uffff']) {
        keyedHash(letter.repeat(length), out, 0)
        seen.add(out.join())
      }
    }
    expect(seen.size).toBe(1 + 3 * 199)
  })
})
