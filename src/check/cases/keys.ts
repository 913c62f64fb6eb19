import { isRefusal, isSuccess, shown } from '../answers.ts'
import { NoAnswer, type Received } from '../client.ts'
import { DRAFT, fail, pass, unclear, warn } from '../finding.ts'
import type { Case, Operation, Session } from '../session.ts'
import type { Finding } from '../types.ts'

const LONG_KEY_LENGTH = 10_000

/** A key that a service may refuse or take, but must not choke on or lose. Sent twice; with it one more request. */
function oddKey(
  name: string,
  title: string,
  sent: string,
  values: (operation: Operation) => readonly string[],
  basis: string,
): Case {
  return {
    id: `keys.${name}`,
    title,
    sent,
    basis,
    requestsMax: 4,
    run: async (session) => {
      const operation = session.operation()
      const { finding } = await odd(session, operation, values(operation))
      return finding
    },
  }
}

/** `taken`: the answer, when the service took the key and kept to it. */
async function odd(
  session: Session,
  operation: Operation,
  raw: readonly string[],
): Promise<{ finding: Finding; taken?: Received }> {
  const keys = raw.map((key) => session.written(key))
  let first: Received
  try {
    first = await session.send(operation, { keys })
  } catch (error) {
    if (error instanceof NoAnswer) return { finding: await speechless(session, error) }
    throw error
  }
  if (first.status >= 500) return { finding: choked(first) }
  if (isRefusal(first)) return { finding: pass(`${shown(first)}.`, 'The key is refused in words, and nothing runs.') }
  const [again, rise] = await session.rise(() => session.send(operation, { keys }))
  const came = `First ${shown(first)}, then ${shown(again)}.`
  switch (session.fate(first, again, rise)) {
    case 'replayed':
      return { finding: pass(came, 'The key is taken like any other.'), taken: first }
    case 'ran': {
      const meaning = 'The key was ignored in silence: the client believes to be protected, and its retry ran again.'
      return { finding: fail(came, meaning, 'Refuse a key that cannot be used with 400, before anything runs.') }
    }
    case 'refused': {
      const meaning = 'The key was taken the first time and refused the second: its answer cannot be had any more.'
      return { finding: fail(came, meaning, 'Check the key before anything runs.') }
    }
    case 'broken':
      return { finding: choked(again) }
    case 'unclear':
      return { finding: unclear(came) }
  }
}

function choked(answer: Received): Finding {
  const meaning =
    'A client’s odd key is a failure of the server: the client retries for ever, and the service is paged.'
  return fail(
    `${shown(answer)}.`,
    meaning,
    'Check the key before it is used, and answer 400 with a text that names the fault.',
  )
}

/** No answer at all: is the service still there? */
async function speechless(session: Session, error: NoAnswer): Promise<Finding> {
  const came = `No answer (${error.message})`
  try {
    const control = await session.send(session.operation())
    const meaning = 'The client sees a broken network instead of its mistake, and retries.'
    return warn(
      `${came}; an ordinary request afterwards: ${control.status}.`,
      meaning,
      'Answer 400 or 431 before closing.',
    )
  } catch {
    const meaning = 'The service did not come back after this key: any client can take it down.'
    return fail(`${came}, and none to an ordinary request afterwards.`, meaning, 'Check the key before it is used.')
  }
}

const quoted: Case = {
  id: 'keys.quoted',
  title: 'A quoted key and a bare one are the same key',
  sent: 'A request with the key, and the same with the other form: "key" or key.',
  basis: `${DRAFT} 2.1: the value is a quoted string (RFC 8941); most services also take it bare`,
  requestsMax: 4,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation)
    const bare = session.probe.keysAreQuoted
    const keys = [bare ? operation.key : `"${operation.key}"`]
    const [answer, rise] = await session.rise(() => session.send(operation, { keys }))
    const came = `First ${shown(first)}, then ${bare ? 'bare' : 'quoted'} ${shown(answer)}.`
    switch (session.fate(first, answer, rise)) {
      case 'replayed':
        return pass(came, 'Clients of either habit are protected.')
      case 'refused':
        return pass(came, 'The other form is refused, so that nobody is unprotected.')
      case 'ran': {
        const meaning = 'The quotes count as part of the key: a client library that begins to quote acts twice.'
        return warn(came, meaning, 'Take the quotes off, or refuse one of the two forms.')
      }
      case 'broken':
        return choked(answer)
      case 'unclear':
        return unclear(came)
    }
  },
}

const long: Case = {
  id: 'keys.long',
  title: 'A key that is too long is refused, or counts to its last character',
  sent: `A key of ${LONG_KEY_LENGTH} characters twice, and one that differs only in the last.`,
  basis: 'General: a key that is cut off meets other keys, and their answers',
  requestsMax: 7,
  async run(session) {
    const operation = session.operation()
    const stem = operation.key.padEnd(LONG_KEY_LENGTH - 1, 'k')
    const { finding, taken } = await odd(session, operation, [`${stem}1`])
    if (taken === undefined) return finding
    const keys = [session.written(`${stem}2`)]
    const [other, rise] = await session.rise(() => session.send(operation, { keys }))
    if (session.fate(taken, other, rise) !== 'replayed') return finding
    const meaning = 'Keys are cut off: two keys with the same beginning are one, and a client gets another’s answer.'
    return fail(`${finding.came} For the other key: ${shown(other)}.`, meaning, 'Refuse what is too long with 400.')
  },
}

const missing: Case = {
  id: 'keys.missing',
  title: 'A request without a key is refused, or documented to run unprotected',
  sent: 'The same request twice without a key.',
  basis: `${DRAFT} 2.7: SHOULD be 400 where a key is required`,
  requestsMax: 8,
  run: (session) => keyless(session, []),
}

const empty: Case = {
  id: 'keys.empty',
  title: 'An empty key is refused, or counts as none',
  sent: 'The same request twice with an empty key header.',
  basis: `${DRAFT} 2.1, 2.7: an empty value is no key`,
  requestsMax: 8,
  run: (session) => keyless(session, ['']),
}

async function keyless(session: Session, keys: readonly string[]): Promise<Finding> {
  const operation = session.operation()
  const first = await session.send(operation, { keys })
  if (first.status >= 500) return choked(first)
  if (isRefusal(first)) return pass(`${shown(first)}.`, 'Nobody is unprotected without knowing it.')
  const [again, rise] = await session.rise(() => session.send(operation, { keys }))
  const came = `First ${shown(first)}, then ${shown(again)}.`
  if (again.status >= 500) return choked(again)
  const met = await metAnother(session, operation, keys, first)
  if (met !== undefined) {
    const meaning =
      'Requests without a key share one record: clients get the answer to another’s request, or are refused for it.'
    return fail(`${came} Another payload: ${shown(met)}.`, meaning, 'Refuse them, or keep no record of them.')
  }
  if (session.fate(first, again, rise) === 'replayed') {
    return pass(came, 'Without a key the payload itself is the key: equal requests run once.')
  }
  const meaning = 'Without a key requests run unprotected.'
  return warn(came, meaning, 'Say so in the documentation, or refuse them with 400.')
}

/** What another payload without a key got, if it met the first one’s record. */
async function metAnother(
  session: Session,
  operation: Operation,
  keys: readonly string[],
  first: Received,
): Promise<Received | undefined> {
  const payload = session.otherPayload(operation)
  if (payload === undefined) return undefined
  const [answer, rise] = await session.rise(() => session.send(operation, { keys, payload }))
  const fate = session.fate(first, answer, rise)
  if (fate === 'replayed') return answer
  if (fate !== 'refused') return undefined
  // Refused for its record, or because the service would never take this payload?
  const control = await session.send({ ...session.operation(), payload })
  return isSuccess(control) ? answer : undefined
}

const VALIDATE = `${DRAFT}, Security Considerations: validate the key before anything is done with it`

export const keyCases: readonly Case[] = [
  quoted,
  missing,
  empty,
  long,
  oddKey(
    'control',
    'A key with a control character does no harm',
    'A key with a tab in it, twice.',
    ({ key }) => [`${key}\tk`],
    VALIDATE,
  ),
  oddKey(
    'non-ascii',
    'A key beyond ASCII does no harm',
    'A key with the bytes E9 and FF in it, twice.',
    ({ key }) => [`${key}\u00e9\u00ff`],
    VALIDATE,
  ),
  oddKey(
    'twice',
    'Two keys in one request do no harm',
    'A request with two different key headers, twice.',
    ({ key }) => [key, `${key}-2`],
    `${DRAFT} 2.1: the value is one item (RFC 8941), not a list`,
  ),
  oddKey(
    'hostile',
    'A key that is a word of a language or a database does no harm',
    'The key __proto__, twice.',
    () => ['__proto__'],
    VALIDATE,
  ),
]
