import { spawnSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { describe, expect, it } from 'vitest'

const ROOT = resolve(import.meta.dirname, '..')
const pages = ['README.md', 'CONTRIBUTING.md', ...globSync('docs/**/*.md', { cwd: ROOT })]

describe('the docs', () => {
  it('have snippets that type-check as they stand', () => {
    // Inside the project, so that `oncekey/…` means this package, as its users will see it.
    const folder = join(ROOT, '.work/snippets')
    rmSync(folder, { recursive: true, force: true })
    mkdirSync(folder, { recursive: true })
    let snippets = 0
    for (const page of pages) {
      const text = readFileSync(join(ROOT, page), 'utf8')
      for (const [, code] of text.matchAll(/^```ts\n(.*?)^```$/gms)) {
        snippets++
        writeFileSync(join(folder, `${page.replaceAll(/\W/g, '-')}-${snippets}.ts`), `${code}\nexport {}\n`)
      }
    }
    const config = {
      extends: '../../tsconfig.json',
      compilerOptions: { noUnusedLocals: false, noUnusedParameters: false },
      include: ['*.ts'],
    }
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(config))
    const { stdout } = spawnSync('tsc', ['-p', folder], { encoding: 'utf8' })
    expect(stdout).toBe('')
    expect(snippets).toBeGreaterThan(5)
  })

  it('link only to what is there', () => {
    const dead = pages.flatMap((page) => {
      const text = readFileSync(join(ROOT, page), 'utf8')
      return [...text.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g)]
        .map(([, target]) => target as string)
        .filter((target) => !existsSync(join(ROOT, dirname(page), target)))
        .map((target) => `${page} → ${target}`)
    })
    expect(dead).toEqual([])
  })
})
