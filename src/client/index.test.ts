import { join } from 'node:path'
import { build } from 'esbuild'
import { expect, it } from 'vitest'

it('a bundle for browsers holds the whole client and imports nothing', async () => {
  const { outputFiles, metafile } = await build({
    entryPoints: [join(import.meta.dirname, 'index.ts')],
    bundle: true,
    write: false,
    metafile: true,
    platform: 'browser',
    format: 'esm',
  })
  expect(Object.values(metafile.outputs).flatMap(({ imports }) => imports)).toEqual([])
  expect(outputFiles).toHaveLength(1)
  expect(outputFiles[0]?.text).toContain('idempotentFetch')
})
