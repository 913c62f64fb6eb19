import { isNotNow, isSuccess, replayMark, sameContent, shown } from '../answers.ts'
import { NoAnswer, type Received, values } from '../client.ts'
import { DRAFT, fail, pass, unclear, warn } from '../finding.ts'
import { type Case, RETRIES_MAX, type Session } from '../session.ts'
import type { Finding } from '../types.ts'

const RACERS = 20

const race: Case = {
  id: 'race.same-key',
  title: 'Of many requests at once, one runs',
  sent: `${RACERS} equal requests at the same moment with one key, and one more afterwards.`,
  basis: `${DRAFT} 2.6, 2.7: a concurrent request SHOULD be 409; waiting for the answer is as safe`,
  requestsMax: RACERS + 3 + RETRIES_MAX,
  async run(session) {
    const operation = session.operation()
    const [answers, rise] = await session.rise(() => session.sendAtOnce(operation, RACERS))
    const { answer: after } = await session.settled(operation)
    return raced(session, answers, after, rise)
  },
}

function raced(
  session: Session,
  answers: ReadonlyArray<Received | NoAnswer>,
  after: Received,
  rise: number | undefined,
): Finding {
  const received = answers.filter((one): one is Received => !(one instanceof NoAnswer))
  const successes = received.filter(isSuccess)
  const [winner] = successes
  const kinds = successes.filter((one, at) => successes.findIndex((other) => sameContent(one, other)) === at).length
  const differing = kinds > 1 ? `, ${kinds} different answers among the successes` : ''
  const effects = rise === undefined ? '' : `; the effects grew by ${rise}`
  const came = `${tally(answers)}${differing}; afterwards ${shown(after)}${effects}.`
  if ((rise !== undefined && rise > session.effectsEach) || kinds > 1) {
    const meaning =
      'Requests that come together each run: an impatient client, or one behind a retrying proxy, acts twice.'
    const next =
      'Claim the key with one atomic write (unique index, SET NX) before the handler runs; never read first and write later.'
    return fail(came, meaning, next)
  }
  if (received.some((one) => !isSuccess(one) && !isNotNow(one)) || received.length < answers.length) {
    const meaning =
      'A duplicate that comes too early gets an error from which a client cannot tell that it should retry.'
    return fail(came, meaning, 'Answer it with 409 and Retry-After, or let it wait for the first answer.')
  }
  if (!isSuccess(after) || (winner && !sameContent(winner, after))) {
    const meaning = winner
      ? 'After the race its answer cannot be had any more.'
      : 'Every request was sent away: the duplicates blocked the one that should have run, and the key is stuck.'
    return fail(came, meaning, 'Let exactly one request own the key, and complete its record.')
  }
  if (winner === undefined) {
    const meaning = `None of ${RACERS} requests ran until the rush was over: duplicates block the one that should run.`
    return warn(came, meaning, 'Let exactly one of them own the key; look for a rate limit, too.')
  }
  const marked = replayMark(after) !== undefined
  if (session.probe.judgedBy === 'nothing' && !marked) return unclear(came)
  const refused = received.filter((one) => !isSuccess(one))
  const hinted = refused.filter((one) => values(one, 'retry-after').length > 0).length
  const how =
    refused.length === 0
      ? 'The others got its answer.'
      : `${refused.length} were sent away for now, ${hinted === refused.length ? 'all' : hinted} with Retry-After.`
  return pass(came, `One ran. ${how}`)
}

/** "3 × 201, 17 × 409". */
function tally(answers: ReadonlyArray<Received | NoAnswer>): string {
  const counts = new Map<string, number>()
  for (const one of answers) {
    const name = one instanceof NoAnswer ? `none (${one.message})` : String(one.status)
    counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  return [...counts].map(([name, count]) => `${count} × ${name}`).join(', ')
}

export const raceCases: readonly Case[] = [race]
