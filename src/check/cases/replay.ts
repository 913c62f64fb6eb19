import { isRefusal, replayMark, sameBytes, sameHeader, sameJson, shown } from '../answers.ts'
import { type Received, values } from '../client.ts'
import { DRAFT, fail, pass, skip, unclear, warn } from '../finding.ts'
import { brokenOff } from '../payload.ts'
import { type Case, RETRIES_MAX, type Session } from '../session.ts'
import type { Finding } from '../types.ts'

/** Without these a client reads the same bytes differently, or does not find what it has made. */
const NEEDED_HEADERS = ['content-type', 'location']
const USEFUL_HEADERS = ['etag', 'last-modified', 'link', 'content-language', 'content-disposition', 'content-location']

const success: Case = {
  id: 'replay.success',
  title: 'A retry gets the first answer again, and nothing runs',
  sent: 'The same request three times, one after another, with one key.',
  basis: `${DRAFT} 2.6: a retry after completion gets the result of the completed operation`,
  requestsMax: 5 + RETRIES_MAX,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation)
    const [{ settled, third }, rise] = await session.rise(async () => ({
      settled: await session.settled(operation),
      third: await session.send(operation),
    }))
    for (const again of [settled.answer, third]) {
      const wrong = judged(session, first, again, rise)
      if (wrong) return wrong
    }
    const mark = replayMark(third)
    const came = `First ${shown(first)}, then the same twice; ${mark ? `the replay is marked ${mark}` : 'nothing marks the replay'}.`
    if (session.fate(first, third, rise) === 'unclear') return unclear(came)
    const lost = USEFUL_HEADERS.filter((name) => !sameHeader(first, third, name))
    if (lost.length > 0) {
      const meaning = `Clients that retry do not see ${lost.join(', ')} as the first answer had it.`
      return warn(came, meaning, 'Keep these headers with the answer.')
    }
    if (settled.retries > 0) {
      const meaning = `The answer was out before it was recorded: the first ${settled.retries} retries were told to come later.`
      return warn(came, meaning, 'Record the answer before it is sent, so that a quick retry finds it.')
    }
    return pass(came, 'A client that lost the answer can ask again without harm.')
  },
}

function judged(session: Session, first: Received, again: Received, rise: number | undefined): Finding | undefined {
  const came = `First ${shown(first)}, then ${shown(again)}${rise ? `; the effects grew by ${rise}` : ''}.`
  switch (session.fate(first, again, rise)) {
    case 'ran': {
      const meaning = 'The request ran again: a client that retries pays, orders or creates twice.'
      return fail(came, meaning, 'Record the answer under the key, and look it up before the handler runs.')
    }
    case 'refused': {
      const meaning =
        'The key is stuck: the operation is complete, but its answer cannot be had any more, and a client cannot tell whether it took place.'
      return fail(came, meaning, 'Complete the record whichever way the handler answers (end, pipe, stream, error).')
    }
    case 'broken':
      return fail(came, 'A retry breaks the service.', 'Look into the service’s log for this key.')
    case 'replayed':
    case 'unclear':
      return inexact(first, again, came)
  }
}

function inexact(first: Received, again: Received, came: string): Finding | undefined {
  if (first.status !== again.status) {
    const meaning = 'Clients that look at the status take the retry for something else than the first request.'
    return fail(came, meaning, 'Keep the status with the answer.')
  }
  if (!sameBytes(first, again)) {
    const how = sameJson(first, again) ? 'the same JSON value in other bytes' : 'other bytes'
    const meaning = `The replay has ${how} (${first.body.length} became ${again.body.length}): signatures, digests and ETags over it fail.`
    return fail(came, meaning, 'Keep the bytes as they were sent; never parse and write them anew.')
  }
  const lost = NEEDED_HEADERS.filter((name) => !sameHeader(first, again, name))
  if (lost.length === 0) return undefined
  const how = lost
    .map(
      (name) =>
        `${name} was ${values(first, name).join(', ') || 'absent'}, is ${values(again, name).join(', ') || 'absent'}`,
    )
    .join('; ')
  const meaning = `On the replay ${how}: clients read it differently, or do not find what they made.`
  return fail(came, meaning, 'Keep these headers with the answer.')
}

const rejection: Case = {
  id: 'replay.rejection',
  title: 'A retry of a rejected request is rejected again',
  sent: 'A payload that the service rejects (--reject-body, or JSON that breaks off), twice with one key.',
  basis: `${DRAFT} 2.6: an error is a result, too, and is repeated`,
  requestsMax: 2 + RETRIES_MAX,
  async run(session) {
    const { rejectBody } = session.options
    const operation = session.operation(rejectBody)
    const payload = rejectBody === undefined ? brokenOff(operation.payload) : operation.payload
    if (payload === undefined) return skip('No payload is known that the service rejects.', 'Give --reject-body.')
    const first = await session.send(operation, { payload })
    if (!isRefusal(first)) {
      const meaning = `The payload that should be rejected was answered with ${first.status}.`
      return skip(meaning, 'Give a --reject-body that the service answers with a 4xx.')
    }
    const { answer: again } = await session.settled(operation, { payload })
    const came = `First ${shown(first)}, then ${shown(again)}.`
    if (first.status !== again.status) {
      const meaning = 'The same request is first rejected and then answered differently: a client cannot trust either.'
      return fail(came, meaning, 'Replay the rejection, or free the key so that the request is judged anew.')
    }
    if (sameBytes(first, again)) return pass(came, 'The same request gets the same no.')
    const meaning = 'Rejections are not replayed: the request is judged anew each time, with another text.'
    return warn(came, meaning, 'Nothing, if the documentation says that a rejected key can be used again.')
  },
}

export const replayCases: readonly Case[] = [success, rejection]
