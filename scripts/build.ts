/** Compiles src/ to dist/, and the dashboard to dist/dashboard, from nothing: a file that was renamed must not live on. */
import { rmSync } from 'node:fs'
import { run } from './run.ts'

rmSync(new URL('../dist', import.meta.url), { recursive: true, force: true })
await run('tsc', ['-p', 'tsconfig.build.json'])
await run('node', ['scripts/build-dashboard.ts'])
