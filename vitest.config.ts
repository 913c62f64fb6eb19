import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    pool: 'forks',
    // One file at a time: the suites of the real servers count in ticks of a real clock, and a busy machine stretches them.
    maxWorkers: 1,
    // Generous, because machines are shared: a test ends by what it waits for, and this is only the last resort.
    testTimeout: 180_000,
    hookTimeout: 60_000,
  },
})
