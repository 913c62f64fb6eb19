/** Builds dashboard/ into dist/dashboard: one page, one script, one style sheet, nothing from elsewhere. */
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

await build({
  root: fileURLToPath(new URL('../dashboard', import.meta.url)),
  configFile: false,
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: fileURLToPath(new URL('../dist/dashboard', import.meta.url)),
    emptyOutDir: true,
    target: 'es2023',
    // The admin server's policy allows no data: scripts or styles, and hashed names let browsers keep them.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
})
