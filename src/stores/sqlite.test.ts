import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it } from 'vitest'
import type { Clock } from '../clock.ts'
import type { Store } from '../store.ts'
import { storeSuite } from '../testing/store-suite.ts'
import { sqliteStore } from './sqlite.ts'

describe('the store suite, on two handles of one file', () => {
  storeSuite({ describe, it, skip: it.skip }, async () => {
    const directory = mkdtempSync(join(tmpdir(), 'oncekey-'))
    let nowMs = 1_800_000_000_000
    const clock: Clock = { now: () => nowMs, schedule: () => () => {} }
    const handles: Store[] = []
    const open = (): Store => {
      const store = sqliteStore({ path: join(directory, 'once.db'), clock, sweepEveryMs: 0 })
      handles.push(store)
      return store
    }
    return {
      store: open(),
      another: async () => open(),
      elapse: async (ms) => {
        nowMs += ms
      },
      dispose: async () => {
        await Promise.all(handles.map((store) => store.close()))
        rmSync(directory, { recursive: true })
      },
    }
  })
})
