import { setTimeout as pause } from 'node:timers/promises'
import { shown, visible } from '../answers.ts'
import { decoded, type HeaderList, NoAnswer, type Received, values } from '../client.ts'
import { fail, pass, skip, warn } from '../finding.ts'
import { type Case, RETRIES_MAX } from '../session.ts'

const CLOSE: HeaderList = [['Connection', 'close']]
const KEEP_ALIVE: HeaderList = [['Connection', 'keep-alive']]
const NEVER_REPLAYED = ['proxy-authenticate', 'proxy-authorization', 'te', 'upgrade']
/** Date counts in seconds: after this long a new one must differ. */
const DATE_PAUSE_MS = 1_100

const cookies: Case = {
  id: 'headers.cookies',
  title: 'A cookie is never replayed',
  sent: 'A request and its retry, and another operation to compare with.',
  basis: 'General: a cookie is one client’s session; a replay may go to somebody else (RFC 6265, 8.3)',
  requestsMax: 3 + RETRIES_MAX,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation)
    const set = values(first, 'set-cookie')
    if (set.length === 0) return skip('The service sets no cookie on this endpoint.', '')
    const { answer: again } = await session.settled(operation)
    const repeated = values(again, 'set-cookie').filter((cookie) => set.includes(cookie))
    const names = (list: readonly string[]): string => list.map((one) => visible(one.split('=', 1)[0] ?? '')).join(', ')
    if (repeated.length === 0)
      return pass(
        `The first answer sets ${names(set)}, the retry nothing of it.`,
        'Sessions stay with whom they belong to.',
      )
    const came = `The first answer sets ${names(set)}, the retry sets ${names(repeated)} to the same value.`
    const elsewhere = values(await session.first(session.operation()), 'set-cookie')
    if (repeated.every((cookie) => elsewhere.includes(cookie))) {
      const meaning = 'The cookie has one value for every operation, so that it may well be set anew each time.'
      return warn(came, meaning, 'Make sure that it is set outside of what is recorded.')
    }
    const meaning = 'The cookie was recorded with the answer: whoever sends this key gets the first client’s session.'
    return fail(came, meaning, 'Keep headers by an allow-list, and never Set-Cookie.')
  },
}

const framing: Case = {
  id: 'headers.framing',
  title: 'Length, date and connection headers of a replay are its own',
  sent: 'A request with Connection: keep-alive, its retry a second later with Connection: close, and a new one with close.',
  basis: 'RFC 9112 6.3 (length), RFC 9110 7.6.1 (connection), 6.6.1 (Date)',
  requestsMax: 3 + RETRIES_MAX,
  async run(session) {
    const operation = session.operation()
    const first = await session.first(operation, { headers: KEEP_ALIVE })
    await pause(DATE_PAUSE_MS)
    let again: Received
    try {
      const { answer } = await session.settled(operation, { headers: CLOSE })
      again = answer
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error
      // Node's parser refuses what has two lengths, or another length than it says.
      const meaning = 'The replay is not a whole HTTP message: clients fail, and proxies disagree on where it ends.'
      const next = 'Never keep Content-Length or Transfer-Encoding with an answer; count the bytes that are sent.'
      return fail(`First ${shown(first)}, then ${error.message}.`, meaning, next)
    }
    const control = await session.first(session.operation(), { headers: CLOSE })
    const came = `${lines(first)} became ${lines(again)}.`
    const old = NEVER_REPLAYED.filter((name) => values(again, name).length > values(control, name).length)
    if (isKeptAlive(again) && !isKeptAlive(control)) old.push('connection')
    if (old.length > 0) {
      const meaning = `The replay carries the first connection’s own headers (${old.join(', ')}): clients wait on a connection that closes.`
      return fail(came, meaning, 'Keep headers by an allow-list, without those of the connection.')
    }
    const [date] = values(first, 'date')
    if (date !== undefined && date === values(again, 'date')[0] && values(control, 'date')[0] !== date) {
      const meaning = 'The replay has the first answer’s Date: clients that reckon with it take their clock for wrong.'
      return warn(came, meaning, 'Let each answer have a Date of its own.')
    }
    return pass(came, 'The replay is a message of its own.')
  },
}

function isKeptAlive(answer: Received): boolean {
  return values(answer, 'keep-alive').length > 0 || /keep-alive/i.test(values(answer, 'connection').join())
}

function lines(answer: Received): string {
  const shownNames = ['content-length', 'transfer-encoding', 'connection', 'keep-alive', 'date']
  const found = answer.headers.filter(([name]) => shownNames.includes(name.toLowerCase()))
  return `[${found.map(([name, value]) => `${name}: ${visible(value)}`).join('; ')}]`
}

const encoding: Case = {
  id: 'headers.encoding',
  title: 'A retry that accepts another encoding reads the same',
  sent: 'A request that accepts gzip and its retry that does not; then the other way round.',
  basis: 'RFC 9110 8.4: Content-Encoding says what the bytes are',
  requestsMax: 4 + 2 * RETRIES_MAX,
  async run(session) {
    const seen: string[] = []
    for (const [before, after] of [
      ['gzip', 'identity'],
      ['identity', 'gzip'],
    ] as const) {
      const operation = session.operation()
      const first = await session.first(operation, { headers: [['Accept-Encoding', before]] })
      const { answer: again } = await session.settled(operation, { headers: [['Accept-Encoding', after]] })
      const came = `Accepting ${before}: ${coded(first)}. The retry, accepting ${after}: ${coded(again)}.`
      seen.push(came)
      const [one, other] = [decoded(first), decoded(again)]
      if (one === undefined) {
        const meaning = 'Already the first answer is not in the encoding that it says it is.'
        return fail(came, meaning, 'Correct Content-Encoding.')
      }
      if (other === undefined || !one.equals(other) || first.status !== again.status) {
        const meaning = 'Who accepts another encoding on its retry cannot read the answer, or reads another one.'
        return fail(came, meaning, 'Record bytes and Content-Encoding together, at the same place in the chain.')
      }
    }
    return pass(seen.join(' '), 'Every client reads the same answer.')
  },
}

function coded(answer: Received): string {
  return `${shown(answer)} in ${visible(values(answer, 'content-encoding').join(', ')) || 'no encoding'}`
}

export const headerCases: readonly Case[] = [cookies, framing, encoding]
