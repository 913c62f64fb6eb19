import { randomUUID } from 'node:crypto'
import { connect } from 'node:net'
import type { Contract } from '../../contract.ts'
import { type Finding, fail, ok, warn } from './finding.ts'

const CONNECT_MS_MAX = 3_000
const ANSWER_MS_MAX = 10_000

/** Connects, and sends nothing. */
export async function judgeUpstream(upstream: string | undefined): Promise<Finding> {
  if (upstream === undefined) {
    return warn(
      'upstream',
      'No service is named.',
      'The gate does not start like this; a library in code needs none.',
      'Say --upstream http://host:port to have it looked at.',
    )
  }
  const { hostname, port, protocol } = new URL(upstream)
  const refused = await new Promise<string | undefined>((resolve) => {
    const socket = connect({
      host: hostname.replace(/^\[|\]$/g, ''),
      port: Number(port || (protocol === 'https:' ? 443 : 80)),
      timeout: CONNECT_MS_MAX,
    })
    const end = (reason?: string): void => {
      socket.destroy()
      resolve(reason)
    }
    socket.once('connect', () => end())
    socket.once('timeout', () => end(`no connection within ${CONNECT_MS_MAX} ms`))
    socket.once('error', (error: NodeJS.ErrnoException) => end(error.code ?? error.message))
  })
  if (refused === undefined) return ok('upstream', `${upstream} takes connections.`)
  return fail(
    'upstream',
    `${upstream} takes no connection: ${refused}.`,
    'The gate answers every request with 503; nothing runs, and keys stay free.',
    'Start the service, or correct --upstream.',
  )
}

export interface AppProbe {
  readonly url: string
  readonly body: string
  readonly headers: ReadonlyArray<readonly [string, string]>
}

/** Sends one write twice with one key, and looks at what comes. A real write: the caller has been asked. */
export async function judgeApp({ url, body, headers }: AppProbe, contract: Contract): Promise<Finding> {
  const key = `oncekey-doctor-${randomUUID()}`
  const send = async () => {
    const response = await fetch(url, {
      method: 'POST',
      headers: [
        ['Content-Type', 'application/json'],
        [contract.key.header, key],
        ...headers.map(([a, b]) => [a, b]),
      ] as [string, string][],
      body,
      signal: AbortSignal.timeout(ANSWER_MS_MAX),
    })
    return {
      status: response.status,
      isReplayed: response.headers.get(contract.headers.replayed) === 'true',
      text: await response.text(),
    }
  }
  try {
    return judgeAnswers(url, await send(), await send(), contract)
  } catch (error) {
    const { cause, message } = error as Error
    const reason = cause instanceof Error ? cause.message : message
    return fail('app', `${url} gave no answer: ${reason}`, 'It could not be judged.', 'Start it, or correct --url.')
  }
}

interface Answer {
  readonly status: number
  readonly isReplayed: boolean
  readonly text: string
}

function judgeAnswers(url: string, first: Answer, second: Answer, contract: Contract): Finding {
  if (first.text.includes('The request body was read before')) {
    return fail(
      'body-parser',
      `${url} answered ${first.status}: a body parser stands before idempotency().`,
      'Nothing of the body is left to compare, so every request with a key is refused.',
      'Put idempotency() before that middleware, or pass payload: (request) => what the operation is about.',
    )
  }
  if (second.isReplayed && second.status === first.status && second.text === first.text) {
    return ok('app', `${url} ran a write once (${first.status}) and replayed it to the retry.`)
  }
  const found = `${url} answered ${first.status}, and ${second.status} to the same again without ${contract.headers.replayed}: true.`
  if (first.status >= 400) {
    return warn(
      'app',
      found,
      'The write was not accepted, so whether one is replayed could not be seen.',
      'Give a --body that it accepts, and --header for who you are; oncekey check looks at everything.',
    )
  }
  return fail(
    'app',
    found,
    'The retry may have run again: either nothing protects this route, or it does not mark its replays.',
    'Put idempotency() on this route, or the gate before it; oncekey check tells the two apart.',
  )
}
