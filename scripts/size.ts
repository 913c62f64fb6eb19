/** What `import 'oncekey'` costs: no framework, no driver, and at most SIZE_BYTES_MAX minified and gzipped. */
import { builtinModules } from 'node:module'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'
import { ROOT } from './run.ts'

const SIZE_BYTES_MAX = 12_000

const { outputFiles, metafile } = await build({
  entryPoints: [join(ROOT, 'dist/index.js')],
  bundle: true,
  minify: true,
  format: 'esm',
  platform: 'node',
  packages: 'external',
  write: false,
  metafile: true,
})
const bytes = gzipSync(outputFiles[0]?.contents ?? new Uint8Array()).length
const imported = Object.values(metafile.outputs).flatMap((output) => output.imports.map(({ path }) => path))
const foreign = imported.filter((path) => !builtinModules.includes(path.replace(/^node:/, '')))
console.log(`import 'oncekey': ${(bytes / 1000).toFixed(1)} kB minified and gzipped (at most ${SIZE_BYTES_MAX / 1000})`)
console.log(`It imports ${[...new Set(imported)].join(', ') || 'nothing'}.`)
if (bytes > SIZE_BYTES_MAX) throw new Error(`oncekey has grown to ${bytes} bytes`)
if (foreign.length > 0) throw new Error(`import 'oncekey' pulls in ${foreign.join(', ')}`)
