import type { IncomingMessage, ServerResponse } from 'node:http'
import type { History, SeenEvent } from './history.ts'

const HEARTBEAT_MS = 15_000
/** A reader that is this far behind is cut off, and comes back with the last id that it has seen. */
const BEHIND_BYTES_MAX = 1024 * 1024
export const STREAMS_MAX = 100

/** Server-sent events, from where the reader left off as far as it is remembered. */
export function streamEvents(
  history: History,
  shown: (event: SeenEvent) => SeenEvent,
  request: IncomingMessage,
  response: ServerResponse,
): void {
  const lastSeen = Number(request.headers['last-event-id'] ?? Number.NaN)
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'X-Accel-Buffering': 'no' })
  const send = (event: SeenEvent): void => {
    if (response.writableLength > BEHIND_BYTES_MAX) return void response.destroy()
    response.write(`id: ${event.seq}\ndata: ${JSON.stringify(shown(event))}\n\n`)
  }
  response.write(`retry: 1000\n: ${history.lastSeq}\n\n`)
  if (Number.isSafeInteger(lastSeen)) for (const event of history.since(lastSeen)) send(event)
  const stop = history.listen(send)
  const heartbeat = setInterval(() => response.write(': still here\n\n'), HEARTBEAT_MS)
  response.once('close', () => {
    stop()
    clearInterval(heartbeat)
  })
}
