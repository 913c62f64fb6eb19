import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, it } from 'vitest'
import { sqliteStore } from '../src/stores/sqlite.ts'
import { adapterSuite } from '../src/testing/adapter-suite.ts'
import {
  express4Subject,
  express5Subject,
  fastifyRawSubject,
  fastifySubject,
  fetchSubject,
  nodeSubject,
} from './adapters/subjects.ts'

const runner = { describe, it, skip: (name: string) => it.skip(name) }

// Hono is in a file of its own: its server replaces the global Request and Response.
for (const subject of [
  nodeSubject,
  express5Subject,
  express4Subject,
  fastifySubject,
  fastifyRawSubject,
  fetchSubject,
]) {
  describe(subject.name, () => adapterSuite(runner, subject))
}

/** What an asynchronous, durable store may change: bytes on their way through it, and the order of things. */
const ON_SQLITE =
  /replays (JSON|binary|several writes|an empty 201|a 204|a large)|runs once|parallel|recorded|leaves|in flight|unknown|principals/

describe('on SQLite', () => {
  const folder = mkdtempSync(join(tmpdir(), 'oncekey-adapters-'))
  let files = 0
  const makeStore = () => sqliteStore({ path: join(folder, `${files++}.db`), sweepEveryMs: 0 })
  afterAll(() => rmSync(folder, { recursive: true }))
  for (const subject of [nodeSubject, fastifySubject, fetchSubject]) {
    describe(subject.name, () => adapterSuite(runner, subject, { makeStore, includes: (name) => ON_SQLITE.test(name) }))
  }
})
