import assert from 'node:assert/strict'
import { describe, expect, it } from 'vitest'
import type { Bug } from '../../test/planted-store.ts'
import { harnessWith } from '../../test/planted-store.ts'
import type { StoreCase, StoreHarness, SuiteRunner } from './store-suite.ts'
import { runStoreCase, storeCases, storeSuite } from './store-suite.ts'

/** What can be wrong with a store, each with the case that is there to catch it. */
const CAUGHT_BY: Record<Bug, string> = {
  // The claim
  'claim reads, waits and then writes': 'of 200 concurrent claims of one id, on two handles, exactly one is acquired',
  'claim refreshes the fingerprint': 'a claim with another fingerprint changes nothing, in any state',
  'a lease of 0 is accepted': 'a lease of 0, of less, or that is no number is refused, and nothing is claimed',
  'a lifetime that is no number is accepted':
    'any other lifetime that is negative or no number is refused, and changes nothing',
  'ids are property names': 'hostile ids are opaque: each is a record of its own',
  'ids are compared without case': 'hostile ids are opaque: each is a record of its own',
  'tokens are compared without case': 'hostile fingerprints and tokens are compared exactly',
  'pending records are evicted': 'J2: a running and an unknown record are kept, however many others come',
  'labels are lost': 'labels are kept as given, and are empty when none were',
  "the caller's labels are kept": 'labels are not changed by a caller that reuses them, nor by a reader',
  // Takeover
  'a live lease is taken over': 'X1: a live lease is never taken over, although asked',
  'takeover with another fingerprint': 'an unknown record with another fingerprint is not taken over',
  'takeover without being asked':
    'X2: when the lease lapsed the record is unknown, and is not taken over without being asked',
  'a takeover has two winners': 'of 100 concurrent takeovers, on two handles, exactly one wins',
  'a settled record is taken over': 'J8: a settled or expired record is never taken over',
  'the attempt is not counted': 'each takeover adds one to the attempt, with a fresh lease on the same record',
  'a lapsed lease alone takes the record away': 'a late owner may settle when nobody took over',
  // Fencing
  'settle is not fenced': 'X1: settle with another token changes nothing',
  'release after a takeover forgets the owner of before':
    'X2: a taker that releases leaves the record unknown: the owner of before may have acted',
  'the lifetime left is that of the key': 'a settled record says how long its answer is still replayed',
  'release is not fenced': 'X1: release with another token changes nothing',
  'renew is not fenced': 'X1: renew with another token changes nothing',
  'settle works on a record that is gone': 'X1: a record that is gone is lost to its owner',
  'settle creates an absent record': 'nothing can be written to an absent record, and none comes of it',
  'release removes a settled record': 'J8: release after settle is refused, and the answer stays',
  'renew revives a settled record': 'J8: renew after settle is refused, and moves nothing',
  'renew leaves goneAt behind': 'renew moves goneAt along with the lease, keeping its distance',
  'renew moves goneAt twice': 'renew moves goneAt along with the lease, keeping its distance',
  'renew with 0 does nothing':
    'X2: renew with 0 gives the lease up: unknown at once, open to takeover, still to be settled',
  // Lost replies
  'a claim asked again collides with itself': 'a claim asked again with its token is acquired, as the same attempt',
  'a takeover asked again counts again': 'a takeover asked again with its token is acquired, as the same attempt',
  'a settle asked again overwrites': 'J8: a settle asked again is true, and what the first one stored stays',
  'a settle asked again is refused': 'J8: a settle asked again is true, and what the first one stored stays',
  // Time
  'an expired row blocks the claim':
    'D11: an answer past its lifetime counts as absent, although nothing swept it: the claim is acquired',
  'an expired answer is served':
    'an expired answer is remembered as used, without the answer, until its second lifetime ends',
  'a row that is gone is listed': 'D11: a record that is gone is absent for read, list and forget too',
  'a row that is gone is forgotten again': 'D11: a record that is gone is absent for read, list and forget too',
  'the lease ends 1 ms late': 'very millisecond: running until the lease ends, unknown from then on',
  'the lease ends 1 ms early': 'very millisecond: running until the lease ends, unknown from then on',
  'records are gone 1 ms late': 'very millisecond: an unknown record is gone when its time is over',
  'records are gone 1 ms early': 'very millisecond: an unknown record is gone when its time is over',
  'answers expire 1 ms late': 'very millisecond: an answer expires, and the key is remembered until it is gone',
  'answers expire 1 ms early': 'very millisecond: an answer expires, and the key is remembered until it is gone',
  'the lifetime counts from the claim': "the answer's lifetime counts from the settle, and replaces the lease's",
  // Answers
  'an empty body becomes null': 'X4: an empty body is not a missing one',
  'a null body becomes empty': 'X4: a missing body is not an empty one',
  'bodies pass through text': 'X4: every byte value, and bytes that are not UTF-8',
  'bodies are cut off at 1 MB': 'X4: a body of 5 MB',
  'a part of a buffer is kept as the whole': 'X4: a body that is a part of a larger buffer, or a Buffer',
  'headers are kept in an object': 'X4: headers in their order, with repeated names, empty and unicode values',
  "the caller's buffer is kept":
    'X4: a caller that reuses its buffer and its headers after settle does not change the answer',
  'readers share one buffer': 'X4: a reader that changes the answer it was given does not change it for others',
  'rejected is kept as committed': 'J8: the outcome is kept, committed or rejected',
  // Operators
  'list is in the order of arrival': 'list is in the order of the ids, and its pages join without gap or repeat',
  'list repeats the last of the page before':
    'list is in the order of the ids, and its pages join without gap or repeat',
  'list filters after it cut the page': 'list by state finds the records of that state, and fills its pages with them',
  'forget spares what is settled': 'forget removes the record in any state, once, and the key is new',
  'redact reaches what is running': 'redact of what has no answer changes nothing, and says so',
  'redact leaves the labels': 'redact of an expired record takes its labels',
  'redact leaves the headers': 'redact takes body, headers and labels from an answer, and keeps the claim',
  'redact leaves the body': 'redact takes body, headers and labels from an answer, and keeps the claim',
  'redact forgets the claim': 'redact takes body, headers and labels from an answer, and keeps the claim',
  'sweep eats unknown records': 'sweep frees nothing that is running, unknown, settled or expired',
  'sweep eats keys that are remembered': 'sweep frees nothing that is running, unknown, settled or expired',
  'sweep ignores its limit': 'sweep frees no more than its limit, and comes to an end',
  // Waiting
  'a waiter misses a settle from before': 'X5: resolves at once when the record was settled before',
  'giving up wakes nobody': 'X5: resolves on giving up',
  'release wakes nobody': 'X5: resolves on release',
  'waiters hear only their own handle': 'X5: resolves on settle through another handle',
  'an abort rejects': 'X5: an abort resolves it, and never rejects',
  'one waiter for each record': 'X5: a thousand waiters of one record are all woken',
  // Close
  'close drops accepted work': 'work that was accepted before close is finished',
  'verbs work after close': 'after close every verb throws store-closed',
  'close leaves its waiters': 'X5: close resolves its waiters',
  'close takes the records along': 'close leaves other handles and the records alone',
  // What is left, so that every case is seen to fail
  'a record that vanishes in the middle of a claim counts as claimed':
    'X1: racing claims, takeovers, settles, releases and give-ups: one owner at a time, one answer',
  'the first attempt is 0': 'an absent id is acquired, as attempt 1',
  "a running record is reported with the caller's fingerprint":
    'a running record is reported with its own fingerprint and the time left',
  'release leaves the fingerprint behind': 'after release another may claim, with another fingerprint, as attempt 1',
  'list leaves the bodies out': 'X4: claim, read, list and another handle all give the answer that was settled',
  'a body of zeros is taken for none': 'X4: a body of one zero byte',
  'the answer of the last settle is given for all': 'X4: answers of different records do not mix',
  'the status is kept in one byte': 'X4: the lowest and highest statuses',
  'headers beyond the hundredth are lost': 'X4: no headers, and very many',
  'an absent record is read as an empty one': 'list of an empty store is empty, and read gives nothing',
  'list has no bound of its own': 'list gives 100 records unless told otherwise',
  'forget removes everything': 'forget removes one record only',
  'the store forgets to say how much it swept': '10,000 records come and go',
  'settle wakes nobody': 'X5: resolves on settle',
  'forget wakes nobody': 'X5: resolves on forget',
  'a second close throws': 'close may be called twice, also at once',
}

/** A hang is what some of these bugs are: here it need not be waited for as long as on a real store. */
const PATIENCE_MS = 100

describe('the suite passes a store without a bug', () => {
  storeSuite({ describe, it }, async () => harnessWith(undefined))
})

describe('the suite catches a store in which', () => {
  it.each(Object.entries(CAUGHT_BY))('%s', async (bug, caseName) => {
    const storeCase = storeCases.find(({ name }) => name === caseName)
    assert.ok(storeCase, `there is no case “${caseName}”`)
    const found = await foundIn(bug as Bug, storeCase)
    expect(found).toBeInstanceOf(Error)
    // What the case found, and not a fault of the planted store itself.
    expect(found).not.toBeInstanceOf(TypeError)
  })
})

describe('storeSuite', () => {
  it('has no case that cannot fail: each one catches some planted bug', async () => {
    const meant = new Set(Object.values(CAUGHT_BY))
    const others = storeCases.filter(({ name }) => !meant.has(name))
    const idle = await Promise.all(
      others.map(async (storeCase) => ((await catchesAny(storeCase)) ? [] : storeCase.name)),
    )
    expect(idle.flat()).toEqual([])
  })

  it('hands every case to the runner, each under a name of its own', () => {
    const names = namesOf(async () => harnessWith(undefined))
    expect(names).toEqual(storeCases.map(({ group, name }) => `${group} > ${name}`))
    expect(new Set(names).size).toBe(names.length)
  })

  it('names the reason of what is left out', () => {
    const names = namesOf(async () => harnessWith(undefined), { without: { push: 'this server cannot push' } })
    const skipped = names.filter((name) => name.endsWith('(skipped: this server cannot push)'))
    expect(skipped).toHaveLength(storeCases.filter(({ needs }) => needs === 'push').length)
    expect(skipped.length).toBeGreaterThan(0)
  })

  it('disposes of the store after a case, whether it passed or failed', async () => {
    let disposed = 0
    const dispose = async () => {
      disposed += 1
    }
    const factory = async () => ({ ...harnessWith(undefined), dispose })
    const passing = { group: 'own', name: 'passing', run: async () => {} }
    const failing = { group: 'own', name: 'failing', run: async () => assert.fail('found') }
    await runStoreCase(passing, factory)
    expect(disposed).toBe(1)
    await expect(runStoreCase(failing, factory)).rejects.toThrow('found')
    expect(disposed).toBe(2)
  })

  it('a case that failed while the clock ran away is judged again with longer ticks; one that failed in time is not', async () => {
    const ticksMs: number[] = []
    const slowFor = (busyMs: number): StoreCase => ({
      group: 'own',
      name: 'failing',
      run: async ({ tickMs }) => {
        ticksMs.push(tickMs)
        const until = performance.now() + busyMs
        while (performance.now() < until);
        assert.fail(`found at ${tickMs}`)
      },
    })
    const factory = async () => harnessWith(undefined)
    await expect(runStoreCase(slowFor(60), factory, { tickMs: 20, tickMsMax: 80 })).rejects.toThrow('found at 80')
    expect(ticksMs).toEqual([20, 40, 80])
    const hour = { tickMs: 3_600_000, tickMsMax: 100 * 3_600_000 }
    await expect(runStoreCase(slowFor(0), factory, hour)).rejects.toThrow('found at 3600000')
    expect(ticksMs).toHaveLength(4)
  })
})

async function catchesAny(storeCase: StoreCase): Promise<boolean> {
  for (const bug of Object.keys(CAUGHT_BY)) {
    if (await foundIn(bug as Bug, storeCase)) return true
  }
  return false
}

/** What the case finds wrong with a store that has this bug. */
function foundIn(bug: Bug, storeCase: StoreCase): Promise<unknown> {
  const run = runStoreCase(storeCase, async () => harnessWith(bug), { patienceMs: PATIENCE_MS })
  return run.then(
    () => undefined,
    (error: unknown) => error,
  )
}

function namesOf(...[factory, options]: [() => Promise<StoreHarness>, Parameters<typeof storeSuite>[2]?]): string[] {
  const names: string[] = []
  let group = ''
  const runner: SuiteRunner = {
    describe(name, body) {
      group = name
      body()
    },
    it: (name) => names.push(`${group} > ${name}`),
  }
  storeSuite(runner, factory, options)
  return names
}
