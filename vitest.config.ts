import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    pool: 'forks',
    // Generous, because machines are shared: a test ends by what it waits for, and this is only the last resort.
    testTimeout: 180_000,
    hookTimeout: 60_000,
  },
})
