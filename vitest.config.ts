import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    pool: 'forks',
    // Most tests wait for a server or a clock: two at a time, also where there are only two cores.
    maxWorkers: 2,
    // Generous, because machines are shared: a test ends by what it waits for, and this is only the last resort.
    testTimeout: 180_000,
    hookTimeout: 60_000,
  },
})
