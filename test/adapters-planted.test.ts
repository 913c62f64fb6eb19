import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import { adapterSuite, type FetchAdapterUnderTest } from '../src/testing/adapter-suite.ts'
import { BUGS, type Bug, naiveSubject } from './adapters/naive.ts'

function casesOf(subject: FetchAdapterUnderTest): Map<string, () => Promise<void> | void> {
  const cases = new Map<string, () => Promise<void> | void>()
  adapterSuite({ describe: (_name, body) => body(), it: (name, body) => void cases.set(name, body) }, subject)
  return cases
}

async function run(subject: FetchAdapterUnderTest, name: string): Promise<void> {
  const one = casesOf(subject).get(name)
  assert.ok(one, `the suite has the case "${name}"`)
  await one()
}

describe('a small adapter without a bug passes', () => {
  for (const name of new Set(Object.values(BUGS))) it(name, () => run(naiveSubject(), name))
})

describe('a planted bug is caught', () => {
  for (const [bug, name] of Object.entries(BUGS) as Array<[Bug, string]>) {
    it(`${bug}: by "${name}"`, async () => {
      await assert.rejects(run(naiveSubject(bug), name), assert.AssertionError)
    })
  }
})
