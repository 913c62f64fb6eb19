/** What oncekey itself is tested with, for stores and adapters of your own. Bring any test runner that has `describe` and `it`. */
export * from './adapter-suite.ts'
export * from './manual-clock.ts'
export * from './simulator/index.ts'
export * from './store-suite.ts'
