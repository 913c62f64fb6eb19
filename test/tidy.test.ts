import { globSync, readFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'

/** The rules of the house that a machine can check. Each failure names the file and the rule. */
const ROOT = resolve(import.meta.dirname, '..')
const sources = globSync('src/**/*.ts', { cwd: ROOT }).filter((file) => !file.endsWith('.test.ts'))
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8')
const importsOf = (file: string): string[] =>
  [...read(file).matchAll(/^(?:import|export)\s[^'"]*?from\s+'(\.[^']+)'/gm)].map(([, path]) =>
    relative(ROOT, resolve(ROOT, dirname(file), path as string)),
  )

/** Which part of src/ a file belongs to, and which parts it may use: downwards only. */
const LAYERS: Readonly<Record<string, readonly string[]>> = {
  core: ['core', 'operation', 'contracts'],
  contracts: ['core', 'contracts'],
  operation: ['operation', 'core'],
  sql: ['sql', 'core'],
  stores: ['core', 'sql'],
  http: ['http', 'core', 'contracts', 'operation'],
  adapters: ['http', 'core', 'contracts', 'operation'],
  guards: ['guards', 'core', 'operation'],
  client: ['client', 'core'],
  gate: ['gate', 'http', 'core', 'contracts', 'operation'],
  admin: ['admin', 'core'],
  check: ['check', 'core'],
  cli: ['cli', 'core', 'contracts', 'stores', 'guards', 'gate', 'admin', 'check'],
  testing: ['testing', 'core', 'contracts', 'operation', 'stores'],
}

function layerOf(file: string): string {
  const [, folder, rest] = file.split('/')
  return rest === undefined ? 'core' : (folder as string)
}

describe('tidy', () => {
  it('imports go downwards only, and never sideways between stores or between adapters', () => {
    const wrong = sources.flatMap((file) =>
      importsOf(file)
        .filter((target) => {
          const from = layerOf(file)
          const to = layerOf(target)
          // A store's or an adapter's own folder: src/stores/sqlite.ts and src/stores/sqlite/…
          if (from === to && (from === 'stores' || from === 'adapters')) return memberOf(file) !== memberOf(target)
          return !LAYERS[from]?.includes(to)
        })
        .map((target) => `${file} → ${target}`),
    )
    expect(wrong).toEqual([])
  })

  it('has no import cycles', () => {
    const done = new Set<string>()
    const cycles: string[] = []
    const visit = (file: string, path: readonly string[]): void => {
      if (path.includes(file)) cycles.push([...path.slice(path.indexOf(file)), file].join(' → '))
      else if (!done.has(file)) for (const target of importsOf(file)) visit(target, [...path, file])
      done.add(file)
    }
    for (const file of sources) visit(file, [])
    expect(cycles).toEqual([])
  })

  it('has one subpath export for each store and adapter, under its own name', () => {
    const { exports } = JSON.parse(read('package.json')) as { exports: Record<string, { default: string } | string> }
    const members = globSync('src/{stores,adapters,guards}/*.ts', { cwd: ROOT }).filter(
      (file) => !file.endsWith('.test.ts'),
    )
    const expected = Object.fromEntries(
      members.map((file) => [`./${memberOf(file)}`, file.replace('src/', './dist/').replace(/\.ts$/, '.js')]),
    )
    const own = ['.', './contracts', './client', './otel', './testing', './package.json']
    const actual = Object.entries(exports)
      .filter(([subpath]) => !own.includes(subpath))
      .map(([subpath, target]) => [subpath, typeof target === 'string' ? target : target.default])
    expect(Object.fromEntries(actual)).toEqual(expected)
  })

  it.each([
    ['no silenced type checks', /@ts-(?:ignore|nocheck|expect-error)|\bas any\b/],
    ['nothing left open', /\b(?:TODO|FIXME|XXX)\b|not implemented/i],
    ['no test is skipped without words or runs alone', /\b(?:it|test|describe)\.only\b/],
  ])('%s', (_rule, pattern) => {
    const files = globSync('{src,test,bench,proof,scripts}/**/*.ts', { cwd: ROOT })
    const mine = relative(ROOT, import.meta.filename)
    expect(files.filter((file) => file !== mine && !file.includes('node_modules') && pattern.test(read(file)))).toEqual(
      [],
    )
  })

  it('the engine and what it stands on take their time from the injected clock', () => {
    const timed = sources.filter(
      (file) =>
        ['core', 'operation', 'contracts'].includes(layerOf(file)) && !['src/clock.ts', 'src/otel.ts'].includes(file),
    )
    expect(
      timed.filter((file) => /Date\.now|performance\.now|setTimeout|setInterval|new Date\b/.test(read(file))),
    ).toEqual([])
  })

  it('a file is a chapter: none has more than 350 lines', () => {
    expect(sources.filter((file) => read(file).split('\n').length > 351)).toEqual([])
  })
})

function memberOf(file: string): string {
  return (file.split('/')[2] as string).replace(/\.ts$/, '')
}
