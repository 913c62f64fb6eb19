import type { IncomingMessage, ServerResponse } from 'node:http'
import type { History, SeenEvent } from './history.ts'

const HEARTBEAT_MS = 15_000
/** A reader that is this far behind is cut off, and comes back with the last id that it has seen. */
const BEHIND_BYTES_MAX = 1024 * 1024
export const STREAMS_MAX = 100
/** More at once would count as being behind, and the reader would never get past it. */
const RESUMED_EVENTS_MAX = 1_000
const RECENT = /[?&]recent=(\d{1,4})(?:&|$)/

/**
 * Server-sent events, from where the reader left off as far as it is remembered. A reader that comes for the first time
 * may ask for the last few with `?recent=`.
 */
export function streamEvents(
  history: History,
  shown: (event: SeenEvent) => SeenEvent,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const recent = Number(RECENT.exec(request.url ?? '')?.[1] ?? 0)
  const lastSeen = Number(request.headers['last-event-id'] ?? history.lastSeq - recent)
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'X-Accel-Buffering': 'no' })
  const send = (event: SeenEvent): void => {
    if (response.writableLength > BEHIND_BYTES_MAX) return void response.destroy()
    response.write(`id: ${event.seq}\ndata: ${JSON.stringify(shown(event))}\n\n`)
  }
  response.write(`retry: 1000\n: ${history.lastSeq}\n\n`)
  if (Number.isSafeInteger(lastSeen))
    for (const event of history.since(lastSeen).slice(-RESUMED_EVENTS_MAX)) send(event)
  const stop = history.listen(send)
  const heartbeat = setInterval(() => response.write(': still here\n\n'), HEARTBEAT_MS)
  response.once('close', () => {
    stop()
    clearInterval(heartbeat)
  })
}
