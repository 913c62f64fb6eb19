import { defineConfig } from 'vitest/config'

/** They kill, freeze and flood servers, and count in the clocks of those: one file at a time, after all others. */
const ROUGH = ['test/faults/**/*.test.ts', 'test/crash.test.ts']

export default defineConfig({
  test: {
    pool: 'forks',
    // Generous, because machines are shared: a test ends by what it waits for, and this is only the last resort.
    testTimeout: 180_000,
    hookTimeout: 60_000,
    expect: { poll: { timeout: 60_000 } },
    projects: [
      {
        extends: true,
        test: {
          name: 'parts',
          include: ['{src,test,examples}/**/*.test.ts'],
          exclude: ROUGH,
          maxWorkers: 2,
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: { name: 'rough', include: ROUGH, maxWorkers: 1, sequence: { groupOrder: 2 } },
      },
    ],
  },
})
