import { sameBytes, shown } from '../answers.ts'
import { DRAFT, fail, pass, skip } from '../finding.ts'
import type { Case } from '../session.ts'

const tenants: Case = {
  id: 'tenants.isolation',
  title: 'Another principal with the same key gets an answer of its own',
  sent: 'A request, the same key and payload as --second-principal, and the first request again.',
  basis: `${DRAFT}, Security Considerations: look keys up together with who sends them`,
  requestsMax: 5,
  async run(session) {
    const { secondPrincipal } = session.options
    if (secondPrincipal === undefined) return skip('Only one principal is known.', 'Give --second-principal.')
    const operation = session.operation()
    const first = await session.first(operation)
    const [other, rise] = await session.rise(() => session.send(operation, { headers: secondPrincipal }))
    const again = await session.send(operation)
    const came = `The first principal ${shown(first)}, the second ${shown(other)}, the first again ${shown(again)}.`
    if (other.status === 401 || other.status === 403) {
      return skip(`--second-principal was answered with ${other.status}.`, 'Give one that may use this endpoint.')
    }
    switch (session.fate(first, other, rise)) {
      case 'replayed': {
        const meaning = 'One client gets another client’s answer: whoever guesses or repeats a key reads foreign data.'
        return fail(came, meaning, 'Make the authenticated principal part of what the key is looked up by.')
      }
      case 'refused': {
        const meaning = 'One client’s key is taken from all others, and the refusal tells that it was used.'
        return fail(came, meaning, 'Make the authenticated principal part of what the key is looked up by.')
      }
      case 'broken':
        return fail(came, 'A key that somebody else has used breaks the service.', 'Look into the service’s log.')
      case 'unclear': {
        const meaning = 'This service answers everybody the same, so that nothing can be told.'
        return skip(meaning, 'Give --count-url, where the number of effects of both can be read.')
      }
      case 'ran':
    }
    if (first.status === again.status && sameBytes(first, again))
      return pass(came, 'Keys of different clients never meet.')
    const meaning = 'After the second client came, the first one does not get its own answer any more.'
    return fail(came, meaning, 'Make the authenticated principal part of what the key is looked up by.')
  },
}

export const tenantCases: readonly Case[] = [tenants]
