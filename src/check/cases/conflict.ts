import { isRefusal, sameBytes, sameContent, shown } from '../answers.ts'
import { DRAFT, fail, pass, skip, unclear, warn } from '../finding.ts'
import { reordered } from '../payload.ts'
import { type Case, RETRIES_MAX } from '../session.ts'

const body: Case = {
  id: 'conflict.body',
  title: 'A key reused with another body is refused, and the first answer stays',
  sent: 'A request, another payload with the same key, and the first request again.',
  basis: `${DRAFT} 2.2, 2.7: a key must not be reused with another payload; SHOULD be 422`,
  requestsMax: 6 + RETRIES_MAX,
  async run(session) {
    const operation = session.operation()
    const other = session.otherPayload(operation)
    if (other === undefined) return skip('No other payload can be made of this one.', 'Give --other-body.')
    const control = await session.send({ ...session.operation(), payload: other })
    if (isRefusal(control)) {
      const meaning = `The other payload is rejected under a key of its own, too (${shown(control)}), so that a refusal would tell nothing.`
      return skip(meaning, 'Give an --other-body that the service accepts.')
    }
    const first = await session.first(operation)
    const [answer, rise] = await session.rise(() => session.send(operation, { payload: other }))
    const { answer: again } = await session.settled(operation)
    const came = `First ${shown(first)}, with another body ${shown(answer)}, the first again ${shown(again)}.`
    if (rise) {
      const meaning = `The second request ran under a used key (the effects grew by ${rise}).`
      return fail(came, meaning, 'Compare a fingerprint of the request before anything runs.')
    }
    if (answer.status >= 500) return fail(came, 'A reused key breaks the service.', 'Refuse it with 422.')
    if (!isRefusal(answer)) {
      const meaning = sameContent(first, answer)
        ? 'The client asked for something else and got the first operation’s answer: it believes that its new request was done.'
        : 'The request ran under a key that was used for another one: the key protects nothing.'
      return fail(came, meaning, 'Keep a fingerprint of the request with the key, and refuse another one with 422.')
    }
    if (again.status !== first.status || !sameBytes(first, again)) {
      const meaning = 'One mistaken request destroyed the record of a good one: its answer cannot be had any more.'
      return fail(came, meaning, 'Never store a refusal as the answer, and never free a key that another request owns.')
    }
    return pass(came, `A client that mixes up its keys is told so with ${answer.status}.`)
  },
}

const query: Case = {
  id: 'conflict.query',
  title: 'A key reused with another query is noticed',
  sent: 'A request, and the same with one more parameter in the query.',
  basis: 'A query can change what a request means; the fingerprint should cover it',
  requestsMax: 4,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation)
    const [answer, rise] = await session.rise(() => session.send(operation, { query: 'oncekey-check=1' }))
    const came = `First ${shown(first)}, with another query ${shown(answer)}.`
    switch (session.fate(first, answer, rise)) {
      case 'refused':
        return pass(came, 'A key names one request with its query.')
      case 'ran': {
        const meaning = 'The whole address is part of the key’s scope: with another query it is another operation.'
        return warn(came, meaning, 'Nothing, if the documentation says so.')
      }
      case 'replayed': {
        const meaning = 'The query is not compared: a client that changes only the query gets the old answer.'
        return warn(came, meaning, 'Put the query into the fingerprint, unless no parameter changes what is done.')
      }
      case 'broken':
        return fail(came, 'Another query under a used key breaks the service.', 'Refuse it with 422.')
      case 'unclear':
        return unclear(came)
    }
  },
}

const order: Case = {
  id: 'conflict.order',
  title: 'The same JSON in another order is the same request',
  sent: 'A request, and the same JSON value with its names in another order and with spaces.',
  basis: `${DRAFT} 2.4 leaves the fingerprint to the service: for information`,
  requestsMax: 4,
  async run(session) {
    const operation = session.operation()
    const payload = reordered(operation.payload)
    if (payload === undefined) return skip('The payload is not JSON that can be put into another order.', '')
    const first = await session.first(operation)
    const [answer, rise] = await session.rise(() => session.send(operation, { payload }))
    const came = `First ${shown(first)}, in another order ${shown(answer)}.`
    switch (session.fate(first, answer, rise)) {
      case 'replayed':
        return pass(came, 'Clients may write their JSON anew for a retry.')
      case 'refused': {
        const meaning = 'Bodies are compared as bytes: a client that writes its JSON anew for a retry is refused.'
        return warn(came, meaning, 'Say so in the documentation, or compare canonical JSON (RFC 8785).')
      }
      case 'ran': {
        const meaning = 'The request ran again under the same key.'
        return fail(came, meaning, 'Replay it, or refuse it with 422; never run a used key.')
      }
      case 'broken':
        return fail(came, 'The same JSON in other bytes breaks the service.', 'Look into the service’s log.')
      case 'unclear':
        return unclear(came)
    }
  },
}

export const conflictCases: readonly Case[] = [body, query, order]
