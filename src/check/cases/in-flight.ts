import { setTimeout as pause } from 'node:timers/promises'
import { isNotNow, isSuccess, replayMark, sameContent, shown, visible } from '../answers.ts'
import { type Received, values } from '../client.ts'
import { DRAFT, fail, pass, skip, unclear, warn } from '../finding.ts'
import { type Case, type Operation, RETRIES_MAX, type Session } from '../session.ts'

/** After this long a request to a slow service is taken to be in its handler. */
const IN_FLIGHT_PAUSE_MS = 150

const inFlight: Case = {
  id: 'in-flight.duplicate',
  title: 'A duplicate of a running request does not run',
  sent: '--slow-body, the same again while it runs, and once more afterwards.',
  basis: `${DRAFT} 2.6, 2.7: a request retried while the first is being processed SHOULD be 409`,
  requestsMax: 5 + RETRIES_MAX,
  async run(session) {
    const { slowBody } = session.options
    if (slowBody === undefined) {
      return skip('No payload is known that takes the service some time.', 'Give --slow-body.')
    }
    const operation = session.operation(slowBody)
    const [{ first, duplicate }, rise] = await session.rise(() => overlapping(session, operation))
    if (duplicate === undefined) {
      const meaning = `--slow-body was answered within ${IN_FLIGHT_PAUSE_MS} ms, so that no duplicate could come in time.`
      return skip(meaning, 'Give a --slow-body that takes longer.')
    }
    const { answer: after } = await session.settled(operation)
    const came = `First ${shown(first)}, meanwhile ${shown(duplicate)}, afterwards ${shown(after)}.`
    if (!isSuccess(first)) return skip(`--slow-body was answered with ${shown(first)}.`, 'Give one that succeeds.')
    const ranTwice =
      rise === undefined ? isSuccess(duplicate) && !sameContent(first, duplicate) : rise > session.effectsEach
    if (ranTwice) {
      const meaning = 'The duplicate ran beside the first: a client whose patience is shorter than the work acts twice.'
      return fail(came, meaning, 'Record the claim before the handler runs, and send duplicates away with 409.')
    }
    if (!isSuccess(duplicate) && !isNotNow(duplicate)) {
      const meaning = 'The duplicate got an error from which a client cannot tell that it should retry.'
      return fail(came, meaning, 'Answer 409 with Retry-After, or let it wait.')
    }
    if (!sameContent(first, after)) {
      const meaning = 'After the first request was complete its answer could not be had.'
      return fail(came, meaning, 'Complete the record when the handler ends, also when a duplicate came meanwhile.')
    }
    if (isSuccess(duplicate)) {
      if (session.probe.judgedBy === 'nothing' && replayMark(after) === undefined) return unclear(came)
      return pass(came, 'A duplicate waits for the first answer.')
    }
    const hint = values(duplicate, 'retry-after')[0]
    if (hint !== undefined) return pass(came, `A duplicate is told to come back (Retry-After: ${visible(hint)}).`)
    return warn(came, 'A duplicate is sent away, but not told when to come back.', 'Send Retry-After with it.')
  },
}

async function overlapping(
  session: Session,
  operation: Operation,
): Promise<{ first: Received; duplicate: Received | undefined }> {
  const running = session.send(operation)
  // Looked at below; until then it must not count as unhandled.
  running.catch(() => {})
  const early = await Promise.race([running, pause(IN_FLIGHT_PAUSE_MS)])
  if (early !== undefined) return { first: early, duplicate: undefined }
  const [first, duplicate] = await Promise.all([running, session.send(operation)])
  return { first, duplicate }
}

export const inFlightCases: readonly Case[] = [inFlight]
