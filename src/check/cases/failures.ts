import { isRefusal, isSuccess, replayMark, sameContent, shown, visible } from '../answers.ts'
import { type Received, values } from '../client.ts'
import { DRAFT, fail, pass, skip, warn } from '../finding.ts'
import type { Case } from '../session.ts'
import type { Finding } from '../types.ts'

const failure: Case = {
  id: 'failures.retry',
  title: 'After a 5xx every retry is treated the same way',
  sent: '--fail-body three times with one key.',
  basis: `${DRAFT} 2.7 leaves other errors to the service’s documentation; it must be one rule`,
  requestsMax: 7,
  async run(session) {
    const { failBody } = session.options
    if (failBody === undefined) return skip('No payload is known that makes the service fail.', 'Give --fail-body.')
    const operation = session.operation(failBody)
    const first = await session.send(operation)
    if (first.status < 500) {
      const meaning = `--fail-body was answered with ${shown(first)}, which is no failure of the service.`
      return skip(meaning, 'Give a --fail-body that is answered with a 5xx.')
    }
    const [second, rise] = await session.rise(() => session.send(operation))
    const [third, riseAfter] = await session.rise(() => session.send(operation))
    const came = `First ${shown(first)}, then ${shown(second)}, then ${shown(third)}.`
    const [then, last] = [treated(first, second, rise), treated(isSuccess(second) ? second : first, third, riseAfter)]
    if (then === 'refused' && last === 'refused') return held(second, came)
    // Once a retry has succeeded it is an operation like any other, and must be replayed.
    if (then === 'ran' && isSuccess(second) && last !== 'replayed') {
      const meaning = `A retry succeeded, and the next one ${last === 'ran' ? 'ran again' : 'was refused'}.`
      return fail(came, meaning, 'Record the success of a retry like that of a first request.')
    }
    if (then !== last && !(then === 'ran' && isSuccess(second))) {
      const meaning = `One retry is ${then === 'ran' ? 'run again' : then}, the next ${last === 'ran' ? 'run again' : last}: no client can have a rule for that.`
      return fail(came, meaning, 'Choose one: replay the failure, run again, or refuse.')
    }
    if (then === 'replayed') {
      // A failure rarely has anything in it that would tell one run from another, nor an effect to count.
      const isCertain = replayMark(second) !== undefined
      const how = isCertain ? 'is replayed' : 'comes again, replayed or from a new run that ended the same'
      return pass(
        came,
        `A failure ${how}: another try needs a new key${isCertain ? '' : ' unless the documentation says otherwise'}.`,
      )
    }
    return pass(
      came,
      'A failure frees the key: the retry runs again. Its effects before the failure must be undone or safe to repeat.',
    )
  },
}

function treated(first: Received, again: Received, rise: number | undefined): 'replayed' | 'ran' | 'refused' {
  if (isRefusal(again)) return 'refused'
  if (rise) return 'ran'
  return replayMark(again) !== undefined || sameContent(first, again) ? 'replayed' : 'ran'
}

/** A refusal after the end may say "I do not know", which is honest, or "still running", which is not true any more. */
function held(answer: Received, came: string): Finding {
  const text = answer.body.toString()
  const hint = values(answer, 'retry-after')[0]
  if (hint !== undefined || /in[ _-]?progress|in[ _-]?flight|still (?:running|being)|outstanding/i.test(text)) {
    const wait = hint === undefined ? '' : ` (Retry-After: ${visible(hint)})`
    const meaning = `The failed request has ended, but retries are told that it still runs${wait}: the key is stuck.`
    return fail(came, meaning, 'Complete or free the record when the handler fails, too.')
  }
  const meaning =
    'Retries after a failure are refused: a client must look up what took place, or take a new key and the risk.'
  return warn(came, meaning, 'Document it, and say in the refusal how to find out.')
}

export const failureCases: readonly Case[] = [failure]
