import { signal } from '@preact/signals'
import { authorization, isLockedOut, refusalOf, type SeenEvent, session } from './api.ts'

export type Connection =
  | { readonly state: 'connecting' }
  | { readonly state: 'open' }
  | { readonly state: 'lost'; readonly why: string; readonly retryAtMs: number }

/** An event with a number of this page's own: a gate that was restarted counts from one again. */
export interface FeedEvent extends SeenEvent {
  readonly number: number
}

export const connection = signal<Connection>({ state: 'connecting' })
/** Oldest first. */
export const feed = signal<readonly FeedEvent[]>([])

const FEED_EVENTS_MAX = 2_000
const RECENT_EVENTS = 300
/** Events come one by one and are shown in bundles: a storm of them must not be a storm of renders. */
const FLUSH_MS = 200
/** The server says that it is still there every 15 s. */
const SILENCE_MS_MAX = 40_000
const RETRY_MS_MIN = 500
const RETRY_MS_MAX = 10_000

let lastSeq: number | undefined
let count = 0
let waiting: FeedEvent[] = []
let isFlushDue = false
let wakeUp: (() => void) | undefined

/** Keeps one stream open for the whole page, for as long as it lives. Returns at once. */
export function startStream(): void {
  window.addEventListener('online', () => wakeUp?.())
  session.subscribe(() => wakeUp?.())
  void keepReading()
}

export function retryNow(): void {
  wakeUp?.()
}

async function keepReading(): Promise<never> {
  for (let pauseMs = RETRY_MS_MIN; ; pauseMs = Math.min(2 * pauseMs, RETRY_MS_MAX)) {
    const why = await readOnce(() => {
      connection.value = { state: 'open' }
      pauseMs = RETRY_MS_MIN
    })
    connection.value = { state: 'lost', why, retryAtMs: performance.now() + pauseMs }
    await new Promise<void>((resolve) => {
      wakeUp = resolve
      // Without the token every further try is refused: wait for it.
      if (!isLockedOut.value) setTimeout(resolve, pauseMs)
    })
    wakeUp = undefined
  }
}

/** Until it ends, which it always does some time; the words say why. */
async function readOnce(onOpen: () => void): Promise<string> {
  const abort = new AbortController()
  let silence = setTimeout(() => abort.abort(), SILENCE_MS_MAX)
  try {
    const resumed: Record<string, string> = lastSeq === undefined ? {} : { 'Last-Event-ID': String(lastSeq) }
    const response = await fetch(`/api/events?recent=${RECENT_EVENTS}`, {
      headers: { ...authorization(), ...resumed },
      signal: abort.signal,
    })
    if (!response.ok || response.body === null) return (await refusalOf(response)).message
    onOpen()
    let rest = ''
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      clearTimeout(silence)
      silence = setTimeout(() => abort.abort(), SILENCE_MS_MAX)
      const lines = (rest + chunk).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) if (line.startsWith('data: ')) take(JSON.parse(line.slice(6)) as SeenEvent)
    }
    return 'The stream was ended by the other side.'
  } catch {
    return abort.signal.aborted ? 'Nothing was heard for a while.' : 'The connection broke.'
  } finally {
    clearTimeout(silence)
  }
}

function take(event: SeenEvent): void {
  lastSeq = event.seq
  waiting.push({ ...event, number: ++count })
  if (waiting.length > 2 * FEED_EVENTS_MAX) waiting = waiting.slice(-FEED_EVENTS_MAX)
  if (isFlushDue) return
  isFlushDue = true
  setTimeout(() => {
    isFlushDue = false
    feed.value = [...feed.value, ...waiting].slice(-FEED_EVENTS_MAX)
    waiting = []
  }, FLUSH_MS)
}
